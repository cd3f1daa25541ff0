// Ranks that fail in every way, as processes: who is blamed, with which words, and whether all are gone.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <lockstep/base/variables.h>

#include "base/text.h"
#include "environment/cpu_topology.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/sweep.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

constexpr const char* kLongGrace = "50000";
constexpr const char* kShortGrace = "1000";
constexpr double kLongGraceSeconds = 50;

std::vector<std::string> launch(int ranks, const std::string& grace, const std::vector<std::string>& words,
                                const std::string& stall = "0:0") {
  std::vector<std::string> argv{LOCKSTEP_LAUNCH_CHILD, fmt::format("launch:{}:{}:{}", ranks, grace, stall)};
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

/// One rank has the word, the others wait for orders.
std::vector<std::string> one_of(int ranks, int failing, const std::string& word) {
  std::vector<std::string> words(static_cast<std::size_t>(ranks), "obey");
  words[static_cast<std::size_t>(failing)] = word;
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  std::erase(lines, "");
  return lines;
}

/// What is wrong with the last words of a run in which `rank` failed; "": nothing.
std::string problems(const Process::Result& result, int rank, const std::string& text, int code,
                     double grace = kLongGraceSeconds) {
  std::string found;
  const auto expect = [&](bool holds, const std::string& what) { found += holds ? "" : what + "; "; };
  const std::string begin = fmt::format("error: rank {} (host ", rank);
  const auto cause = result.err.rfind("error: rank ");
  const std::string last = cause == std::string::npos ? std::string() : result.err.substr(cause);
  expect(result.code == code, fmt::format("exit code {}, not {}", result.code, code));
  expect(last.starts_with(begin), "the last error does not blame the rank");
  expect(last.substr(0, last.find('\n')).find(text) != std::string::npos, "its text is not there");
  expect(last.ends_with(fmt::format("\n  exit code {}\n", code)), "the exit code is not the end");
  expect(result.seconds < grace, "others were not ended at once but killed");
  return found.empty() ? found : found + "in\n" + result.err;
}

struct Way {
  const char* word;
  int code;
  const char* text;
};

TEST(RankFailure, IsBlamedOnTheRankWithTypeAndPlace) {
  const Way ways[] = {
      {"throw:std", 1, " failed at step 812 in forward: std::runtime_error: cannot decode img_4411.jpg"},
      {"throw:ours", 65, " failed at step 812 in forward: sample 5 is unusable"},
      {"throw:int", 1, " failed at step 812 in forward: unknown exception of type int"},
      {"throw:noexcept", 134, " in forward: std::terminate after std::logic_error: left a noexcept function"},
      {"throw:thread", 134, " in forward: std::terminate after std::logic_error: left a thread"},
      {"throw:gpu", 1,
       " in forward: the GPU reported: c10::AcceleratorError: CUDA error: device-side assert triggered"},
      {"throw:gloo", 76,
       " in forward: the connection to another rank broke: gloo::IoException: Connection reset by peer"},
      {"throw:enforce", 134, " in forward: std::terminate after gloo::EnforceNotMet: unexpected op code"},
      {"throw:mismatch", 78,
       " in forward: the ranks are in different collectives: too much data arrived in collective 1: all-reduce of 4 B: "
       "gloo::EnforceNotMet: 200 vs 4. "},
      {"throw:terminate", 134, " in forward: std::terminate after no exception"},
      {"throw:assertion", 70, " in forward: internal error: a test wants this to fail; what.empty() is false ("},
      {"exit:0", 1, " ended with exit code 0 before its training was done"},
      {"exit:3", 1, " ended with exit code 3 before its training was done"},
  };
  Sweep sweep("ways to fail");
  for (int round = 0; round < rounds(1, 5); ++round) {
    for (const Way& way : ways) {
      for (const int rank : {0, 2}) {
        const auto result = run_program(launch(3, kLongGrace, one_of(3, rank, way.word)), {}, ".", 60s);
        const std::string found = problems(result, rank, way.text, way.code);
        EXPECT_EQ(found, "") << way.word << " on rank " << rank;
        EXPECT_THAT(result.err, HasSubstr("2 other ranks stopped because of it"));
        sweep.count(found.empty());
      }
    }
  }
  EXPECT_GE(sweep.points(), 20);
}

TEST(RankFailure, IsNoFailureIfAConnectionBreaksAfterTheWork) {
  for (const char* what : {"gloo", "enforce"}) {
    const auto result = run_program(launch(2, kLongGrace, {fmt::format("end:0:{}", what), "end:0:gloo"}), {}, ".", 60s);
    EXPECT_EQ(result.code, 0) << what << "\n" << result.err;
  }
  const auto result = run_program(launch(2, kLongGrace, {"end:0:thread", "end:0:gloo"}), {}, ".", 60s);
  EXPECT_EQ(problems(result, 0, ": std::terminate after std::logic_error: left a thread", 134), "") << "the control";
}

TEST(RankFailure, SweepSeesWhatItHasToSee) {
  // Known to be bad: ranks that take no orders, and a rank that is not the one expected.
  const auto result = run_program(launch(3, kShortGrace, {"stubborn", "throw:std", "stubborn"}), {}, ".", 60s);
  const char* text = " failed at step 812 in forward: std::runtime_error: cannot decode img_4411.jpg";
  EXPECT_THAT(problems(result, 1, text, 1, 1), HasSubstr("others were not ended at once"));
  EXPECT_THAT(problems(result, 2, text, 1), HasSubstr("does not blame the rank"));
  EXPECT_THAT(problems(result, 1, "another text", 1), HasSubstr("its text is not there"));
  EXPECT_THAT(problems(result, 1, text, 2), HasSubstr("exit code 1, not 2"));
}

/// Frames of the stack trace that have a name.
std::ptrdiff_t named_frames(const std::string& err) {
  const auto lines = lines_of(err);
  return std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("  #") != std::string::npos && line.find("+0x") != std::string::npos &&
           line.find(" ?? ") == std::string::npos;
  });
}

