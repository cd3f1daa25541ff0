// `lockstep test` as a user runs it, and with planted faults, each of which must be named.
#include <array>
#include <filesystem>
#include <set>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/process.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

namespace fs = std::filesystem;

class TestCommand : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(runs()); }

  fs::path runs() const { return temp_.path() / "runs"; }

  Process::Result run(std::vector<std::string> args, const Process::Environment& extra = {}) {
    args.insert(args.begin(), {tool_, "test"});
    return run_program(args, extra, runs().string());
  }

  nlohmann::json json(std::vector<std::string> args, const Process::Environment& extra = {}) {
    args.emplace_back("--json");
    result_ = run(std::move(args), extra);
    return nlohmann::json::parse(result_.out);
  }

  /// A second installation, whose probe is this shell script; PROBE stands for the real one.
  void use_probe(std::string script) {
    const fs::path folder = temp_.path() / "installed";
    const fs::path built = fs::path(LOCKSTEP_CLI).parent_path().parent_path();
    tool_ = (folder / "bin/lockstep").string();
    fs::create_directories(folder / "bin");
    fs::copy_file(LOCKSTEP_CLI, tool_);
    if (script.empty()) {
      return;
    }
    if (const auto at = script.find("PROBE"); at != std::string::npos) {
      script.replace(at, 5, LOCKSTEP_PROBE);
    }
    const fs::path probe = folder / fs::path(LOCKSTEP_PROBE).lexically_relative(built);
    fs::create_directories(probe.parent_path());
    write_text(probe, "#!/bin/sh\n" + script + "\n");
    fs::permissions(probe, fs::perms::owner_all);
  }

  bool left_nothing() const { return fs::is_empty(runs()); }

  TempDir temp_;
  std::string tool_ = LOCKSTEP_CLI;
  Process::Result result_{};
};

/// "gloo: all_reduce" for each finding of this level.
std::multiset<std::string> subjects(const nlohmann::json& result, const std::string& level) {
  std::multiset<std::string> found;
  for (const auto& finding : result["findings"]) {
    if (finding["level"] == level) {
      found.insert(finding["group"].get<std::string>() + ": " + finding["subject"].get<std::string>());
    }
  }
  return found;
}

std::string found_of(const nlohmann::json& result, const std::string& subject) {
  for (const auto& finding : result["findings"]) {
    if (finding["subject"] == subject) {
      return finding["found"];
    }
  }
  return {};
}

