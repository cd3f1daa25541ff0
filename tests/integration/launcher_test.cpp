// The same program under torchrun: the same bytes as under our own launcher.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(Torchrun, EndsWithTheSameWeights) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  const std::vector<std::string> flags{"--max_epochs", "2", "--data.workers", "1"};
  auto own = command(TRAIN_PROGRAM, dir.path() / "own", flags);
  own.insert(own.end(), {"--nprocs", "2"});
  ASSERT_EQ(run_program(own).code, 0);

  std::vector<std::string> launched{torchrun, "--standalone", "--no-python", "--nproc-per-node", "2"};
  const auto program = command(TRAIN_PROGRAM, dir.path() / "torchrun", flags);
  launched.insert(launched.end(), program.begin(), program.end());
  // The same number of threads as our launcher gives: sums depend on it.
  const auto result = run_program(launched, {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("torchrun"));
  EXPECT_EQ(final_state(dir.path() / "own"), final_state(dir.path() / "torchrun"));
}

TEST(Environment, PartialVariablesAreRefused) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {}), {{"RANK", "1"}, {"LOCAL_RANK", "x"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(result.err, HasSubstr("LOCAL_RANK"));
}

TEST(Environment, ContradictingRankCountIsRefused) {
  const TempDir dir;
  const auto result =
      run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--nprocs", "3"}), {{"RANK", "0"},
                                                                                  {"WORLD_SIZE", "2"},
                                                                                  {"LOCAL_RANK", "0"},
                                                                                  {"LOCAL_WORLD_SIZE", "2"},
                                                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                                                  {"MASTER_PORT", free_port()}});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("3"));
  EXPECT_THAT(result.err, HasSubstr("WORLD_SIZE"));
}

TEST(Environment, MissingRanksAreNamed) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--dist.init_timeout_s", "1"}),
                                  {{"RANK", "0"},
                                   {"WORLD_SIZE", "3"},
                                   {"LOCAL_RANK", "0"},
                                   {"LOCAL_WORLD_SIZE", "3"},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", free_port()}});
  EXPECT_EQ(result.code, 124) << result.err;
  EXPECT_THAT(result.err, HasSubstr("2 of 3 ranks did not start"));
  EXPECT_THAT(result.err, HasSubstr("1, 2"));
}

}  // namespace
}  // namespace lockstep
