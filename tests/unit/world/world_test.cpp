#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/environment/identity.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

#include "checkpoint/main_rank.h"
#include "failure/deadlines.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "world/gather_values.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

TEST(World, OfOneNeedsNobody) {
  World world = World::single(c10::Device(c10::kCPU));
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_TRUE(world.is_main());
  const auto tensor = at::ones({3});
  world.all_reduce(tensor, Reduce::sum);
  EXPECT_TRUE(at::equal(tensor, at::ones({3})));
  EXPECT_TRUE(at::equal(world.all_gather(tensor), tensor));
  EXPECT_THAT(world.gather("x"), ElementsAre("x"));
  EXPECT_EQ(world.broadcast_bytes("y"), "y");
  EXPECT_FALSE(world.any(false));
  world.barrier("alone");
  EXPECT_THROW(world.store("x"), CommError);
}

TEST(World, RefusesAPlanOfAnotherRank) {
  for (const int local_rank : {1, -1}) {
    const auto error = error_of<ConfigError>([&] { World::connect(Plan(), {.local_rank = local_rank}); });
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("found local rank {}, expected less than 1", local_rank)));
    EXPECT_EQ(error.hint(), "resolve the plan with the same identity");
  }
}

class WorldOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, WorldOf, testing::Values(2, 3, 4));

TEST_P(WorldOf, ReducesOnTheDataPlane) {
  thread_world(GetParam(), [](World& world) {
    const int n = world.size();
    const auto reduced = [&](Reduce op) {
      const auto tensor = at::full({5}, static_cast<float>(world.rank() + 1));
      world.all_reduce(tensor, op);
      return tensor[4].item<float>();
    };
    const float sum = static_cast<float>(n * (n + 1)) / 2;
    ASSERT_EQ(reduced(Reduce::sum), sum);
    ASSERT_EQ(reduced(Reduce::mean), sum / static_cast<float>(n));
    ASSERT_EQ(reduced(Reduce::min), 1);
    ASSERT_EQ(reduced(Reduce::max), static_cast<float>(n));

    const auto sent = at::full({2}, world.rank(), at::kLong);
    world.broadcast(sent, n - 1);
    ASSERT_EQ(sent[0].item<std::int64_t>(), n - 1);

    // Rank r gives r rows.
    const auto rows = world.all_gather(at::full({world.rank(), 2}, world.rank(), at::kLong));
    std::int64_t at = 0;
    for (int rank = 0; rank < n; ++rank) {
      for (int row = 0; row < rank; ++row, ++at) {
        ASSERT_EQ(rows[at][1].item<std::int64_t>(), rank);
      }
    }
    ASSERT_EQ(rows.size(0), at);
  });
}

// Backends send few dtypes, and only dense tensors.
TEST(World, SendsEveryDtypeAndLayout) {
  thread_world(2, [](World& world) {
    for (const at::ScalarType type :
         {at::kShort, at::kUInt16, at::kUInt32, at::kUInt64, at::kBool, at::kByte, at::kHalf, at::kBFloat16, at::kLong,
          at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn}) {
      const auto values = [&](int rank) {
        return (at::arange(6, at::kLong) + rank).remainder(2).reshape({2, 3}).to(type);
      };
      const at::Tensor sent = values(world.rank());
      world.broadcast(sent, 1);
      ASSERT_TRUE(at::equal(sent.to(at::kLong), values(1).to(at::kLong))) << type;
      const at::Tensor all = world.all_gather(values(world.rank()));
      ASSERT_EQ(all.scalar_type(), type);
      ASSERT_TRUE(at::equal(all.to(at::kLong), at::cat({values(0).to(at::kLong), values(1).to(at::kLong)}))) << type;
    }
    const at::Tensor whole = at::full({4, 3}, static_cast<float>(world.rank() + 1));
    world.broadcast(whole.t(), 1);
    ASSERT_TRUE(at::all(whole == 2).item<bool>());
    world.all_reduce(whole.select(1, 0), Reduce::sum);
    ASSERT_TRUE(at::equal(whole[0], at::tensor({4.0F, 2.0F, 2.0F})));
    at::Tensor weight = at::ones({2}).requires_grad_();
    world.broadcast(weight, 0);
    const at::Tensor conjugate = at::full({2}, c10::complex<float>(1, static_cast<float>(world.rank()))).conj();
    world.broadcast(conjugate, 1);
    ASSERT_EQ(conjugate[0].item<c10::complex<float>>(), c10::complex<float>(1, -1));
    const at::Tensor sum = at::full({1}, c10::complex<float>(1, 2));
    world.all_reduce(sum, Reduce::mean);
    ASSERT_EQ(sum[0].item<c10::complex<float>>(), c10::complex<float>(1, 2));
    const at::Tensor any = at::full({1}, world.rank() == 1, at::kBool);
    world.all_reduce(any, Reduce::max);
    ASSERT_TRUE(any.item<bool>());
    world.broadcast(at::empty({0, 3}));
    ASSERT_EQ(world.all_gather(at::empty({0, 3})).sizes(), at::IntArrayRef({0, 3}));
  });
}