TEST_F(TestCommand, SaysThatTwoRanksAreReady) {
  const Process::Result result = run({"--compute-setup", "cpu"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, AllOf(HasSubstr("\ngloo\n"), HasSubstr("\nshm\n"), HasSubstr("OK    same weights"),
                                HasSubstr("\nrecommendations\n"), HasSubstr("ready: 2 ranks train on this machine"),
                                Not(HasSubstr("FAIL"))));
  EXPECT_TRUE(left_nothing());
}

// As in a pod of Kubeflow Trainer.
TEST_F(TestCommand, TakesNoFlagsOfALauncherFromVariables) {
  const Process::Result result =
      run({"--compute-setup", "cpu", "--backend", "gloo"},
          {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_MASTER_ADDR", "127.0.0.1"}, {"PET_MAX_RESTARTS", "3"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("ready: 2 ranks train on this machine"));
}

TEST_F(TestCommand, TestsOneRankAndFour) {
  const nlohmann::json one = json({"--nprocs", "1", "--compute-setup", "cpu"});
  EXPECT_EQ(result_.code, 0) << one;
  EXPECT_EQ(one["ready"], true);
  EXPECT_THAT(subjects(one, "ok"), Contains("one rank: training"));
  EXPECT_THAT(subjects(one, "ok"), Contains("failure: killed rank"));
  EXPECT_THAT(one["measured"]["save"].dump(), HasSubstr(R"("measured":"workers")"));
  // A launcher's variables and settings for trainings have no effect.
  const nlohmann::json four =
      json({"--nprocs=4", "--compute-setup", "cpu", "--backend", "shm"},
           {{"RANK", "7"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "7"}, {"LOCKSTEP_CFG_MAX_STEPS", "1"}});
  EXPECT_EQ(result_.code, 0) << four;
  EXPECT_EQ(four["ranks"], 4);
  EXPECT_THAT(subjects(four, "ok"), Contains("shm: gradients"));
  EXPECT_THAT(subjects(four, "ok"), Not(Contains("gloo: gradients")));
  EXPECT_THAT(found_of(four, "killed rank"), HasSubstr("rank 3 was killed"));
  EXPECT_TRUE(left_nothing());
}

TEST_F(TestCommand, FailsWithADirectoryThatCannotBeWritten) {
  const nlohmann::json result = json({"--run-dir", "/proc/1"});
  EXPECT_EQ(result_.code, 1);
  EXPECT_THAT(subjects(result, "fail"), ElementsAre("run directory: writing"));
  EXPECT_THAT(found_of(result, "writing"), HasSubstr("cannot create a directory"));
  EXPECT_EQ(result["verdict"], "not ready: 1 check failed (run directory: writing)");
  EXPECT_THAT(run({"--run-dir", "/proc/1"}).out, AllOf(HasSubstr("FAIL  writing"), Not(HasSubstr("recommendations"))))
      << "nothing was measured";
}

TEST_F(TestCommand, NamesEachPartWhoseDataIsWrong) {
  use_probe("exec PROBE \"$@\" --faults all_reduce,gradients,training,resume");
  const nlohmann::json result = json({"--compute-setup", "cpu", "--backend", "gloo"});
  EXPECT_EQ(result_.code, 1);
  EXPECT_EQ(result["ready"], false);
  EXPECT_THAT(subjects(result, "fail"),
              UnorderedElementsAre("gloo: all_reduce", "gloo: gradients", "gloo: training", "checkpoint: resume"));
  EXPECT_THAT(found_of(result, "all_reduce"), HasSubstr("numbers differ, the first is number 0: found "));
  EXPECT_THAT(found_of(result, "gradients"), HasSubstr("1 of 1024 numbers differ"));
  EXPECT_THAT(found_of(result, "training"), HasSubstr("differ from those of one rank"));
  EXPECT_THAT(found_of(result, "resume"), HasSubstr("expected the same bits"));
  EXPECT_TRUE(left_nothing());
}

TEST_F(TestCommand, NamesARankThatDiesAtTheStart) {
  use_probe("[ \"$RANK\" = 1 ] && kill -9 $$\nexec PROBE \"$@\"");
  const nlohmann::json result = json({"--compute-setup", "cpu", "--backend", "gloo"});
  EXPECT_EQ(result_.code, 1);
  EXPECT_THAT(subjects(result, "fail"), Contains("gloo: start"));
  EXPECT_THAT(found_of(result, "start"), AllOf(HasSubstr("rank 1"), HasSubstr("died of signal 9")));
  EXPECT_TRUE(left_nothing());
}

TEST_F(TestCommand, FailsIfALostRankIsNotNoticed) {
  use_probe("case \"$*\" in *'--part lose'*) exit 0 ;; esac\nexec PROBE \"$@\"");
  const nlohmann::json result = json({"--nprocs", "1", "--compute-setup", "cpu"});
  EXPECT_EQ(result_.code, 1);
  EXPECT_THAT(subjects(result, "fail"), ElementsAre("failure: killed rank"));
}

TEST_F(TestCommand, NeedsItsProbe) {
  use_probe("");
  const Process::Result result = run({"--compute-setup", "cpu"});
  EXPECT_EQ(result.code, 127);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("error: cannot find "), HasSubstr("lockstep-probe, which has the ranks of lockstep test"),
                    HasSubstr("hint: ")));
  EXPECT_TRUE(left_nothing());
}

TEST_F(TestCommand, SaysWhichLibraryNoRankFinds) {
  // The words of the dynamic loader.
  use_probe("echo \"$0: error while loading shared libraries: libtorch.so: cannot open it\" >&2\nexit 127");
  const nlohmann::json result = json({"--compute-setup", "cpu", "--backend", "gloo"});
  EXPECT_EQ(result_.code, 1);
  EXPECT_EQ(found_of(result, "start"), "no rank can start: libtorch.so: cannot open it");
  EXPECT_TRUE(left_nothing());
}

/// A probe that says its pid and then never ends.
class EndlessProbe : public TestCommand {
 protected:
  void SetUp() override {
    TestCommand::SetUp();
    ASSERT_EQ(mkfifo(pipe().c_str(), 0600), 0);
    reader_ = open(pipe().c_str(), O_RDWR | O_CLOEXEC);  // for writing too: reading then never ends early
    use_probe("echo $$ > " + pipe().string() + "\nexec sleep 1000");
  }
  fs::path pipe() const { return temp_.path() / "pid"; }
  void TearDown() override { close(reader_); }
  /// Waits for the probe. 0: it did not start.
  pid_t started() const {
    pollfd waiting{.fd = reader_, .events = POLLIN, .revents = 0};
    std::array<char, 32> text{};
    const bool is_there = poll(&waiting, 1, 60'000) == 1 && read(reader_, text.data(), text.size() - 1) > 0;
    return is_there ? std::stoi(text.data()) : 0;
  }

 private:
  int reader_ = -1;
};

TEST_F(EndlessProbe, IsKilledAtTheTimeLimit) {
  Process test({tool_, "test", "--nprocs", "1", "--compute-setup", "cpu", "--time-limit", "2"}, {}, runs().string());
  const pid_t pid = started();
  ASSERT_GT(pid, 0);
  const Process::Result result = test.wait();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("FAIL  start         not done when the time limit"), HasSubstr("not ready: ")));
  EXPECT_TRUE(Process::gone({pid}, std::chrono::seconds(5)));
  EXPECT_TRUE(left_nothing());
}

TEST_F(EndlessProbe, IsKilledByCtrlC) {
  Process test({tool_, "test", "--nprocs", "1", "--compute-setup", "cpu"}, {}, runs().string());
  const pid_t pid = started();
  ASSERT_GT(pid, 0);
  test.signal(SIGINT);
  const Process::Result result = test.wait();
  EXPECT_EQ(result.code, 130);
  EXPECT_TRUE(Process::gone({pid}, std::chrono::seconds(5)));
  EXPECT_TRUE(left_nothing());
}

TEST_F(EndlessProbe, EndsIfTheToolIsKilled) {
  Process test({tool_, "test", "--nprocs", "1", "--compute-setup", "cpu"}, {}, runs().string());
  const pid_t pid = started();
  ASSERT_GT(pid, 0);
  test.signal(SIGKILL);
  EXPECT_TRUE(Process::gone({pid}, std::chrono::seconds(10)));
}

TEST_F(TestCommand, RefusesWhatItDoesNotUse) {
  const Process::Result result = run({"--max_epochs", "3"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--max_epochs: unknown flag"));
  EXPECT_EQ(run({"--nprocs", "-1"}).code, 2);
  EXPECT_EQ(run({"--backend", "mpi"}).code, 2);
  EXPECT_EQ(run({"--time-limit", "0"}).code, 2);
  EXPECT_EQ(run({"--ranks", "2"}).code, 2);
  EXPECT_EQ(run({"--help"}).code, 0);
}

}  // namespace
}  // namespace lockstep
