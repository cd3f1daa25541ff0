// Who may train in a run directory, and what --fresh does with an existing run.
#include "storage/run_directory.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "base/io_error.h"
#include "support/forwarding_file_system.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/working_directory.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using Path = std::filesystem::path;

const LaunchName kFirst{.id = "first"};
const LaunchName kSecond{.id = "second"};

RunRecord record(const LaunchName& launch, const std::string& program = "train") {
  return {.id = "7f3a", .program = program, .model = "m", .launches = 3, .launch = launch};
}

RunFound found(const RunRecord& record) { return {.directory = "runs/a", .has_run = true, .json = to_json(record)}; }

// --- decisions ---

TEST(RunRecord, IsReadAsItWasWritten) {
  const LaunchName launch{.id = "pid \"7\"", .job = "cluster/77/0", .requeues = 2};
  const RunRecord read = parse_run_record(to_json(record(launch)), "run.json");
  EXPECT_EQ(read.id, "7f3a");
  EXPECT_EQ(read.program, "train");
  EXPECT_EQ(read.model, "m");
  EXPECT_EQ(read.launches, 3);
  EXPECT_EQ(read.launch.id, launch.id);
  EXPECT_EQ(read.launch.job, launch.job);
  EXPECT_EQ(read.launch.requeues, 2);
}

TEST(RunRecord, IsRejectedIfDamaged) {
  for (const std::string text : {"{", "[]", "{}", R"({"format": 2})", R"({"format": 1, "id": 7})"}) {
    EXPECT_THAT([&] { parse_run_record(text, "runs/a/run.json"); },
                ThrowsMessage<CheckpointError>(HasSubstr("runs/a/run.json: ")));
  }
}

TEST(RunRecord, NamesTheKeyThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"format": 1, "id": "a", "program": "", "model": "", "launches": "x", "launch": {}})",
       "found \"x\", expected \"launches\" to be an integer"},
      {R"({"format": 1, "id": "a", "program": "", "model": "", "launches": 1,
           "launch": {"id": "", "job": "", "requeues": null}})",
       "found null, expected \"requeues\" to be an integer"},
      {R"({"format": 1})", "\"launch\" is missing"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT([&] { parse_run_record(text, "a/run.json"); },
                ThrowsMessage<CheckpointError>("a/run.json: " + std::string(expected)));
  }
}

TEST(RunRecord, OfANewerVersionIsNotToBeDeleted) {
  const auto hint_for = [](const std::string& text) {
    try {
      parse_run_record(text, "run.json");
    } catch (const CheckpointError& error) {
      return error.hint();
    }
    return std::string();
  };
  EXPECT_EQ(hint_for(R"({"format": 2})"),
            "continue the run with the version of lockstep that wrote it, or start over with --fresh");
  EXPECT_THAT(hint_for(R"({"format": 1})"), HasSubstr("delete it")) << "the control";
}

TEST(RunDecision, AnEmptyDirectoryGetsANewRun) {
  const RunDecision decision = decide_run({.program = "train", .launch = kFirst}, {{.directory = "runs/a"}});
  EXPECT_FALSE(decision.set_aside);
  EXPECT_FALSE(decision.trained_before);
  EXPECT_EQ(decision.record.program, "train");
  EXPECT_EQ(decision.record.launches, 1);
  EXPECT_EQ(decision.record.launch.id, "first");
  EXPECT_FALSE(decision.record.id.empty());
}

TEST(RunDecision, AnotherLaunchContinuesTheRunAndTheSameLaunchRecognizesIt) {
  const RunDecision other = decide_run({.program = "train", .launch = kSecond}, {found(record(kFirst))});
  EXPECT_EQ(other.record.id, "7f3a");
  EXPECT_EQ(other.record.launches, 4);
  EXPECT_FALSE(other.trained_before);
  const RunDecision same = decide_run({.program = "train", .launch = kFirst}, {found(record(kFirst))});
  EXPECT_EQ(same.record.launches, 3);
  EXPECT_TRUE(same.trained_before);
}

TEST(RunDecision, AnotherProgramIsRejected) {
  const std::string refused =
      message_of([] { decide_run({.program = "sample", .launch = kFirst}, {found(record(kFirst))}); });
  EXPECT_THAT(refused, HasSubstr("runs/a contains a run of the program train, this program is sample"));
  EXPECT_THAT(refused, HasSubstr("--init_weights DIRECTORY takes only its weights"));
  // The run of an embedded library has no program, and neither has a run of an older version.
  EXPECT_NO_THROW(decide_run({.launch = kSecond}, {found(record(kFirst))}));
  EXPECT_EQ(decide_run({.program = "train", .launch = kSecond}, {found(record(kFirst, ""))}).record.program, "train");
}

