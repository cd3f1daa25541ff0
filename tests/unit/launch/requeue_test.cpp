#include "launch/requeue.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/message_of.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Values = std::map<std::string, std::string, std::less<>>;

TEST(Requeue, NamesTheJobOrTheTaskOfAnArray) {
  EXPECT_THAT(requeue_command(Variables(Values{})), IsEmpty());
  EXPECT_THAT(requeue_command(Variables(Values{{"SLURM_JOB_ID", "4711"}})), ElementsAre("scontrol", "requeue", "4711"));
  EXPECT_THAT(requeue_command(Variables(
                  Values{{"SLURM_JOB_ID", "4714"}, {"SLURM_ARRAY_JOB_ID", "4711"}, {"SLURM_ARRAY_TASK_ID", "3"}})),
              ElementsAre("scontrol", "requeue", "4711_3"));
}

TEST(Requeue, RefusesWhatIsNoJobNumber) {
  for (const std::string& hostile :
       std::vector<std::string>{"", "1; touch x", "$(id)", "-1", "0x10", "4711_3", std::string(4096, '9')}) {
    EXPECT_THROW(requeue_command(Variables(Values{{"SLURM_JOB_ID", hostile}})), ConfigError) << hostile;
  }
}

// As Slurm 22.05 printed it.
TEST(Requeue, IsForJobsThatRunOrWhoseTimeIsOver) {
  EXPECT_TRUE(may_requeue("JobId=3 JobName=job\n   JobState=RUNNING Reason=None Dependency=(null)\n"));
  EXPECT_TRUE(may_requeue("JobId=6 JobName=job\n   JobState=COMPLETING Reason=TimeLimit Dependency=(null)\n"));
  EXPECT_TRUE(may_requeue("")) << "an unknown answer: as asked";
  EXPECT_FALSE(may_requeue("JobId=5 JobName=job\n   JobState=COMPLETING Reason=None Dependency=(null)\n")) << "scancel";
  EXPECT_FALSE(may_requeue("JobId=5 JobName=job\n   JobState=PENDING Reason=BeginTime Dependency=(null)\n"));
}

TEST(Requeue, LeavesACancelledJobAlone) {
  const TempDir dir;
  const std::string program = dir.path() / "scontrol";
  std::ofstream(program)
      << "#!/bin/sh\n[ \"$1 $2 $3\" = 'show job 4711' ] || exit 3\necho 'JobState=COMPLETING Reason=None'\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_FALSE(run_requeue({program, "requeue", "4711"}, {}));
}

TEST(Requeue, RunsTheCommandWithoutAShellAndReportsItsFailure) {
  const TempDir dir;
  const std::string program = dir.path() / "scontrol";
  std::ofstream(program)
      << "#!/bin/sh\n[ $1 = show ] && echo JobState=RUNNING && exit 0\nprintf '%s\\n' \"$#\" \"$@\" > '"
      << (dir.path() / "seen").string() << "'\nexit 0\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_TRUE(run_requeue({program, "requeue", "0"}, read_environment()));
  std::ifstream seen(dir.path() / "seen");
  std::string count, first, second;
  seen >> count >> first >> second;
  EXPECT_EQ(count + first + second, "2requeue0");

  std::ofstream(program) << "#!/bin/sh\nexit 3\n";
  EXPECT_THAT(message_of<LaunchError>([&] {
                run_requeue({program, "requeue", "4711"}, {});
              }),
              HasSubstr("requeue 4711 failed with code 3"));
  EXPECT_THROW(run_requeue({dir.path() / "nothing", "requeue", "1"}, {}), LaunchError);
}

}  // namespace
}  // namespace lockstep
