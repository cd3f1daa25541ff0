#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/launcher.h>

#include "base/descriptor.h"
#include "base/mapped.h"
#include "base/text.h"
#include "supervise/worker_process.h"
#include "support/message_of.h"
#include "support/presence.h"
#include "support/process.h"
#include "support/process_states.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace std::chrono_literals;

using Values = std::map<std::string, std::string, std::less<>>;

constexpr milliseconds kDeadline = 30s;

/// launch_child with one word per rank; the last one is for the rest.
LaunchRequest request_for(int world_size, std::vector<std::string> words) {
  words.insert(words.begin(), "launch_child");
  return {.argv = std::move(words), .program = LOCKSTEP_LAUNCH_CHILD, .ranks_per_node = {world_size}, .grace = 300ms};
}

/// launch_workers() in a process of its own, so that it can be signalled and its output read.
class Supervisor {
 public:
  explicit Supervisor(const LaunchRequest& request) {
    std::array<std::array<int, 2>, 3> pipes{};
    for (auto& ends : pipes) {
      EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
    }
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);  // as a job of a shell, which can be suspended
      dup2(pipes[0][1], STDOUT_FILENO);
      dup2(pipes[1][1], STDERR_FILENO);
      const LaunchReport report = launch_workers(request);
      const std::string text = std::to_string(report.failed_rank) + " " + report.failure;
      [[maybe_unused]] const ssize_t written = write(pipes[2][1], text.data(), text.size());
      _exit(report.exit_code);
    }
    pidfd_ = open_process(pid_);
    for (std::size_t i = 0; i < pipes.size(); ++i) {
      close(pipes[i][1]);
      streams_[i].fd = Descriptor(pipes[i][0]);
    }
  }
  ~Supervisor() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { kill(pid_, signal); }
  bool ends_within(milliseconds limit) const { return readable_within(pidfd_.get(), limit); }

  /// Reads until standard output has `count` lines that contain `text`, and returns them.
  std::vector<std::string> wait_for_lines(const std::string& text, std::size_t count) {
    const auto matching = [&] {
      std::vector<std::string> lines = split(out(), '\n');
      lines.pop_back();  // not ended yet
      std::erase_if(lines, [&](const std::string& line) { return line.find(text) == std::string::npos; });
      return lines;
    };
    while (matching().size() < count && read_some()) {
    }
    EXPECT_GE(matching().size(), count) << "waiting for " << text << " in:\n" << out() << err();
    return matching();
  }

  /// Reads everything until the supervisor is gone; its exit code, or -1 if it did not end.
  int wait() {
    while (read_some()) {
    }
    if (!ends_within(kDeadline)) {
      ADD_FAILURE() << "the supervisor does not end; it printed:\n" << out() << err();
      return -1;
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const std::string& out() const { return streams_[0].text; }
  const std::string& err() const { return streams_[1].text; }
  int failed_rank() const { return static_cast<int>(parse_int(report().substr(0, report().find(' '))).value_or(-2)); }
  std::string failure() const { return report().substr(report().find(' ') + 1); }
  std::vector<std::string> out_lines() const { return split(out(), '\n'); }

 private:
  struct Stream {
    Descriptor fd;
    std::string text;
  };
  const std::string& report() const { return streams_[2].text; }

  /// False when all streams have ended, or nothing came for very long.
  bool read_some() {
    auto entries = mapped(
        streams_, [](const Stream& stream) { return pollfd{.fd = stream.fd.get(), .events = POLLIN, .revents = 0}; });
    const bool all_closed =
        std::none_of(streams_.begin(), streams_.end(), [](const auto& s) { return s.fd.is_open(); });
    if (all_closed || poll(entries.data(), entries.size(), static_cast<int>(kDeadline.count())) <= 0) {
      return false;
    }
    std::array<char, 1 << 16> buffer;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents != 0) {
        const ssize_t size = read(entries[i].fd, buffer.data(), buffer.size());
        if (size > 0) {
          streams_[i].text.append(buffer.data(), static_cast<std::size_t>(size));
        } else {
          streams_[i].fd.close();
        }
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  Descriptor pidfd_{};
  std::array<Stream, 3> streams_{};
};

pid_t pid_in(const std::string& ready_line) {
  return static_cast<pid_t>(parse_int(ready_line.substr(ready_line.rfind(' ') + 1)).value());
}

TEST(Launcher, ReturnsTheFirstFailuresCode) {
  struct Case {
    std::vector<std::string> words;
    int exit_code;
    int failed_rank;
    const char* failure;
  };
  const Case cases[] = {
      {{"finish:0"}, 0, -1, ""},
      {{"finish:75"}, 75, -1, ""},
      {{"finish:130"}, 130, -1, ""},
      {{"wait", "finish:2"}, 2, 1, "finished with code 2"},
      {{"wait", "exit:0"}, 1, 1, "ended with exit code 0 before its training was done"},
      {{"wait", "exit:3"}, 1, 1, "ended with exit code 3 before its training was done"},
      {{"wait", "exit:75"}, 1, 1, "ended with exit code 75 before its training was done"},
      {{"wait", "announce:0:9"}, 1, 1, "exited with code 9 after it announced 0"},
      {{"wait", "fail:65:cannot read it"}, 65, 1, "failed: cannot read it"},
      {{"wait", "fail_and_hang"}, 1, 1, "failed: hung afterwards"},
      {{"wait", "abort"}, 134, 1, "died of signal 6 (Aborted)"},
      {{"wait", "segfault"}, 139, 1, "died of signal 11 (Segmentation fault)"},
      {{"lost:76:closed by peer", "fail:74:disk full"}, 74, 1, "failed: disk full"},
      {{"finish:0", "lost:76:closed by peer"}, 76, 1, "failed: closed by peer"},
      {{"wait", "lost:76:closed by peer"}, 76, 1, "failed: closed by peer"},
  };
  std::vector<std::unique_ptr<Supervisor>>
      supervisors;  // all at once: most of the time goes into waiting for the grace
  for (const Case& c : cases) {
    supervisors.push_back(std::make_unique<Supervisor>(request_for(2, c.words)));
  }
  for (std::size_t i = 0; i < supervisors.size(); ++i) {
    const Case& c = cases[i];
    Supervisor& supervisor = *supervisors[i];
    SCOPED_TRACE(c.words.front() + " " + c.words.back());
    EXPECT_EQ(supervisor.wait(), c.exit_code);
    EXPECT_EQ(supervisor.failed_rank(), c.failed_rank);
    EXPECT_THAT(supervisor.failure(), HasSubstr(c.failure));
    EXPECT_EQ(supervisor.failure().empty(), c.failed_rank < 0);
  }
}

TEST(Launcher, SaysLastWhatFailed) {
  Supervisor supervisor(request_for(3, {"wait", "abort", "wait"}));
  EXPECT_EQ(supervisor.wait(), 134);
  EXPECT_THAT(supervisor.err(),
              EndsWith("last lines of rank 1's standard error:\n"
                       "  | [rank1]: terminate called after throwing an instance of 'std::logic_error'\n"
                       "error: " +
                       supervisor.failure() +
                       "\n  hint: run `ulimit -c unlimited` before the start to get a core file"
                       "\n  2 other ranks stopped because of it\n  exit code 134\n"));
  EXPECT_THAT(supervisor.failure(),
              testing::MatchesRegex("rank 1 \\(host .+, pid [0-9]+\\) died of signal 6 \\(Aborted\\)"));
}

TEST(Launcher, SaysWhatFailedAfterWarningsAboutItsOwnFiles) {
  LaunchRequest request = request_for(1, {"fail:74:disk full"});
  request.event_directory = [](const std::string&) { return std::filesystem::path("/proc"); };
  Supervisor supervisor(request);
  EXPECT_EQ(supervisor.wait(), 74);
  const std::size_t warning = supervisor.err().rfind("/proc/events.jsonl");
  ASSERT_NE(warning, std::string::npos) << supervisor.err();
  EXPECT_THAT(supervisor.err().substr(warning), HasSubstr("failed: disk full"));
}

TEST(Launcher, PrintsWholeHarmlessLinesWithTheRank) {
  Supervisor supervisor(request_for(2, {"print", "finish:0"}));
  EXPECT_EQ(supervisor.wait(), 0);
  EXPECT_EQ(supervisor.out(),
            "[rank0]: to out\n[rank0]: mine\n[rank0]: [rank1]: not mine\n[rank0]: 50%\n[rank0]: 100%\n"
            "[rank0]: red\n[rank0]: \n[rank0]: last, not ended\n");
  EXPECT_THAT(split(supervisor.err(), '\n'),
              testing::UnorderedElementsAre("[rank0]: to err", "step 20 | loss 2.1", ""));
}

TEST(Launcher, GivesWorkersACleanStart) {
  LaunchRequest request = request_for(2, {"finish:0", "inspect"});
  request.argv[0] = "./train.sh";
  request.threads_per_rank = 3;
  request.environment = Variables(Values{{"USERS_OWN", "kept"}, {"RANK", "77"}, {"LOCKSTEP_STORE_FD", "12"}});
  // What must not reach a worker: a blocked signal, an ignored one, an open descriptor.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  signal(SIGQUIT, SIG_IGN);
  const Descriptor open_file(open("/dev/null", O_RDONLY));
  Supervisor supervisor(request);
  signal(SIGQUIT, SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  ASSERT_EQ(supervisor.wait(), 0);
  std::vector<std::string> lines = supervisor.out_lines();
  for (const char* expected :
       {"descriptors 0-4", "stdin 0", "own group 1", "death signal 9", "signal defaults 1",
        "argv ./train.sh finish:0 inspect", "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
        "GROUP_RANK=0", "MASTER_ADDR=127.0.0.1", "OMP_NUM_THREADS=3", "LOCKSTEP_CONTROL_FD=3", "LOCKSTEP_PROGRESS_FD=4",
        "LOCKSTEP_TERMINAL_WIDTH=0", "USERS_OWN=kept"}) {
    EXPECT_THAT(lines, Contains("[rank1]: " + std::string(expected)));
  }
  EXPECT_THAT(lines, Contains(testing::MatchesRegex("\\[rank1\\]: LOCKSTEP_RUN_ID=[0-9a-f]{16}")));
  EXPECT_THAT(lines, Contains(testing::MatchesRegex("\\[rank1\\]: MASTER_PORT=[1-9][0-9]+")));
  EXPECT_THAT(supervisor.out(), Not(HasSubstr("LOCKSTEP_STORE_FD")));
}

TEST(Launcher, GivesWorkersNoDescriptorsOnAnOldKernelEither) {
  const Process::Result result =
      run_program({LOCKSTEP_LAUNCH_CHILD, "launch:2:300:0:0", "inspect"}, {{"TEST_OLD_KERNEL", "1"}});
  ASSERT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("[rank0]: descriptors 0-5\n"));
  EXPECT_THAT(result.out, HasSubstr("[rank1]: descriptors 0-4\n"));
}

TEST(Launcher, StartsTheRunningProgramEvenWhenItsFileIsGone) {
  const TempDir directory;
  std::string program = directory.path() / "program";
  std::filesystem::copy_file(LOCKSTEP_LAUNCH_CHILD, program);
  std::string word = "finish:75";
  const std::array<char*, 3> argv{program.data(), word.data(), nullptr};
  const std::array<char*, 1> environment{nullptr};
  const pid_t pid = fork();
  if (pid == 0) {
    execve(program.c_str(), argv.data(), environment.data());
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_FALSE(std::filesystem::exists(program));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

TEST(Launcher, HandsTheStoreSocketToRankZeroOnly) {
  LaunchRequest request = request_for(2, {"inspect"});
  request.environment = Variables(Values{{"OMP_NUM_THREADS", "7"}});
  Supervisor supervisor(request);
  ASSERT_EQ(supervisor.wait(), 0);
  const std::vector<std::string> lines = supervisor.out_lines();
  EXPECT_THAT(lines, Contains("[rank0]: descriptors 0-5"));
  EXPECT_THAT(lines, Contains("[rank0]: LOCKSTEP_STORE_FD=5"));
  EXPECT_THAT(lines, Contains("[rank1]: descriptors 0-4"));
  EXPECT_THAT(lines, Contains("[rank1]: OMP_NUM_THREADS=7"));
  const auto value_of = [&](const std::string& name, const std::string& rank) {
    const auto line =
        std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.starts_with(rank + name); });
    return line == lines.end() ? "missing" : line->substr(rank.size());
  };
  for (const char* same : {"LOCKSTEP_RUN_ID", "MASTER_PORT"}) {
    EXPECT_EQ(value_of(same, "[rank0]: "), value_of(same, "[rank1]: "));
  }
}

TEST(Launcher, ForwardsARequestToStop) {
  const std::pair<int, int> cases[] = {{SIGTERM, 75}, {SIGUSR1, 75}, {SIGHUP, 75}, {SIGINT, 130}};
  for (const auto& [signal, code] : cases) {
    SCOPED_TRACE(signal);
    Supervisor supervisor(request_for(3, {"stop"}));
    supervisor.wait_for_lines("ready", 3);
    supervisor.send(signal);
    EXPECT_EQ(supervisor.wait(), code);
    EXPECT_EQ(supervisor.err(), "");
    EXPECT_EQ(supervisor.failed_rank(), -1);
  }
}

/// Two ranks, each a script that starts launch_child as its child: `script` finds it in $0.
LaunchRequest by_script(const std::string& script) {
  return {.argv = {"sh", "-c", script, LOCKSTEP_LAUNCH_CHILD},
          .program = "/bin/sh",
          .any_program = true,
          .ranks_per_node = {2},
          .grace = 300ms,
          .environment = read_environment()};
}

std::size_t count_of(const std::string& text, const std::string& output) {
  const auto lines = split(output, '\n');
  return static_cast<std::size_t>(
      std::ranges::count_if(lines, [&](const std::string& line) { return line.ends_with(text); }));
}

TEST(Launcher, StopsTheProgramThatAScriptStarted) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    SCOPED_TRACE(signal);
    Supervisor supervisor(by_script("\"$0\" work:300; echo the script goes on"));
    supervisor.wait_for_lines("ready", 2);
    supervisor.send(signal);
    EXPECT_EQ(supervisor.wait(), 75) << supervisor.err();
    EXPECT_EQ(supervisor.failed_rank(), -1);
    EXPECT_EQ(count_of("saved", supervisor.out()), 2U);
    EXPECT_EQ(count_of("the script goes on", supervisor.out()), 2U);
  }
}