TEST(RankFailure, ACrashLeavesItsStack) {
  const Way ways[] = {{"crash:segv", 139, "Segmentation fault"},      {"crash:abort", 134, "Aborted"},
                      {"crash:overflow", 139, "Segmentation fault"},  {"crash:bus", 135, "Bus error"},
                      {"crash:fpe", 136, "Floating point exception"}, {"crash:ill", 132, "Illegal instruction"}};
  Sweep sweep("ways to crash");
  for (int round = 0; round < rounds(1, 5); ++round) {
    for (const Way& way : ways) {
      const int rank = sweep.points() % 2;
      const auto result = run_program(launch(2, kLongGrace, one_of(2, rank, way.word)), {}, ".", 60s);
      const auto place = fmt::format("({}) at step 812 in data", way.text);
      const std::string found = problems(result, rank, place, way.code);
      EXPECT_EQ(found, "") << way.word;
      EXPECT_THAT(result.err, HasSubstr(fmt::format("rank {} crashed at step 812 in data: signal {} ({})", rank,
                                                    way.code - 128, way.text)));
      const auto frames = named_frames(result.err);
      EXPECT_GE(frames, 3) << result.err;
      sweep.count(found.empty() && frames >= 3);
      const char* culprit = std::string(way.word) == "crash:overflow" ? "overflow_the_stack" : "crash_here";
      EXPECT_THAT(result.err, HasSubstr(culprit));
    }
  }
  EXPECT_GE(sweep.points(), 6);
}

TEST(RankFailure, WithoutOurHandlerThereIsNoStack) {  // the control of the test above
  const auto result = run_program(launch(2, kShortGrace, {"segfault", "obey"}), {}, ".", 60s);
  EXPECT_EQ(result.code, 139);
  EXPECT_EQ(named_frames(result.err), 0);
}

TEST(RankFailure, FirstOfTwoIsBlamedAndTheOtherCounted) {
  for (int round = 0; round < rounds(3, 30); ++round) {
    const auto result = run_program(launch(4, kLongGrace, {"throw:std", "obey", "throw:ours", "obey"}), {}, ".", 60s);
    EXPECT_TRUE(result.code == 1 || result.code == 65) << result.code;
    const int rank = result.code == 1 ? 0 : 2;
    EXPECT_EQ(problems(result, rank, " failed at step 812 in forward: ", result.code), "");
    EXPECT_THAT(result.err, HasSubstr("3 other ranks stopped because of it"));
  }
}

TEST(RankFailure, AStallIsNamedWithStacksAndEnded) {
  const auto result =
      run_program(launch(3, kLongGrace, {"stand:1048576", "stand", "stand:1048576"}, "1000:2000"), {}, ".", 60s);
  EXPECT_EQ(problems(result, 1, " made no progress for 2 s at step 812 in data", 124), "");
  EXPECT_THAT(result.err, HasSubstr("warning: no progress for 1 s; rank 1 is behind:\n"
                                    "  ranks 0,2: step 812, backward, in collective 1: all-reduce of 1.0 MiB\n"
                                    "  rank 1: step 812, data\n"));
  for (const char* rank : {"0", "1", "2"}) {
    EXPECT_THAT(result.err, testing::ContainsRegex(
                                fmt::format("\\[rank{}\\]: stack of thread .*, rank {} at step 812", rank, rank)));
  }
}

