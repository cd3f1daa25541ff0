#include "world/agreement.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>

#include "parallel/parameter_sync.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

struct Case {
  const char* name;
  std::vector<std::string> texts;
  std::size_t line;
  std::size_t rank;
  const char* found;
  const char* expected;
  const char* others;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class FindDisagreement : public testing::TestWithParam<Case> {};

TEST_P(FindDisagreement, NamesTheFirstLineAndTheOddRank) {
  const Case& expected = GetParam();
  const auto found = find_disagreement(expected.texts);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->line, expected.line);
  EXPECT_EQ(found->rank, expected.rank);
  EXPECT_EQ(found->found, expected.found);
  EXPECT_EQ(found->expected, expected.expected);
  EXPECT_EQ(found->others, expected.others);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, FindDisagreement,
    testing::Values(Case{"two_ranks", {"a\nb", "a\nc"}, 1, 1, "c", "b", "rank 0 has"},
                    Case{"rank_zero_is_odd", {"a\nx", "a\nb", "a\nb"}, 1, 0, "x", "b", "2 of 3 ranks have"},
                    Case{"the_last_is_odd", {"a", "a", "a", "z"}, 0, 3, "z", "a", "3 of 4 ranks have"},
                    Case{"no_majority", {"a", "b", "b", "a"}, 0, 1, "b", "a", "rank 0 has"},
                    Case{"all_differ", {"a", "b", "c"}, 0, 1, "b", "a", "rank 0 has"},
                    Case{"one_has_less", {"a\nb", "a\nb", "a"}, 1, 2, "nothing", "b", "2 of 3 ranks have"},
                    Case{"same_lines_swapped", {"a\nb", "b\na"}, 0, 1, "b", "a", "rank 0 has"},
                    Case{"first_of_two_differences", {"a\nb", "x\ny"}, 0, 1, "x", "a", "rank 0 has"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(FindDisagreement, IsSilentWhereAllAreEqual) {
  EXPECT_FALSE(find_disagreement({"a\nb", "a\nb", "a\nb"}));
  EXPECT_FALSE(find_disagreement({""}));
}

/// Exchanges between the ranks in `work`; a gather is two: of the lengths, and of the texts.
std::uint64_t exchanges_in(const World& world, const std::function<void()>& work) {
  const auto& group = WorldAccess::group(world);
  const std::uint64_t before = group->getSequenceNumberForGroup();
  work();
  return group->getSequenceNumberForGroup() - before;
}

TEST(FindDisagreement, GathersTheTextsOnlyIfTheyDiffer) {
  thread_world(3, [](World& world) {
    EXPECT_EQ(exchanges_in(world, [&] { EXPECT_FALSE(find_disagreement("a\nb", world)); }), 1U);
    for (const int odd : {0, 2}) {
      const auto differ = [&] {
        const auto found = find_disagreement(world.rank() == odd ? "a\nc" : "a\nb", world);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->rank, static_cast<std::size_t>(odd));
        EXPECT_EQ(found->found + found->expected, "cb");
      };
      EXPECT_EQ(exchanges_in(world, differ), 1U + 2U);
    }
  });
}

TEST(FindDisagreement, SeesEveryByteAndTheLength) {
  const std::string zeros(17, '\0');
  std::vector<std::pair<std::string, std::string>> pairs{{"", zeros.substr(0, 1)}, {zeros, zeros.substr(1)}};
  for (std::size_t at = 0; at < zeros.size(); ++at) {
    pairs.emplace_back(zeros, zeros);
    pairs.back().second[at] = '\x80';
  }
  thread_world(2, [&](World& world) {
    for (const auto& [first, second] : pairs) {
      EXPECT_FALSE(WorldAccess::all_equal(world, world.is_main() ? first : second));
      EXPECT_TRUE(WorldAccess::all_equal(world, second));
    }
  });
}

TEST(RankPlaces, AreALinePerRankAndASummaryOfMany) {
  const RankPlace gpu{.host = "a", .device = "cuda:1 NVIDIA H100 GPU-1", .pid = 12};
  const RankPlace back = parse_place(to_line(gpu));
  EXPECT_EQ(back.host + back.device + std::to_string(back.pid), "acuda:1 NVIDIA H100 GPU-112");
  EXPECT_EQ(describe_ranks({gpu, {.host = "b", .device = "CPU", .pid = 7}}),
            "rank 0 of 2 on host a, cuda:1 NVIDIA H100 GPU-1, pid 12\nrank 1 of 2 on host b, CPU, pid 7");
  EXPECT_EQ(summarize_ranks({gpu, gpu, {.host = "b"}}), "3 ranks on 2 hosts: a (ranks 0-1), b (rank 2)");
}

TEST(RankPlaces, OfAllRanksAreKnownOnEveryRank) {
  thread_world(3, [](World& world) {
    const auto places = agree_at_start({}, "", world, {.host = "h" + std::to_string(world.rank()), .device = "CPU"});
    ASSERT_EQ(places.size(), 3U);
    EXPECT_EQ(places[2].host, "h2");
  });
}

CommError agree(int size, const std::function<void(World&)>& body) {
  return error_of<CommError>([&] { thread_world(size, body); });
}

TEST(AgreeAtStart, NamesTheSettingAndTheOddRank) {
  const auto of_three =
      agree(3, [](World& world) { agree_at_start({.optim = {.lr = world.rank() == 0 ? 0.2 : 0.1}}, "", world); });
  EXPECT_EQ(of_three.exit_code(), ExitCode::disagree);
  EXPECT_STREQ(of_three.what(), "rank 0 has optim.lr = 0.2, 2 of 3 ranks have optim.lr = 0.1");
  const auto of_two =
      agree(2, [](World& world) { agree_at_start({.optim = {.lr = world.rank() == 1 ? 0.2 : 0.1}}, "", world); });
  EXPECT_STREQ(of_two.what(), "rank 1 has optim.lr = 0.2, rank 0 has optim.lr = 0.1");
}

// The one gather is that of the places.
TEST(AgreeAtStart, AndEqualModelsNeedFewExchanges) {
  thread_world(3, [](World& world) {
    const torch::nn::Linear model(2, 3);
    EXPECT_EQ(exchanges_in(world, [&] { agree_at_start({}, "", world); }), 1U + 2U);
    EXPECT_EQ(exchanges_in(world, [&] { compare_parameters(*model, world); }), 1U);
    EXPECT_EQ(exchanges_in(world, [&] { compare_frozen(*model, world); }), 1U);
  });
}

TEST(AgreeAtStart, LetsRanksDifferWhereTheyMay) {
  thread_world(2, [](World& world) { agree_at_start({.run_name = std::to_string(world.rank())}, "", world); });
}

TEST(AgreeAtStart, RefusesOneGpuForTwoRanksOfNccl) {
  const auto share = [](Backend backend) {
    return
        [backend](World& world) { agree_at_start({.backend = backend}, world.rank() == 1 ? "GPU-b" : "GPU-a", world); };
  };
  const auto error = agree(3, share(Backend::nccl));
  EXPECT_EQ(error.exit_code(), ExitCode::usage);
  EXPECT_STREQ(error.what(), "ranks 0 and 2 use one GPU (GPU-a)");
  thread_world(3, share(Backend::gloo));  // a warning
  thread_world(3, [](World& world) {
    agree_at_start({.backend = Backend::nccl}, "GPU-" + std::to_string(world.rank()), world);
  });
}

}  // namespace
}  // namespace lockstep
