#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/environment/launch_name.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using Values = std::map<std::string, std::string, std::less<>>;

LaunchName name_in(const Values& values, const std::optional<Identity>& identity = std::nullopt) {
  return launch_name(Variables(values), identity);
}

TEST(LaunchName, OfAProgramThatNobodyRestartsIsItsOwn) {
  const LaunchName one = name_in({});
  EXPECT_FALSE(one.id.empty());
  EXPECT_NE(one.id, name_in({}).id);
  EXPECT_EQ(one.job, "");
}

TEST(LaunchName, OfOurLauncherIsTheInnermostOne) {
  const Identity ours{.launcher = "lockstep", .control_fd = 3};
  EXPECT_EQ(name_in({{"LOCKSTEP_LAUNCH_ID", "7f3a"}}, ours).id, "7f3a");
  EXPECT_EQ(name_in({{"LOCKSTEP_LAUNCH_ID", "7f3a/91bc"}}, ours).id, "91bc");
}

// Static rendezvous has one run id, "none", for every launch.
TEST(LaunchName, OfTorchrunIsItsAgent) {
  const Identity rank{.launcher = "torchrun", .run_id = "none"};
  const LaunchName name = name_in({}, rank);
  EXPECT_EQ(name.id, name_in({{"TORCHELASTIC_RESTART_COUNT", "1"}}, rank).id);
  EXPECT_THAT(name.id, HasSubstr(" " + std::to_string(getppid()) + " "));
  EXPECT_NE(name.id.back(), ' ') << "it has the start time of the agent";
}

TEST(LaunchName, OfASlurmJobCountsHowOftenItWasQueuedAgain) {
  const LaunchName first = name_in({{"SLURM_JOB_ID", "77"}});
  const LaunchName again = name_in({{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_TRUE(same_launch(first, again));
  EXPECT_FALSE(same_launch(again, first));
  EXPECT_FALSE(same_launch(first, name_in({{"SLURM_JOB_ID", "77"}})));
  const Values step{{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "1"}, {"SLURM_RESTART_COUNT", "1"}};
  EXPECT_FALSE(same_launch(first, name_in(step)));
  EXPECT_THAT(
      [] {
        name_in({{"SLURM_JOB_ID", "7"}, {"SLURM_RESTART_COUNT", "x"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("SLURM_RESTART_COUNT=\"x\"")));
}

}  // namespace
}  // namespace lockstep