// It is this rank's mistake, not that of a peer, and no rank waits.
TEST(World, RefusesReductionsThatNoBackendHas) {
  thread_world(2, [](World& world) {
    const auto refused = [&](at::ScalarType type, Reduce op) -> std::string {
      try {
        world.all_reduce(at::zeros({2}, type), op);
      } catch (const CommError&) {
        return "a peer is blamed";
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    ASSERT_EQ(refused(at::kShort, Reduce::sum), "all-reduce: a tensor of dtype Short has no sum");
    ASSERT_EQ(refused(at::kUInt16, Reduce::min), "all-reduce: a tensor of dtype UInt16 has no minimum");
    ASSERT_EQ(refused(at::kBool, Reduce::sum), "all-reduce: a tensor of dtype Bool has no sum");
    ASSERT_EQ(refused(at::kLong, Reduce::mean), "all-reduce: a tensor of dtype Long has no mean");
    ASSERT_EQ(refused(at::kComplexFloat, Reduce::max), "all-reduce: a tensor of dtype ComplexFloat has no maximum");
    ASSERT_EQ(refused(at::kLong, Reduce::sum), "");
    world.barrier("still usable");
  });
}

TEST(World, RefusesArgumentsOfItsOwnRankBeforeAnyoneWaits) {
  const auto meta = [] { return at::empty({4}, at::device(at::kMeta)); };
  const auto sparse = [] { return at::ones({4}).to_sparse(); };
  const auto expanded = [] { return at::ones({1}).expand({4}); };
  struct Case {
    std::function<void(World&)> call;
    std::string text;
  };
  const std::vector<Case> cases{
      {[](World& world) { world.broadcast(at::ones({4}), 7); }, "broadcast: found root 7, expected a rank from 0 to "},
      {[](World& world) { world.broadcast(at::ones({4}), -1); }, "broadcast: found root -1"},
      {[](World& world) { world.broadcast(at::empty({0}), 7); }, "broadcast: found root 7"},
      {[](World& world) { static_cast<void>(world.broadcast_bytes("abc", 7)); }, "broadcast of bytes: found root 7"},
      {[](World& world) { world.broadcast(at::Tensor()); }, "broadcast: found an undefined tensor"},
      {[&](World& world) { world.broadcast(meta()); }, "broadcast: found a tensor on the meta device"},
      {[&](World& world) { world.broadcast(sparse()); }, "broadcast: found a sparse tensor"},
      {[&](World& world) { world.broadcast(expanded()); }, "broadcast: found an expanded tensor"},
      {[](World& world) { world.all_reduce(at::Tensor(), Reduce::sum); }, "all-reduce: found an undefined tensor"},
      {[&](World& world) { world.all_reduce(meta(), Reduce::sum); }, "all-reduce: found a tensor on the meta device"},
      {[&](World& world) { world.all_reduce(sparse(), Reduce::sum); }, "all-reduce: found a sparse tensor"},
      {[&](World& world) { world.all_reduce(expanded(), Reduce::sum); }, "all-reduce: found an expanded tensor"},
      {[](World& world) { static_cast<void>(world.all_gather(at::Tensor())); },
       "all_gather: found an undefined tensor"},
      {[&](World& world) { static_cast<void>(world.all_gather(meta())); }, "all_gather: found a tensor on the meta"},
      {[&](World& world) { static_cast<void>(world.all_gather(sparse())); }, "all_gather: found a sparse tensor"},
  };
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      for (const Case& c : cases) {
        const auto error = error_of<Error>([&] { c.call(world); });
        EXPECT_EQ(error.exit_code(), ExitCode::failed) << c.text;
        EXPECT_THAT(error.what(), StartsWith(c.text));
      }
      EXPECT_EQ(world.all_gather(expanded()).size(0), 4 * world.size()) << "its result is a new tensor";
      world.barrier("still usable");
    });
  }
}