TEST(RunDecision, FreshRenamesTheRunOfAnotherLaunch) {
  const RunDecision decision =
      decide_run({.fresh = true, .program = "sample", .launch = kSecond}, {found(record(kFirst))});
  EXPECT_TRUE(decision.set_aside);
  EXPECT_NE(decision.record.id, "7f3a");
  EXPECT_EQ(decision.record.launches, 1);
  const RunFound damaged{.directory = "runs/a", .has_run = true, .json = "{"};
  EXPECT_TRUE(decide_run({.fresh = true, .launch = kSecond}, {damaged}).set_aside);
}

TEST(RunDecision, FreshContinuesTheRunOfItsOwnLaunch) {
  const RunDecision decision =
      decide_run({.fresh = true, .program = "train", .launch = kFirst}, {found(record(kFirst))});
  EXPECT_FALSE(decision.set_aside);
  EXPECT_TRUE(decision.trained_before);
  EXPECT_EQ(decision.record.id, "7f3a");
}

TEST(RunDecision, FreshContinuesTheRunOfItsLaunchOnAnotherNode) {
  RunRecord old = record(kSecond);
  old.id = "91bc";
  const RunFound damaged{.directory = "runs/a", .has_run = true, .json = "{"};
  for (const RunFound& first : {RunFound{.directory = "runs/a"}, found(old), damaged}) {
    const RunDecision decision =
        decide_run({.fresh = true, .program = "train", .launch = kFirst}, {first, found(record(kFirst))});
    EXPECT_FALSE(decision.set_aside);
    EXPECT_TRUE(decision.trained_before);
    EXPECT_EQ(decision.record.id, "7f3a");
  }
}

// A script that runs the program twice has one job and two launches; a requeue runs it again under a larger count.
TEST(RunDecision, FreshDistinguishesARequeueFromASecondLaunch) {
  const auto in_job = [](const char* id, int requeues) {
    return LaunchName{.id = id, .job = "cluster/77/", .requeues = requeues};
  };
  const auto sets_aside = [&](const LaunchName& before, const LaunchName& now) {
    return decide_run({.fresh = true, .program = "train", .launch = now}, {found(record(before))}).set_aside;
  };
  EXPECT_TRUE(sets_aside(in_job("a", 0), in_job("b", 0)));
  EXPECT_FALSE(sets_aside(in_job("a", 0), in_job("b", 1)));
  EXPECT_FALSE(sets_aside(in_job("b", 1), in_job("b", 1))) << "a restart in the job that was queued again";
  EXPECT_TRUE(sets_aside(in_job("b", 1), in_job("c", 1)));
  EXPECT_TRUE(sets_aside(in_job("a", 0), {.id = "b", .job = "cluster/78/", .requeues = 1}));
}

TEST(RunDecision, NodesWithDifferentRunsAreRejected) {
  RunRecord other = record(kFirst);
  other.id = "91bc";
  const std::vector<RunFound> two{found(record(kFirst)), {.directory = "/b", .has_run = true, .json = to_json(other)}};
  EXPECT_THAT([&] { decide_run({.launch = kSecond}, two); },
              ThrowsMessage<CheckpointError>(HasSubstr("runs/a and /b contain different runs (7f3a and 91bc)")));
  // A replaced node has no files; the run is that of the other node.
  EXPECT_EQ(decide_run({.launch = kSecond}, {{.directory = "/b"}, found(record(kFirst))}).record.id, "7f3a");
}

// --- the directory ---

class RunDirectoryTest : public testing::Test {
 protected:
  FileSystem& fs_ = real_file_system();
  TempDir dir_;
  Path run_ = dir_.path() / "run";

  void make_run(const std::string& id) {
    RunDirectory directory(fs_, run_, kFirst);
    RunRecord made = record(kFirst);
    made.id = id;
    directory.write(made);
  }
  static std::string id_in(const Path& run) {
    return parse_run_record(read_file(real_file_system(), run / "run.json"), "").id;
  }
};

TEST_F(RunDirectoryTest, HasOneOwner) {
  const auto first = std::make_unique<RunDirectory>(fs_, run_, kFirst);
  EXPECT_EQ(try_lock_run(fs_, run_), nullptr);
  EXPECT_THAT([&] { RunDirectory(fs_, run_, kSecond); },
              ThrowsMessage<CheckpointError>(HasSubstr("is in use by pid " + std::to_string(::getpid()) + " on ")));
}

TEST_F(RunDirectoryTest, IsFreeWhenItsOwnerIsGone) {
  { const RunDirectory first(fs_, run_, kFirst); }
  EXPECT_NE(try_lock_run(fs_, run_), nullptr);
  EXPECT_NO_THROW(RunDirectory(fs_, run_, kSecond));
}