// A batch system sends a signal to all processes of a job. It ends a script at once.
TEST(Launcher, LetsAProgramSaveWhoseScriptHasEnded) {
  Supervisor supervisor(by_script("\"$0\" work:300; echo the script goes on"));
  for (const std::string& ready : supervisor.wait_for_lines("ready", 2)) {
    kill(-getpgid(pid_in(ready)), SIGTERM);
  }
  EXPECT_EQ(supervisor.wait(), 75) << supervisor.err();
  EXPECT_EQ(count_of("saved", supervisor.out()), 2U);
  EXPECT_EQ(count_of("the script goes on", supervisor.out()), 0U);
}

TEST(Launcher, BlamesAProgramThatCrashesInItsSaveAfterItsScriptHasEnded) {
  const TempDir directory;
  const std::string gate = directory.path() / "gate";
  ASSERT_EQ(mkfifo(gate.c_str(), 0600), 0);
  for (const bool asks_launcher : {false, true}) {
    SCOPED_TRACE(asks_launcher);
    Supervisor supervisor(by_script("TEST_GATE='" + gate + "' \"$0\" work work:0:segv; echo the script goes on"));
    supervisor.wait_for_lines("ready", 2);
    const auto ready = supervisor.wait_for_lines("[rank1]: ready", 1);
    ASSERT_EQ(ready.size(), 1U);
    if (asks_launcher) {
      supervisor.send(SIGTERM);
      supervisor.wait_for_lines("saving", 1);  // so the launcher has forwarded the request
    }
    kill(-getpgid(pid_in(ready.front())), SIGTERM);
    supervisor.wait_for_lines("saving", 1);
    const Descriptor let_it_crash(open(gate.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(supervisor.wait(), 1) << supervisor.err();
    EXPECT_EQ(supervisor.failed_rank(), 1);
    EXPECT_THAT(supervisor.failure(), HasSubstr(" ended at step 812 in save without saying that its work is saved, "
                                                "after signal 15 (Terminated) had ended its script"));
    EXPECT_THAT(supervisor.err(), HasSubstr("rank 1 crashed at step 812 in save: signal 11"));
  }
}

// The second program of a script is not done because the first one is.
TEST(Launcher, ForgetsTheEndOfAnEarlierProgramOfAScript) {
  Supervisor supervisor(by_script("\"$0\" finish:0; \"$0\" work:0:segv; true"));
  supervisor.wait_for_lines("ready", 2);
  supervisor.send(SIGTERM);
  EXPECT_EQ(supervisor.wait(), 1) << supervisor.err();
  EXPECT_THAT(supervisor.failure(), HasSubstr(" ended with exit code 0 before its training was done: at step 812"));
}

// Also programs that never say that they have started.
TEST(Launcher, InterruptsWhatAScriptWaitsFor) {
  Supervisor supervisor(by_script("sh -c 'echo ready; exec sleep 1000'; exit 3"));
  supervisor.wait_for_lines("ready", 2);
  supervisor.send(SIGINT);
  EXPECT_EQ(supervisor.wait(), 130) << supervisor.err();
}

// Ctrl-Z in a terminal, then fg.
TEST(Launcher, SuspendsTheWholeJob) {
  LaunchRequest request = request_for(2, {"work"});
  request.stall_deadline = 1s;
  Supervisor supervisor(request);
  const auto ready = supervisor.wait_for_lines("ready", 2);
  supervisor.send(SIGTSTP);
  int status = 0;
  ASSERT_EQ(waitpid(supervisor.pid(), &status, WUNTRACED), supervisor.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  for (const std::string& line : ready) {
    EXPECT_TRUE(comes_into_state(pid_in(line), 'T'));
  }
  std::this_thread::sleep_for(1500ms);  // the tested time: longer than a stall
  supervisor.send(SIGCONT);
  for (const std::string& line : ready) {
    EXPECT_TRUE(comes_into_state(pid_in(line), 'S'));
  }
  supervisor.send(SIGTERM);
  EXPECT_EQ(supervisor.wait(), 75) << supervisor.err();
}

TEST(Launcher, BlamesNobodyWhoDiesOfAForwardedSignal) {
  Supervisor supervisor(request_for(2, {"wait"}));
  supervisor.wait_for_lines("ready", 2);
  supervisor.send(SIGTERM);
  EXPECT_EQ(supervisor.wait(), 75);
  EXPECT_EQ(supervisor.failed_rank(), -1);
  EXPECT_THAT(supervisor.err(),
              EndsWith("stopped by signal 15 (Terminated) before the training began; run the same command again\n"));
}

TEST(Launcher, KillsAtOnceOnTheSecondCtrlC) {
  const TempDir directory;
  const Presence presence(directory);
  LaunchRequest request = request_for(2, {"stubborn"});
  request.environment = Variables(Values{{"TEST_FIFO", (directory.path() / "presence").string()}});
  Supervisor supervisor(request);
  supervisor.wait_for_lines("ready", 2);
  supervisor.send(SIGINT);
  supervisor.send(SIGINT);
  EXPECT_FALSE(supervisor.ends_within(1200ms)) << "one Ctrl-C may arrive twice";
  const auto limit = steady_clock::now() + kDeadline;
  auto sent = limit;
  do {  // the first may have been heard late, and the second is a second request a second after that
    sent = steady_clock::now();
    supervisor.send(SIGINT);
  } while (!supervisor.ends_within(1200ms) && steady_clock::now() < limit);
  EXPECT_EQ(supervisor.wait(), 130);
  EXPECT_LT(steady_clock::now() - sent, 2s);
  EXPECT_TRUE(presence.ends_within(kDeadline));
  EXPECT_EQ(supervisor.failed_rank(), -1);
}

TEST(Launcher, ReportsAKilledWorkerAndEndsTheRest) {
  Supervisor supervisor(request_for(3, {"wait", "stubborn"}));
  const auto ready = supervisor.wait_for_lines("[rank1]: ready", 1);
  ASSERT_EQ(ready.size(), 1U);
  supervisor.wait_for_lines("ready", 3);
  const auto begin = steady_clock::now();
  kill(pid_in(ready.front()), SIGKILL);
  EXPECT_EQ(supervisor.wait(), 137);
  EXPECT_LT(steady_clock::now() - begin, 300ms + 5s);
  EXPECT_THAT(supervisor.failure(),
              EndsWith(", pid " + std::to_string(pid_in(ready.front())) + ") died of signal 9 (Killed)"));
  EXPECT_THAT(supervisor.err(), HasSubstr("2 other ranks stopped because of it"));
}

TEST(Launcher, GivesTheOthersTheGraceThatWasAskedFor) {
  LaunchRequest request = request_for(2, {"stubborn", "fail:1:first"});
  request.grace = 1500ms;
  const auto begin = steady_clock::now();
  Supervisor supervisor(request);
  EXPECT_EQ(supervisor.wait(), 1);
  EXPECT_GE(steady_clock::now() - begin, 1500ms);
  EXPECT_LT(steady_clock::now() - begin, 1500ms + 5s);
  EXPECT_THAT(supervisor.err(), StartsWith(supervisor.failure() + "; 1 rank still running, killed 1.5 s after it\n"));
}

TEST(Launcher, SaysThatTheFailedRankItselfStillRuns) {
  LaunchRequest request = request_for(2, {"finish:0", "fail_and_hang"});
  request.grace = 1500ms;
  Supervisor supervisor(request);
  EXPECT_EQ(supervisor.wait(), 1);
  EXPECT_THAT(supervisor.err(), HasSubstr("failed: hung afterwards; this rank still running, killed 1.5 s after it\n"));
}

TEST(Launcher, LeavesNobodyBehindWhenItIsKilled) {
  Supervisor supervisor(request_for(4, {"stubborn"}));
  std::vector<Descriptor> workers;
  for (const std::string& line : supervisor.wait_for_lines("ready", 4)) {
    workers.push_back(open_process(pid_in(line)));
    ASSERT_TRUE(workers.back().is_open());
    ASSERT_FALSE(readable_within(workers.back().get(), 0ms));
  }
  ASSERT_EQ(workers.size(), 4U);
  const auto deadline = steady_clock::now() + 1s;
  supervisor.send(SIGKILL);
  for (const Descriptor& worker : workers) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    EXPECT_TRUE(readable_within(worker.get(), std::max(left, 0ms)));
  }
}

TEST(Launcher, LeavesNoDaemonBehindOnAnOldKernelEither) {
  const TempDir directory;
  const Presence presence(directory);
  auto environment = presence.environment();
  environment["TEST_OLD_KERNEL"] = "1";
  Process launcher({LOCKSTEP_LAUNCH_CHILD, "launch:1:300:0:0", "daemon:stay"}, environment);
  ASSERT_TRUE(launcher.wait_for("daemon ")) << launcher.err();
  launcher.signal(SIGKILL);
  EXPECT_TRUE(presence.ends_within(kDeadline));
}

TEST(Launcher, EndsWhatAWorkerLeftInItsGroup) {
  const TempDir directory;
  const Presence presence(directory);
  LaunchRequest request = request_for(2, {"grandchild"});
  request.environment = Variables(Values{{"TEST_FIFO", (directory.path() / "presence").string()}});
  Supervisor supervisor(request);
  EXPECT_EQ(supervisor.wait(), 0);
  EXPECT_TRUE(presence.ends_within(kDeadline));
}

TEST(Launcher, LetsTheProgramOfAReportFinish) {
  const TempDir directory;
  const std::string file = (directory.path() / "done").string();
  // Ends when the other process has left the group of the rank.
  const std::string leave = "{ setsid sh -c 'echo left; sleep 1; echo done >" + file + "' & } | read line; exit 3";
  for (const bool may_finish : {false, true}) {
    Supervisor supervisor(by_script((may_finish ? "export LOCKSTEP_MAY_FINISH=1; " : "") + leave));
    EXPECT_EQ(supervisor.wait(), 3);
    EXPECT_EQ(std::filesystem::exists(file), may_finish);
  }
}

TEST(Launcher, EndsWellWithoutItsWatcher) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    SCOPED_TRACE(signal);
    Supervisor supervisor(request_for(1, {"stop"}));
    supervisor.wait_for_lines("ready", 1);
    int found = 0;
    const auto deadline = steady_clock::now() + kDeadline;
    while (found == 0 && steady_clock::now() < deadline) {  // it may be slower than the worker
      for (const pid_t child : Process::children_of(supervisor.pid())) {
        if (Process::name_of(child) == Process::kWatcher) {
          found += kill(child, signal) == 0 ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(found, 1);
    supervisor.send(SIGTERM);
    EXPECT_EQ(supervisor.wait(), 75);
  }
}

// The program may start processes itself while another of its threads runs a training.
TEST(Launcher, LeavesChildrenOfTheProgramAloneInAnotherThread) {
  std::promise<void> launched;
  std::promise<void> forked;
  LaunchRequest request = request_for(1, {"fail:65:cannot read it"});
  request.event_directory = [&](const std::string&) {
    launched.set_value();
    forked.get_future().wait();
    return std::filesystem::path();
  };
  std::thread launch([&] { EXPECT_EQ(launch_workers(request).exit_code, 65); });
  launched.get_future().wait();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  forked.set_value();
  launch.join();
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it still runs";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(Launcher, LeavesChildrenOfOtherThreadsToThem) {
  std::counting_semaphore<> launched(0);
  std::promise<void> exited;
  LaunchRequest request = request_for(1, {"fail:65:cannot read it"});
  request.event_directory = [&](const std::string&) {
    launched.release();
    exited.get_future().wait();
    return std::filesystem::path();
  };
  std::promise<void> done;
  std::thread other([&] {
    launched.acquire();
    const pid_t child = fork();
    if (child == 0) {
      _exit(7);
    }
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
    exited.set_value();
    done.get_future().wait();
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
  });
  EXPECT_NO_THROW(EXPECT_EQ(launch_workers(request).exit_code, 65));
  launched.release();  // also if it threw before
  done.set_value();
  other.join();
}

TEST(Launcher, DoesNotLetASlowTerminalHoldWorkersUp) {
  constexpr std::size_t kLines = 20000;  // more than all pipes hold
  const TempDir directory;
  const Presence presence(directory);
  LaunchRequest request = request_for(2, {"flood:" + std::to_string(kLines)});
  request.environment = Variables(Values{{"TEST_FIFO", (directory.path() / "presence").string()}});
  Supervisor supervisor(request);
  EXPECT_TRUE(presence.ends_within(kDeadline)) << "nobody reads the terminal, the workers must end";
  EXPECT_EQ(supervisor.wait(), 0);
  EXPECT_EQ(supervisor.out_lines().size(), 2 * kLines + 1);
}

TEST(Launcher, LosesNoLineWhenItsQueueIsFull) {
  constexpr std::size_t kLines = 150'000;  // more than TerminalQueue::kFullBytes
  LaunchRequest request = request_for(2, {"flood:" + std::to_string(kLines)});
  request.stall_deadline = 1s;
  Supervisor supervisor(request);
  EXPECT_FALSE(supervisor.ends_within(2500ms)) << "it has to wait for its reader, and so have the ranks";
  EXPECT_EQ(supervisor.wait(), 0);
  EXPECT_EQ(static_cast<std::size_t>(std::count(supervisor.out().begin(), supervisor.out().end(), '\n')), 2 * kLines);
  EXPECT_THAT(supervisor.out(), EndsWith(" of a rank that talks much\n"));
}

TEST(Launcher, EndsAStallThoughItsQueueIsFull) {
  const TempDir directory;
  const Presence presence(directory);
  LaunchRequest request = request_for(2, {"flood:150000", "stand"});
  request.environment = Variables(Values{{"TEST_FIFO", (directory.path() / "presence").string()}});
  request.log_dir = directory.path() / "logs";
  request.routes.assign(2, {.out_in_file = true, .err_in_file = true});
  request.stall_deadline = 3s;
  Supervisor supervisor(request);
  EXPECT_TRUE(presence.ends_within(kDeadline)) << "nobody reads the terminal, and no rank waits for it";
  EXPECT_EQ(supervisor.wait(), 124);
  EXPECT_EQ(supervisor.failed_rank(), 1);
}

TEST(Launcher, StopsRanksThatWaitForAReader) {
  const TempDir directory;
  const Presence presence(directory);
  LaunchRequest request = request_for(2, {"talk"});
  request.environment = Variables(Values{{"TEST_FIFO", (directory.path() / "presence").string()}});
  Supervisor supervisor(request);
  EXPECT_FALSE(supervisor.ends_within(2500ms)) << "until its queue is full, and the ranks wait";
  supervisor.send(SIGTERM);
  EXPECT_TRUE(presence.ends_within(kDeadline)) << "nobody reads the terminal, the workers must end";
  EXPECT_TRUE(supervisor.ends_within(kDeadline)) << "and so must the launcher";
  EXPECT_EQ(supervisor.wait(), 75);
}

TEST(Launcher, StopsThoughItsRanksHaveEndedAndNobodyReads) {
  const TempDir directory;
  const Presence presence(directory);
  LaunchRequest request = request_for(2, {"flood:20000"});
  request.environment = Variables(Values{{"TEST_FIFO", (directory.path() / "presence").string()}});
  Supervisor supervisor(request);
  EXPECT_TRUE(presence.ends_within(kDeadline));
  EXPECT_FALSE(supervisor.ends_within(1s)) << "it waits for its reader";
  supervisor.send(SIGTERM);
  EXPECT_TRUE(supervisor.ends_within(kDeadline));
  EXPECT_EQ(supervisor.wait(), 0);
}

TEST(Launcher, RestartsThoughItCannotLog) {
  const TempDir directory;
  LaunchRequest request = request_for(1, {"train:1:5"});
  request.max_restarts = 1;
  request.run_id = "r";
  request.log_dir = directory.path();
  request.routes = {{.out_in_file = true}};
  std::filesystem::create_directories(directory.path() / "r");
  std::ofstream(directory.path() / "r" / "attempt_1") << "no directory\n";
  Supervisor supervisor(request);
  EXPECT_EQ(supervisor.wait(), 0);
  EXPECT_THAT(supervisor.err(), HasSubstr("warning: output of rank 0 is not logged: "));
}

TEST(Launcher, RestartsThoughNobodyReadsTheTerminal) {
  const TempDir directory;
  const auto fifo = directory.path() / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const Descriptor restarted(open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const std::string script = "seq 100000; test $TORCHELASTIC_RESTART_COUNT = 0 || echo >\"$0\"; exit 3";
  Supervisor supervisor({.argv = {"sh", "-c", script, fifo.string()},
                         .program = "/bin/sh",
                         .any_program = true,
                         .max_restarts = 1,
                         .environment = read_environment(),
                         .log_dir = directory.path() / "logs",
                         .routes = {{.out_in_file = true, .err_in_file = true}}});
  EXPECT_TRUE(readable_within(restarted.get(), kDeadline)) << "a pipe does not hold the output of one attempt";
  EXPECT_EQ(supervisor.wait(), 3);
  const std::size_t restart = supervisor.err().find("restart 1 now (");
  ASSERT_NE(restart, std::string::npos) << supervisor.err();
  EXPECT_LT(supervisor.err().find("error: rank 0 "), restart) << "all lines are in order";
  EXPECT_GT(supervisor.err().rfind("error: rank 0 "), restart);
  const std::size_t end = supervisor.err().find("not restarted: ");
  EXPECT_TRUE(end != std::string::npos && end > supervisor.err().rfind("error: rank 0 ")) << supervisor.err();
}

TEST(Launcher, SaysWhyAProgramCannotStart) {
  const TempDir directory;
  const std::filesystem::path text = directory.path() / "text";
  std::ofstream(text) << "no program\n";
  const std::pair<std::string, ExitCode> cases[] = {{(directory.path() / "missing").string(), ExitCode::not_found},
                                                    {text.string(), ExitCode::cannot_run}};
  for (const auto& [program, code] : cases) {
    LaunchRequest request = request_for(2, {"finish:0"});
    request.program = program;
    const auto error = error_of<LaunchError>([&] { launch_workers(request); });
    EXPECT_THAT(error.what(), StartsWith("cannot start " + program + ": exec: "));
    EXPECT_EQ(error.exit_code(), code);
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST(Launcher, RefusesARequestThatIsNotWhole) {
  LaunchRequest request = request_for(2, {"finish:0"});
  request.routes.resize(3);
  request.cores.resize(1);
  EXPECT_THAT(problems_of([&] { launch_workers(request); }),
              ElementsAre(HasSubstr("the size of routes is 3, expected 0 or 2"), HasSubstr("the size of cores is 1,")));
  EXPECT_THAT(problems_of([] { launch_workers({.node = 1}); }),
              ElementsAre(HasSubstr("argv is empty"), HasSubstr("node is 1, expected an index of ranks_per_node")));
  EXPECT_THAT(problems_of([] { launch_workers(request_for(-1, {"finish:0"})); }),
              ElementsAre(HasSubstr("the number of ranks of this machine is -1")));
  LaunchRequest several = request_for(1, {"finish:0"});
  several.ranks_per_node = {1, 1};
  several.max_restarts = 1;
  EXPECT_THAT(problems_of([&] { launch_workers(several); }),
              ElementsAre(HasSubstr("set master_port and run_id"), HasSubstr("leave max_restarts at 0")));
}

TEST(Launcher, LeavesTheCallerAsItWas) {
  sigset_t before;
  sigset_t after;
  sigprocmask(SIG_BLOCK, nullptr, &before);
  const std::map environment = read_environment().all();
  const int lowest_free = dup(STDIN_FILENO);
  close(lowest_free);
  EXPECT_EQ(launch_workers(request_for(2, {"finish:0"})).exit_code, 0);
  sigprocmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
  EXPECT_EQ(read_environment().all(), environment);
  const int lowest_free_after = dup(STDIN_FILENO);
  close(lowest_free_after);
  EXPECT_EQ(lowest_free_after, lowest_free) << "a descriptor was not closed";
}

}  // namespace
}  // namespace lockstep