// LibTorch refuses to store the result, after the ranks have met.
TEST(World, PassesOnAnErrorThatIsNotAboutOtherRanks) {
  thread_world(2, [](World& world) {
    at::Tensor columns;
    {
      const c10::InferenceMode inference;
      columns = at::ones({4, 3}).t();
    }
    EXPECT_THAT([&] { world.all_reduce(columns, Reduce::sum); },
                ThrowsMessage<c10::Error>(HasSubstr("inference tensor")));
    world.barrier("still usable");
  });
}

TEST_P(WorldOf, MovesHostValuesOnTheControlPlane) {
  thread_world(GetParam(), [](World& world) {
    ASSERT_TRUE(world.any(world.rank() == 1));
    ASSERT_FALSE(world.any(false));
    ASSERT_FALSE(world.all(world.rank() != 1));
    ASSERT_TRUE(world.all(true));
    const auto all = world.gather(std::string(static_cast<std::size_t>(world.rank() * 1000), 'x'));
    for (int rank = 0; rank < world.size(); ++rank) {
      ASSERT_EQ(all[static_cast<std::size_t>(rank)].size(), static_cast<std::size_t>(rank * 1000));
    }
    ASSERT_EQ(world.broadcast_bytes(world.rank() == 1 ? "from one" : "", 1), "from one");
    ASSERT_EQ(world.broadcast_bytes("", 0), "");
  });
}

TEST(GatherValues, KeepsListsOfDifferentLengths) {
  thread_world(3, [](World& world) {
    const std::vector<double> mine(static_cast<std::size_t>(world.rank()), 0.5 * world.rank());
    EXPECT_THAT(gather_values(world, mine),
                ElementsAre(std::vector<double>{}, std::vector<double>{0.5}, std::vector<double>{1, 1}));
    EXPECT_THAT(gather_value(world, world.rank()), ElementsAre(0, 1, 2));
  });
  World alone = World::single(c10::Device(c10::kCPU));
  EXPECT_THAT(gather_value(alone, 7), ElementsAre(7));
}

TEST_P(WorldOf, TakesTurns) {
  std::atomic<int> done{0};
  thread_world(GetParam(), [&](World& world) {
    world.main_first("prepare", [&] {
      if (world.is_main()) {
        EXPECT_EQ(done.load(), 0);
      } else {
        EXPECT_GE(done.load(), 1);
      }
      ++done;
    });
    EXPECT_GE(done.load(), world.size());  // nobody goes on before everybody is done
    world.one_by_one("count", [&] { EXPECT_EQ(done.fetch_add(1), world.size() + world.rank()); });
  });
}

// Only the main rank gives infos.
TEST_P(WorldOf, TellsTheLogOfEachRankWhatIsLeft) {
  thread_world(GetParam(), [](World& world) {
    std::vector<LogLevel> levels;
    const LogScope scope([&](LogLevel level, std::string_view) { levels.push_back(level); });
    WorldAccess::tell_what_is_left(world, "step 4 is saved");
    EXPECT_THAT(levels, ElementsAre(world.is_main() ? LogLevel::info : LogLevel::warning));
  });
}

TEST_P(WorldOf, TellsEveryRankWhatFailedOnOne) {
  std::atomic<int> told{0};
  thread_world(GetParam(), [&](World& world) {
    const int bad = world.size() - 1;
    try {
      world.main_first("prepare", [&] {
        if (world.rank() != bad) {
          return;
        }
        try {
          throw std::runtime_error("quota");
        } catch (...) {
          std::throw_with_nested(std::runtime_error("no space"));
        }
      });
      FAIL() << "rank " << world.rank() << " heard nothing";
    } catch (const CommError& error) {
      EXPECT_NE(world.rank(), bad);
      EXPECT_THAT(error.what(), HasSubstr("prepare failed on rank"));
      EXPECT_THAT(error.what(), HasSubstr("std::runtime_error: no space: caused by std::runtime_error: quota"));
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(world.rank(), bad) << error.what();
    }
    ++told;
    world.barrier("still usable");
  });
  EXPECT_EQ(told.load(), GetParam());
}