// A child that the program forked and left behind has the lock, too.
TEST_F(RunDirectoryTest, SaysWhoMayHoldItWhenItsOwnerIsGone) {
  const RunDirectory first(fs_, run_, kFirst);
  EXPECT_THAT(message_of<CheckpointError>([&] { RunDirectory(fs_, run_, kSecond); }),
              HasSubstr("run/.lock open: fuser "));
}

// A hand-written loop has only a CheckpointStore.
TEST_F(RunDirectoryTest, RespectsTheLockOfTheCheckpoints) {
  fs_.create_directories(run_ / "checkpoints");
  std::string owner;
  const auto store = fs_.try_lock(run_ / "checkpoints" / ".lock", "pid 71 on far", owner);
  EXPECT_EQ(try_lock_run(fs_, run_), nullptr);
  EXPECT_THAT([&] { RunDirectory(fs_, run_, kSecond); },
              ThrowsMessage<CheckpointError>(HasSubstr("in use by pid 71 on far")));
}

TEST_F(RunDirectoryTest, IsRenamedToTheFirstFreeNumber) {
  for (const std::string id : {"a", "b", "c"}) {
    RunDirectory directory(fs_, run_, kSecond);
    if (directory.found().has_run) {
      directory.set_aside();
    }
    EXPECT_FALSE(directory.found().has_run);
    EXPECT_EQ(try_lock_run(fs_, run_), nullptr) << "the new one is not locked";
    RunRecord made = record(kFirst);
    made.id = id;
    directory.write(made);
  }
  EXPECT_EQ(id_in(run_), "c");
  EXPECT_EQ(id_in(run_.string() + ".2"), "b");
  EXPECT_EQ(id_in(run_.string() + ".1"), "a");
}

TEST_F(RunDirectoryTest, IsNotRenamedIfItIsAMountPoint) {
  class Mounted final : public ForwardingFileSystem {
   public:
    using ForwardingFileSystem::ForwardingFileSystem;
    void rename(const Path& from, const Path&) override { throw_io_error("rename", from, EBUSY); }
  } mounted(fs_);
  RunDirectory directory(mounted, run_, kSecond);
  EXPECT_THAT([&] { directory.set_aside(); }, ThrowsMessage<IoError>(HasSubstr("it is a mount point")));
}

TEST_F(RunDirectoryTest, IsRenamedWithAnySpellingOfItsPath) {
  std::filesystem::create_directory(dir_.path() / "beside");
  std::filesystem::create_directory_symlink(run_, dir_.path() / "link");
  int number = 0;
  for (const Path& written : {run_ / "", run_ / ".", dir_.path() / "beside" / ".." / "run", dir_.path() / "link"}) {
    SCOPED_TRACE(written);
    make_run("old");
    RunDirectory directory(fs_, written, kSecond);
    EXPECT_EQ(directory.set_aside(), run_.string() + "." + std::to_string(++number));
    EXPECT_TRUE(std::filesystem::is_directory(run_));
    EXPECT_FALSE(directory.found().has_run);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(dir_.path() / "link")) << "the link still leads to the run";
}

TEST_F(RunDirectoryTest, IsNotRenamedIfItIsTheWorkingDirectory) {
  make_run("old");
  const WorkingDirectory here(run_);
  EXPECT_THAT([&] { RunDirectory(fs_, ".", kSecond).set_aside(); },
              ThrowsMessage<ConfigError>(HasSubstr("is the working directory or contains it")));
  std::filesystem::create_directory("below");
  std::filesystem::current_path("below");
  EXPECT_THAT([&] { RunDirectory(fs_, "..", kSecond).set_aside(); },
              ThrowsMessage<ConfigError>(HasSubstr("is the working directory or contains it")));
  EXPECT_EQ(id_in(run_), "old");
}

// Only a process that is being killed is worth a longer wait.
TEST_F(RunDirectoryTest, ThatCanNeverBeMadeIsToldAtOnce) {
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THAT([&] { RunDirectory(fs_, "/proc/run", kFirst); },
              ThrowsMessage<IoError>(HasSubstr("cannot create /proc/run: No such file or directory")));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

// The lock file that another start has just opened belongs to the renamed directory.
TEST_F(RunDirectoryTest, IsNeverTakenByTheLockOfTheOldOne) {
  make_run("old");
  RunDirectory owner(fs_, run_, kFirst);
  owner.set_aside();
  EXPECT_NE(try_lock_run(fs_, run_.string() + ".1"), nullptr) << "nobody uses the old run";
  EXPECT_EQ(try_lock_run(fs_, run_), nullptr);
}

}  // namespace
}  // namespace lockstep
