// One rank fails: its own message, the right exit code, everybody gone.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/variables.h>

#include "base/text.h"
#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct Failure {
  std::string how;
  int code;
  std::string text;
};
std::ostream& operator<<(std::ostream& out, const Failure& failure) { return out << failure.how; }

class OneRankFails : public testing::TestWithParam<std::tuple<Failure, int>> {};

TEST_P(OneRankFails, AndIsBlamed) {
  const auto& [failure, rank] = GetParam();
  const TempDir dir;
  const auto result = run_program(
      command(TRAIN_PROGRAM, dir.path() / "run",
              {"--nprocs", "3", "--fail", failure.how, "--fail_rank", std::to_string(rank), "--fail_step", "5"}));
  EXPECT_EQ(result.code, failure.code) << result.err;
  EXPECT_LT(result.seconds, 15);
  const auto last = result.err.rfind("rank " + std::to_string(rank) + " ");
  ASSERT_NE(last, std::string::npos) << result.err;
  EXPECT_THAT(result.err.substr(last), HasSubstr(failure.text));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, OneRankFails,
    testing::Combine(testing::Values(Failure{"throw", 1, "cannot decode sample 4411"},
                                     Failure{"segv", 139, "signal 11"}, Failure{"abort", 134, "signal 6"},
                                     Failure{"kill", 137, "signal 9"}, Failure{"exit0", 1, "code 0"},
                                     Failure{"exit7", 1, "code 7"}, Failure{"int", 1, "unknown exception of type int"},
                                     Failure{"noexcept", 134, "std::terminate after std::runtime_error"},
                                     Failure{"thread", 134, "std::terminate after std::runtime_error"},
                                     Failure{"terminate", 134, "std::terminate after no exception"}),
                     testing::Values(0, 2)),
    [](const auto& test) {
      return std::get<0>(test.param).how + "_on_rank_" + std::to_string(std::get<1>(test.param));
    });

TEST(OneRank, CrashesWithTheNamesOfItsFunctions) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--fail", "segv", "--fail_step", "3"}));
  EXPECT_EQ(result.code, 139);
  EXPECT_THAT(result.err, HasSubstr("crashed"));
  for (const char* function : {"fail+0x", "lockstep::Trainer::fit", "lockstep::run"}) {
    EXPECT_THAT(result.err, HasSubstr(function));
  }
}

TEST(OneRank, FailsWithItsOwnCodeAndText) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--fail_step", "3"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot decode sample 4411"));
}

TEST(OneRank, StopsOnCtrlCAndOnTermination) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 75}}) {
    const TempDir dir;
    Process process(command(TRAIN_PROGRAM, dir.path() / "run", {"--max_epochs", "10000"}));
    ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
    process.signal(signal);
    EXPECT_EQ(process.wait().code, code);
    EXPECT_FALSE(newest_checkpoint(dir.path() / "run").empty());
  }
}

// A terminal sends Ctrl-C to a whole process group: ranks have their own, so that only the supervisor gets it.
TEST(Launch, GivesEveryRankAProcessGroupOfItsOwn) {
  const TempDir dir;
  Process process(command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "2", "--max_epochs", "10000"}));
  ASSERT_TRUE(process.wait_for("step 3 ")) << process.err();
  for (const auto rank : Process::ranks_of(process.pid())) {
    EXPECT_EQ(getpgid(rank), rank) << "a rank shares its process group with another process";
  }
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

}  // namespace
}  // namespace lockstep