TEST_P(WorldOf, ThrowsTheSameErrorOnEveryRank) {
  thread_world(GetParam(), [&](World& world) {
    const auto work = [&] {
      if (world.rank() == world.size() - 1) {
        throw IoError("/data is full", "make room", ENOSPC);
      }
    };
    for (const auto& turns : {&World::main_first, &World::one_by_one}) {
      const auto error = error_of<IoError>([&] { (world.*turns)("prepare", work); });
      EXPECT_STREQ(error.what(), "/data is full");
      EXPECT_EQ(error.hint(), "make room");
      EXPECT_EQ(error.number(), ENOSPC);
    }
  });
}

// Code of others may throw what is no std::exception. The other ranks must not wait for the rank that did.
TEST_P(WorldOf, TellsEveryRankOfAnExceptionOfAnyType) {
  thread_world(GetParam(), [&](World& world) {
    const int bad = world.size() - 1;
    const auto work = [&] {
      if (world.rank() == bad) {
        throw std::string("no space");
      }
      return std::string();
    };
    using Call = std::function<void()>;
    for (const Call& call :
         {Call([&] { world.main_first("prepare", work); }), Call([&] { world.one_by_one("prepare", work); }),
          Call([&] { run_on(world, "prepare", world.rank() == bad, work); })}) {
      try {
        call();
        FAIL() << "rank " << world.rank() << " heard nothing";
      } catch (const std::string& text) {
        EXPECT_EQ(world.rank(), bad);
        EXPECT_EQ(text, "no space");
      } catch (const CommError& error) {
        EXPECT_NE(world.rank(), bad);
        EXPECT_EQ(error.what(), fmt::format("prepare failed on rank {}: std::string: no space", bad));
      }
    }
    world.barrier("still usable");
  });
}

TEST(World, NamesTheRankThatDidNotCome) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<bool> named{false};
  thread_world(
      3,
      [&](World& world) {
        world.barrier("first");
        if (world.rank() == 2) {
          // Stays alive but never comes: it leaves when the others have given up.
          world.store("done")->get("done", std::chrono::seconds(30));
          return;
        }
        const auto error = error_of<CommError>([&] { world.barrier("second"); });
        EXPECT_THAT(error.what(), HasSubstr("barrier 'second' failed"));
        EXPECT_THAT(error.what(), HasSubstr("missing ranks: 2 (last seen at 'barrier 'first''"));
        named = true;
        if (world.rank() == 0) {
          world.store("done")->set("done", "1");
        }
      },
      std::chrono::milliseconds(800));
  EXPECT_TRUE(named.load());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

// A callback may take longer than the timeout of collectives.
TEST(World, MeetsWithoutALimitOfTime) {
  constexpr std::chrono::milliseconds kTimeout{300};
  const auto late_for = [&](const std::function<bool(World&)>& agree) {
    thread_world(
        2,
        [&](World& world) {
          world.barrier("all are there");
          if (world.rank() == 1) {
            std::this_thread::sleep_for(3 * kTimeout);  // what is tested
          }
          ASSERT_TRUE(agree(world));
        },
        kTimeout);
  };
  late_for([](World& world) { return WorldAccess::any_without_timeout(world, world.rank() == 1); });
  EXPECT_THROW(late_for([](World& world) { return world.any(world.rank() == 1); }), CommError);
}

TEST(World, GivesAThreadAChannelOfItsOwn) {
  thread_world(2, [](World& world) {
    World side = world.channel("saver");
    std::thread background([&] {
      for (int i = 0; i < 50; ++i) {
        const auto tensor = at::ones({10});
        side.all_reduce(tensor, Reduce::sum);
        ASSERT_EQ(tensor[0].item<float>(), 2);
      }
    });
    for (int i = 0; i < 50; ++i) {
      const auto tensor = at::full({10}, 2.0F);
      world.all_reduce(tensor, Reduce::sum);
      ASSERT_EQ(tensor[0].item<float>(), 4);
    }
    background.join();
  });
}

TEST(World, SharesSmallValues) {
  thread_world(2, [](World& world) {
    const auto store = world.store("mine");
    if (world.is_main()) {
      store->set("answer", "42");
    }
    ASSERT_EQ(store->get("answer", std::chrono::seconds(10)), "42");
    ASSERT_FALSE(store->check("nothing"));
    store->add("sum", world.rank() + 1);
    world.barrier("added");
    ASSERT_EQ(store->add("sum", 0), 3);
    ASSERT_THROW(store->get("nothing", std::chrono::milliseconds(10)), CommError);
  });
}