TEST(RankFailure, ADifferentCollectiveIsNamed) {
  const auto result =
      run_program(launch(3, kLongGrace, {"stand:1048576", "stand:1048576", "stand:8"}, "500:1000"), {}, ".", 60s);
  EXPECT_EQ(problems(result, 2, " made no progress for 1 s at step 812 in backward", 124), "");
  EXPECT_THAT(result.err, HasSubstr("the ranks are in different collectives:"));
}

TEST(RankFailure, AStoppedRankIsNamedAndOneThatWorksIsNot) {
  Process process(launch(2, kLongGrace, {"work", "work"}, "20000:60000"));
  ASSERT_TRUE(process.wait_for("[rank1]: ready")) << process.err();
  ASSERT_TRUE(process.wait_for("[rank0]: ready")) << process.err();
  const auto ranks = Process::ranks_of(process.pid());
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGSTOP);
  EXPECT_TRUE(process.wait_for(fmt::format("rank 1 (pid {}) is stopped by a signal", ranks[1]), 10s)) << process.err();
  kill(ranks[1], SIGCONT);
  EXPECT_TRUE(process.wait_for(fmt::format("rank 1 (pid {}) continues", ranks[1]), 10s)) << process.err();
  process.signal(SIGTERM);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("no progress")));
}

TEST(RankFailure, ARankThatStaysStoppedEndsTheRun) {
  Process process(launch(2, kShortGrace, {"stand:8", "work"}, "500:2000"));
  ASSERT_TRUE(process.wait_for("[rank1]: ready")) << process.err();
  const auto ranks = Process::ranks_of(process.pid());
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGSTOP);
  const auto result = process.wait(60s);
  EXPECT_EQ(problems(result, 1, " made no progress for 2 s at step 812 in forward", 124), "");
  EXPECT_TRUE(Process::gone(ranks, 0ms));
}

/// A frozen process cannot even be killed: the nearest thing to one that hangs in a driver or a network file system.
class Freezer {
 public:
  Freezer() {
    for (const std::string& folder : cgroup_folders(read_text_file("/proc/self/cgroup").value_or(""), "freezer")) {
      std::error_code error;
      group_ = folder + fmt::format("/lockstep_test_{}", getpid());
      if (folder.find("/freezer") != std::string::npos && std::filesystem::create_directory(group_, error)) {
        return;
      }
    }
    group_.clear();
  }
  ~Freezer() {
    write("freezer.state", "THAWED");
    std::error_code error;
    for (int attempt = 0; !group_.empty() && !std::filesystem::remove(group_, error) && attempt < 100; ++attempt) {
      usleep(10'000);  // until what was killed has left
    }
  }
  bool exists() const { return !group_.empty(); }
  void freeze(pid_t pid) const {
    write("cgroup.procs", std::to_string(pid));
    write("freezer.state", "FROZEN");
  }

 private:
  void write(const char* file, const std::string& text) const { std::ofstream(group_ / file) << text; }
  std::filesystem::path group_;
};

TEST(RankFailure, ARankThatCannotBeKilledDoesNotHoldTheLauncher) {
  const Freezer freezer;
  LOCKSTEP_REQUIRE(Requirements().that(freezer.exists(), "no freezer control group (v1) can be made"));
  Process process(launch(2, kShortGrace, {"stand:8", "work"}, "500:1000"));
  ASSERT_TRUE(process.wait_for("[rank1]: ready")) << process.err();
  const auto ranks = Process::ranks_of(process.pid());
  ASSERT_EQ(ranks.size(), 2U);
  freezer.freeze(ranks[1]);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(process.wait_for("error: rank ", 30s)) << process.err();
  ASSERT_TRUE(process.wait_for("exit code 124", 30s)) << process.err();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s + 10s + 5s);
  EXPECT_THAT(process.err(),
              testing::ContainsRegex(fmt::format(
                  "rank 1 \\(pid {}\\) does not end although it was killed: it is in the kernel", ranks[1])));
}

