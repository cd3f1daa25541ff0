// N ranks give the same losses as one rank and use every sample exactly once.
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "support/larger_or_nan.h"
#include "support/runs.h"

namespace lockstep {
namespace {

class Equivalence : public testing::Test {
 protected:
  // With SGD: Adam would not notice a common factor of the gradients.
  std::filesystem::path train(const std::string& name, const std::vector<std::string>& more) {
    const auto run = dir_.path() / name;
    std::filesystem::create_directories(dir_.path() / (name + "_ledger"));
    std::vector<std::string> flags{"--dropout",
                                   "0",
                                   "--max_steps",
                                   "100",
                                   "--max_epochs",
                                   "0",
                                   "--global_batch_size",
                                   "12",
                                   "--optimizer",
                                   "sgd",
                                   "--fp64",
                                   "true",
                                   "--ledger",
                                   (dir_.path() / (name + "_ledger")).string()};
    flags.insert(flags.end(), more.begin(), more.end());
    const auto result = run_program(command(TRAIN_PROGRAM, run, flags));
    EXPECT_EQ(result.code, 0) << result.err;
    return run;
  }

  /// Samples of one step over all ranks, in the order of the global batch.
  std::map<std::int64_t, std::vector<std::int64_t>> ledger(const std::string& name, int ranks) {
    std::map<std::int64_t, std::vector<std::int64_t>> steps;
    for (int rank = 0; rank < ranks; ++rank) {
      std::ifstream in(dir_.path() / (name + "_ledger") / ("rank_" + std::to_string(rank) + ".txt"));
      for (std::string line; std::getline(in, line);) {
        std::istringstream words(line);
        std::int64_t step = 0;
        char colon = 0;
        words >> step >> colon;
        for (std::int64_t id = 0; words >> id;) {
          steps[step].push_back(id);
        }
      }
    }
    return steps;
  }

  static double worst_difference(const std::filesystem::path& a, const std::filesystem::path& b) {
    const auto left = metric(a, "loss");
    const auto right = metric(b, "loss");
    EXPECT_EQ(left.size(), 100U);
    EXPECT_EQ(right.size(), 100U);
    double worst = 0;
    for (const auto& [step, loss] : left) {
      const auto found = right.find(step);
      if (found == right.end()) {
        return 1e9;
      }
      worst = larger_or_nan(worst, std::abs(found->second - loss) / std::abs(loss));
    }
    return worst;
  }

  TempDir dir_;
};

TEST_F(Equivalence, OneTwoAndFourRanksLearnTheSame) {
  const auto one = train("one", {});
  const auto two = train("two", {"--nprocs", "2"});
  const auto four = train("four", {"--nprocs", "4", "--batch_size", "2"});
  EXPECT_LE(worst_difference(one, two), 1e-10);
  EXPECT_LE(worst_difference(one, four), 1e-10);
  for (const auto& [name, ranks] : {std::pair("gloo_two", "2"), std::pair("gloo_three", "3")}) {
    EXPECT_LE(worst_difference(one, train(name, {"--nprocs", ranks, "--backend", "gloo"})), 1e-10) << name;
  }
  // Control: a different seed gives a different training.
  const auto other = train("other", {"--nprocs", "2", "--seed", "7"});
  EXPECT_GT(worst_difference(one, other), 1e-2);

  const auto expected = ledger("one", 1);
  EXPECT_EQ(ledger("two", 2), expected);
  EXPECT_EQ(ledger("four", 4), expected);
  // 103 samples are eight steps of 12 and one of 7: each epoch has every sample once.
  std::set<std::int64_t> seen;
  for (std::int64_t step = 0; step < 99; ++step) {
    for (const auto id : expected.at(step)) {
      EXPECT_TRUE(seen.insert(id).second) << "sample " << id << " again in step " << step;
    }
    if (step % 9 == 8) {
      EXPECT_EQ(seen.size(), 103U);
      seen.clear();
    }
  }
}

TEST_F(Equivalence, IsThatOfTheGlobalBatchAndNotOfTheBatchOfARank) {
  const std::vector<std::string> two_ranks{"--nprocs", "2", "--batch_size", "12"};
  const auto one = train("one", {});
  EXPECT_LE(worst_difference(one, train("same", two_ranks)), 1e-10);
  EXPECT_GT(worst_difference(one, train("larger", with(two_ranks, {"--global_batch_size", "0"}))), 1e-2);
}

TEST_F(Equivalence, AccumulationDoesNotChangeWhatIsLearned) {
  const auto whole = train("whole", {"--batch_size", "12"});
  const auto parts = train("parts", {"--batch_size", "5", "--nprocs", "2"});
  EXPECT_LE(worst_difference(whole, parts), 1e-10);
}

}  // namespace
}  // namespace lockstep