TEST(World, ReducesNumbersOfTheHost) {
  for (const int ranks : {1, 3}) {
    thread_world(ranks, [&](World& world) {
      const double mine = world.rank() + 0.5;
      EXPECT_EQ(world.all_reduce(mine, Reduce::min), 0.5);
      EXPECT_EQ(world.all_reduce(mine, Reduce::max), ranks - 0.5);
      EXPECT_EQ(world.all_reduce(mine, Reduce::sum), 0.5 * ranks * ranks);
      EXPECT_EQ(world.all_reduce(mine, Reduce::mean), 0.5 * ranks);
      const double nan = std::numeric_limits<double>::quiet_NaN();
      EXPECT_TRUE(std::isnan(world.all_reduce(world.is_main() ? nan : 1, Reduce::max)));
    });
  }
}

TEST(World, GathersIntoANewTensorWithAnyNumberOfRanks) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const at::Tensor mine = at::ones({2});
      world.all_gather(mine).add_(1);
      EXPECT_EQ(mine.sum().item<double>(), 2);
      EXPECT_THAT(message_of<Error>([&] { static_cast<void>(world.all_gather(at::ones({}))); }),
                  HasSubstr("without dimensions"));
    });
  }
}

TEST(World, SaysWhichRankGathersAnotherTensor) {
  thread_world(3, [](World& world) {
    const at::Tensor mine = world.rank() == 2 ? at::ones({2, 4}) : at::ones({2, 3});
    const CommError error = error_of<CommError>([&] { static_cast<void>(world.all_gather(mine)); });
    EXPECT_THAT(error.what(), HasSubstr("rank 2 has a tensor Float of [*, 4], 2 of 3 ranks have Float of [*, 3]"));
    EXPECT_EQ(error.exit_code(), ExitCode::disagree);
  });
}

TEST_P(WorldOf, AveragesHalvesWhoseSumIsTooLarge) {
  thread_world(GetParam(), [](World& world) {
    const at::Tensor values = at::full({3}, 40000, at::kHalf);
    world.all_reduce(values, Reduce::mean);
    EXPECT_LE((values - 40000).abs().max().item<double>(), 64) << values;
  });
}

TEST(World, GathersWithoutAGraph) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks,
                 [](World& world) { EXPECT_FALSE(world.all_gather(at::ones({2}).requires_grad_()).requires_grad()); });
  }
}

TEST_P(WorldOf, HasOneSizeForGatheredTensorsOfDifferentLengths) {
  thread_world(GetParam(), [](World& world) {
    static_cast<void>(world.all_gather(at::ones({world.rank() + 1, 4})));
    EXPECT_EQ(view(WorldAccess::progress(world)).bytes, std::int64_t{world.size()} * 4 * 4);
  });
}

TEST_P(WorldOf, KnowsWhetherAllRanksFailed) {
  for (int missing = -1; missing < GetParam(); ++missing) {  // -1: none
    thread_world(GetParam(), [&](World& world) {
      if (world.rank() != missing) {
        EXPECT_EQ(WorldAccess::is_common_failure(world, 5), missing < 0);
      }
      world.barrier("it has asked");
      if (world.rank() == missing) {
        EXPECT_FALSE(WorldAccess::is_common_failure(world, 5)) << "too late, and after another collective";
      }
    });
  }
}

TEST_P(WorldOf, DoesNotTakeFailuresOfDifferentPlacesForOne) {
  thread_world(GetParam(), [](World& world) {
    const auto is_last = world.rank() == world.size() - 1;
    EXPECT_FALSE(WorldAccess::is_common_failure(world, is_last ? 6 : 5)) << "another step";
    if (is_last) {  // it has called a broadcast whose result the others have not taken yet
      WorldAccess::progress(world).begin(Operation::broadcast, 1);
      WorldAccess::progress(world).end();
    }
    EXPECT_FALSE(WorldAccess::is_common_failure(world, 7)) << "another collective";
  });
}

TEST_P(WorldOf, TellsAllRanksTheSameOfAFailure) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> yes = 0;
    thread_world(GetParam(), [&](World& world) {
      if (world.rank() == 0) {  // it comes when the others stop to wait: there is no event at that moment
        std::this_thread::sleep_for(deadlines::kCommonFailure - std::chrono::milliseconds(2) +
                                    std::chrono::milliseconds(round));
      }
      yes += WorldAccess::is_common_failure(world, 1) ? 1 : 0;
    });
    EXPECT_TRUE(yes == 0 || yes == GetParam()) << yes;
  }
}

}  // namespace
}  // namespace lockstep