TEST(RankFailure, StacksAreWrittenOnRequestAndTheRunGoesOn) {
  Process process(launch(2, kLongGrace, {"work"}));
  ASSERT_TRUE(process.wait_for("[rank1]: ready")) << process.err();
  ASSERT_TRUE(process.wait_for("[rank0]: ready")) << process.err();
  process.signal(SIGUSR2);
  for (const char* rank : {"[rank0]: ", "[rank1]: "}) {
    EXPECT_TRUE(process.wait_for(std::string(rank) + "stack of thread", 10s)) << process.err();
  }
  kill(Process::ranks_of(process.pid()).front(), SIGUSR2);  // one rank alone, without the supervisor
  process.signal(SIGTERM);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 75) << result.err;
  EXPECT_GE(named_frames(result.err), 6) << result.err;
}

TEST(RankFailure, NobodyIsLeftWhateverEndsTheLauncher) {
  for (const auto& [signal, code] : {std::pair{SIGQUIT, 131}, std::pair{SIGKILL, 137}, std::pair{SIGHUP, 75}}) {
    Process process(launch(2, kLongGrace, {"work"}));
    ASSERT_TRUE(process.wait_for("[rank1]: ready")) << process.err();
    ASSERT_TRUE(process.wait_for("[rank0]: ready")) << process.err();
    const auto ranks = Process::ranks_of(process.pid());
    process.signal(signal);
    EXPECT_EQ(process.wait().code, code);
    EXPECT_TRUE(Process::gone(ranks, 1000ms));
  }
}

TEST(RankFailure, AReaderThatWentAwayDoesNotEndTheRun) {
  Process process({"sh", "-c", "\"$@\" | head -n 1", "sh", LOCKSTEP_LAUNCH_CHILD, "launch:2:1000:0:0", "flood:5000"});
  const auto result = process.wait();
  EXPECT_EQ(lines_of(result.out).size(), 1U);
  EXPECT_EQ(result.err, "") << "a closed pipe is no failure";
}

TEST(RankFailure, AReaderThatWentAwayDoesNotPreventARestart) {
  const TempDir directory;
  run_program({"sh", "-c", "{ \"$@\" 2>&1; echo $? >code; } | true", "sh", LOCKSTEP_CLI, "run", "--max-restarts", "1",
               "--log-dir", ".", "--rdzv-id", "job", "--", LOCKSTEP_LAUNCH_CHILD, "exit:3"},
              {}, directory.path());
  EXPECT_EQ(read_text_file(directory.path() / "code").value_or(""), "3\n");
  EXPECT_TRUE(std::filesystem::exists(directory.path() / "job/attempt_1"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "job/attempt_2"));
}

TEST(RankFailure, FiveCtrlCInAMomentAreOneRequest) {
  Process process(launch(2, kLongGrace, {"work"}));
  ASSERT_TRUE(process.wait_for("[rank1]: ready")) << process.err();
  ASSERT_TRUE(process.wait_for("[rank0]: ready")) << process.err();
  for (int i = 0; i < 5; ++i) {
    process.signal(SIGINT);
  }
  EXPECT_EQ(process.wait().code, 75) << "the ranks end by themselves";
}

/// A memory control group of our own; the path is empty where the system does not let us have one.
std::filesystem::path make_memory_group(std::int64_t limit) {
  for (const std::string& folder : cgroup_folders(read_text_file("/proc/self/cgroup").value_or(""), "memory")) {
    const std::filesystem::path group = folder + fmt::format("/lockstep_test_{}", getpid());
    std::error_code error;
    if (!std::filesystem::create_directory(group, error)) {
      continue;
    }
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      std::ofstream file(group / name);
      if (std::filesystem::exists(group / name) && file << limit << std::flush) {
        return group;
      }
    }
    std::filesystem::remove(group, error);
  }
  return {};
}

TEST(RankFailure, TheOomKillerIsRecognised) {
  const auto group = make_memory_group(1 << 30);
  LOCKSTEP_REQUIRE(Requirements().that(!group.empty(), "no memory control group can be made"));
  auto argv = launch(2, kLongGrace, {"obey", "eat"});
  argv.insert(argv.begin(), {"sh", "-c", "echo $$ > \"$0\" && exec \"$@\"", (group / "cgroup.procs").string()});
  const auto result = run_program(argv, {}, ".", 60s);
  std::error_code error;
  std::filesystem::remove(group, error);
  EXPECT_EQ(
      problems(result, 1, " was killed by the kernel's OOM killer (memory limit 1.0 GiB) at step 812 in data", 137),
      "");
  EXPECT_THAT(result.err, HasSubstr("batch_size"));
}

}  // namespace
}  // namespace lockstep
