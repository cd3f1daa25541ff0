// `lockstep run` as a user runs it: the program itself, with real processes that really die.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/json.h"
#include "base/text.h"
#include "supervise/process_state.h"
#include "support/loud_lines.h"
#include "support/presence.h"
#include "support/process.h"
#include "support/process_states.h"
#include "support/requirements.h"
#include "support/sweep.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

using Words = std::vector<std::string>;

/// lockstep run FLAGS -- launch_child WORDS
Words run(Words flags, const Words& words) {
  flags.insert(flags.begin(), {LOCKSTEP_CLI, "run"});
  flags.insert(flags.end(), {"--", LOCKSTEP_LAUNCH_CHILD});
  flags.insert(flags.end(), words.begin(), words.end());
  return flags;
}

std::vector<pid_t> numbers_after(const std::string& text, const std::string& word) {
  std::vector<pid_t> pids;
  for (const std::string& line : split(text, '\n')) {
    if (const auto at = line.find(word); at != std::string::npos) {
      pids.push_back(static_cast<pid_t>(parse_int(line.substr(at + word.size())).value_or(0)));
    }
  }
  return pids;
}

// --- the program ---

TEST(Run, IsNotLinkedToLibTorch) {
  const auto libraries = run_program({"/usr/bin/env", "LD_TRACE_LOADED_OBJECTS=1", LOCKSTEP_CLI});
  EXPECT_THAT(libraries.out, HasSubstr("libstdc++.so"));
  EXPECT_THAT(libraries.out, Not(HasSubstr("libtorch_cpu.so")));
  EXPECT_THAT(libraries.out, Not(HasSubstr("libc10.so")));
  const auto result = run_program({LOCKSTEP_CLI, "--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, testing::StartsWith("lockstep "));
}

TEST(Run, RefusesBeforeAnythingStarts) {
  struct Case {
    Words args;
    int code;
    const char* says;
  };
  const TempDir temp;
  const auto script = [&](const char* name, const char* text) {
    write_text(temp.path() / name, text);
    std::filesystem::permissions(temp.path() / name, std::filesystem::perms::owner_all);
    return (temp.path() / name).string();
  };
  const std::string no_interpreter = script("no_interpreter", "#!/no/such/interpreter\n");
  const std::string no_first_line = script("no_first_line", "echo hello\n");
  const Case cases[] = {
      {{"run"}, 2, "run: PROGRAM is missing"},
      {{"run", "--nproc-per-nod", "2", "true"}, 2, "did you mean --nproc-per-node?"},
      {{"walk"}, 2, "unknown command"},
      {{"run", "no-such-program-anywhere"}, 127, "cannot find no-such-program-anywhere"},
      {{"run", "./missing/program"}, 127, "cannot find ./missing/program"},
      {{"run", "/etc/passwd"}, 126, "not executable"},
      {{"run", "/etc"}, 126, "cannot run /etc: it is a directory"},
      {{"run", no_interpreter}, 127, "check the path, and in a script the interpreter that its first line names"},
      {{"run", no_first_line}, 126, "a script needs a first line such as #!/bin/sh"},
      {{"run", "--local-ranks-filter", "0,7", "true"}, 2, "--local-ranks-filter: found local rank 7 of 1 rank"},
      {{"plan", "--json", "--print-config"}, 2, "plan: --json prints the plan, --print-config the settings"},
  };
  for (const Case& c : cases) {
    Words argv = c.args;
    argv.insert(argv.begin(), LOCKSTEP_CLI);
    const auto result = run_program(argv);
    EXPECT_EQ(result.code, c.code) << c.says;
    EXPECT_THAT(result.err, HasSubstr(c.says));
  }
}

TEST(Run, NeedsEnoughOpenFiles) {  // O3
  const auto limited = [](const std::string& limit) {
    return run_program({"sh", "-c", "ulimit -n " + limit + " && exec " LOCKSTEP_CLI " run --nproc-per-node 16 true"});
  };
  EXPECT_EQ(limited("160").code, 0);
  const auto refused = limited("159");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("16 of 16 ranks on this machine need up to 160 open files, the hard limit is 159"));
}

TEST(Run, SaysThatNoMoreProcessesAreAllowed) {  // O6
  const auto limited_run = [](int limit, const Words& words) {
    // The leak check of a sanitizer would need one process more at the end, and would put its own code in place of 126.
    Words limited{
        "env", "LSAN_OPTIONS=detect_leaks=0", "setpriv", "--reuid=64999", "--regid=64999", "--clear-groups", "prlimit"};
    limited.push_back(fmt::format("--nproc={}", limit));
    limited.insert(limited.end(), words.begin(), words.end());
    return run_program(limited);
  };
  LOCKSTEP_REQUIRE(
      Requirements().that(limited_run(4, {"true"}).code == 0,
                          "not root, for whom there is no limit, or no setpriv and prlimit to be another"));
  for (const auto& [limit, refused] : {std::pair(1, "fork"), {2, "thread"}, {4, "fork"}}) {
    const auto result = limited_run(limit, {LOCKSTEP_CLI, "run", "--nproc-per-node", "8", "sleep", "1000"});
    EXPECT_EQ(result.code, 126) << result.err;
    EXPECT_THAT(result.err, HasSubstr(fmt::format("{}: Resource temporarily unavailable\n", refused)));
    EXPECT_THAT(result.err, HasSubstr("hint: check the limits on processes, threads and memory"));
  }
}

TEST(Run, BelievesTheExitCodeOfAnyProgram) {
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "true"}).code, 0);
  // The codes 75 and 130, and SIGTERM, are not the end of a stop that nobody asked for.
  for (const auto& [end, code] :
       {std::pair("exit 3", 3), std::pair("exit 75", 75), std::pair("exit 130", 130), std::pair("kill $$", 143)}) {
    const auto failed = run_program({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--", "sh", "-c",
                                     fmt::format("test $RANK = 0 || {}; exec sleep 1000", end)});
    EXPECT_EQ(failed.code, code);
    EXPECT_THAT(failed.err, HasSubstr("error: rank 1 (host "));
    EXPECT_THAT(failed.err, EndsWith(fmt::format("exit code {}\n", code)));
  }
}

TEST(Run, StartsUnequalMachines) {
  // Two launchers on loopback stand for two machines. Their ranks meet at the port that machine 0 bound.
  const auto probe = run_program(run({"--nproc-per-node", "2"}, {"inspect"}));
  const auto ports = numbers_after(probe.out, "[rank0]: MASTER_PORT=");
  ASSERT_EQ(ports.size(), 1U);
  const std::string port = std::to_string(ports[0]);  // free again, and not given out soon
  const auto machine = [&](const std::string& number) {
    return run({"--nnodes", "2", "--nproc-per-node", "2,1", "--node-rank", number, "--master-addr", "127.0.0.1",
                "--master-port", port},
               {"rendezvous"});
  };
  Process second(machine("1"));
  Process first(machine("0"));
  EXPECT_EQ(first.wait().code, 0) << first.err();
  EXPECT_EQ(second.wait().code, 0) << second.err();
  const auto inspected = run_program(run({"--nnodes", "2", "--nproc-per-node", "2,1", "--node-rank", "1",
                                          "--master-addr", "127.0.0.1", "--master-port", port},
                                         {"inspect"}));
  for (const char* line : {"[rank2]: RANK=2\n", "[rank2]: LOCAL_RANK=0\n", "[rank2]: WORLD_SIZE=3\n",
                           "[rank2]: LOCAL_WORLD_SIZE=1\n", "[rank2]: GROUP_RANK=1\n"}) {
    EXPECT_THAT(inspected.out, HasSubstr(line));
  }
}

TEST(Run, LaunchesDoNotCollide) {
  const int count = rounds(16, 64);
  std::vector<std::unique_ptr<Process>> launches;
  for (int i = 0; i < count; ++i) {
    launches.push_back(std::make_unique<Process>(run({"--nproc-per-node", "2"}, {"rendezvous"})));
  }
  Sweep sweep("launches at once");
  for (const auto& launch : launches) {
    const auto result = launch->wait();
    EXPECT_EQ(result.code, 0) << result.err;
    sweep.count(result.code == 0);
  }
  EXPECT_EQ(sweep.points(), count);
}

TEST(Run, SaysThatAPortIsTaken) {
  const Descriptor squatter(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(squatter.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(squatter.get(), 1), 0);
  ASSERT_EQ(getsockname(squatter.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto result = run_program(run({"--master-port", std::to_string(ntohs(address.sin_port))}, {"finish:0"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("is held by pid " + std::to_string(getpid()) + " '"));
  EXPECT_THAT(result.err, HasSubstr("--master-port"));
}

// --- restarts (E1, E2, E3) ---

TEST(Restart, GoesOnUntilItWorksAndSaysSo) {
  const TempDir directory;
  const auto result = run_program(run({"--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", directory.path()},
                                      {"train:2:10,20,30", "finish:0"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("attempt 2"));
  EXPECT_THAT(result.err, HasSubstr("restart 1 now (0 left without progress): rank 0 (host "));
  EXPECT_THAT(result.err, HasSubstr("restart 2 now ("));
  EXPECT_THAT(result.err,
              testing::ContainsRegex("2 restarts, 30 steps repeated, [0-9.]+ % of the time was productive"));

  std::vector<std::string> events;
  for (const std::string& line : split(read_text(directory.path() / "events.jsonl"), '\n')) {
    if (!line.empty()) {
      events.push_back(Json::parse(line).at("event"));
    }
  }
  EXPECT_EQ(events, (Words{"failure", "restart", "failure", "restart", "goodput"}));
}

TEST(Restart, FollowsACodeOfAnyProgramThatLooksLikeAStop) {
  const auto result = run_program({LOCKSTEP_CLI, "run", "--max-restarts", "1", "--", "sh", "-c",
                                   "test $TORCHELASTIC_RESTART_COUNT = 1 || exit 75"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 now ("));
}

TEST(Restart, EndsWhenTheBudgetIsUsedUp) {
  const auto result = run_program(run({"--max-restarts", "1"}, {"train:9:30,20,10"}));  // no progress
  EXPECT_EQ(result.code, 137);
  EXPECT_EQ(numbers_after(result.out, "attempt "), (std::vector<pid_t>{0, 1}));
  EXPECT_THAT(result.err, HasSubstr("not restarted: no progress in 1 restart: rank 0 (host "));
}

TEST(Restart, EndsWhenTheSameHappensAgain) {
  const auto result = run_program(run({"--max-restarts", "50"}, {"train:9:30"}));
  EXPECT_EQ(result.code, 137);
  EXPECT_EQ(numbers_after(result.out, "attempt "), (std::vector<pid_t>{0, 1}));
  EXPECT_THAT(result.err, HasSubstr("not restarted: deterministic failure: the same twice in a row at step 30"));
}

TEST(Restart, IsNotTriedForWrongSettings) {
  const auto result = run_program(run({"--max-restarts", "5"}, {"fail:78:ranks disagree"}));
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.err, Not(HasSubstr("restart 1")));
}

TEST(Restart, StopsDuringTheWait) {
  const std::pair<int, int> cases[] = {{SIGTERM, 75}, {SIGINT, 130}};
  for (const auto& [signal, code] : cases) {
    Process process(run({"--max-restarts", "5"}, {"train:9:6,5,4,3,2,1"}));  // no progress
    ASSERT_TRUE(process.wait_for("restart 4 in 4 s (1 left without progress): ")) << process.err();
    process.signal(signal);
    EXPECT_EQ(process.wait().code, code);
    EXPECT_THAT(process.err(), EndsWith("stopped before the restart\n"));
  }
}

TEST(Restart, GoesOnAfterARequestForStacksDuringTheWait) {
  Process process(run({"--max-restarts", "5"}, {"train:9:6,5,4,3,2,1"}));  // no progress
  ASSERT_TRUE(process.wait_for("restart 3 in 2 s")) << process.err();
  process.signal(SIGUSR2);
  ASSERT_TRUE(process.wait_for("restart 4 in 4 s")) << process.err();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

// --- output ---

TEST(RunOutput, IsCompleteInFilesThoughNobodyReadsTheTerminal) {  // L1
  constexpr int kRanks = 8;
  const int lines = 1000 * rounds(6);
  const TempDir directory;
  const Presence presence(directory);
  const auto logs = directory.path() / "logs";
  const mode_t mask = umask(0);
  umask(mask);
  Process process(
      run({"--nproc-per-node", "8", "--log-dir", logs, "--rdzv-id", "job"}, {"loud:" + std::to_string(lines)}),
      presence.environment());
  EXPECT_TRUE(presence.ends_within(120s)) << "nobody reads the terminal, the workers must end";
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, HasSubstr("lines are only in the log files"));
  Sweep sweep("files of loud ranks");
  for (int rank = 0; rank < kRanks; ++rank) {
    std::string expected;
    for (int line = 0; line < lines; ++line) {
      expected += loud_line(rank, line);
    }
    const auto file = logs / "job" / "attempt_0" / ("rank_" + std::to_string(rank) + ".log");
    sweep.count(read_text(file) == expected);
    struct stat status {};
    ASSERT_EQ(stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0666U & ~mask);
  }
  struct stat status {};
  ASSERT_EQ(stat((logs / "job").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0777U & ~mask);
  EXPECT_EQ(sweep.lost(), 0) << "files are not what was written";
}

TEST(RunOutput, ControlWithoutFilesTheWorkersWait) {
  const TempDir directory;
  const Presence presence(directory);
  Process process(run({"--nproc-per-node", "8"}, {"loud:6000"}), presence.environment());
  EXPECT_FALSE(presence.ends_within(3s)) << "4 MiB are kept for the terminal, the rest has to wait";
}

// A rank with the output of an ordinary training never waits as long as a step, even without a reader.
TEST(RunOutput, OfAnOrdinaryRankDoesNotWaitForAStalledReader) {
  const TempDir directory;
  const Presence presence(directory);
  const auto logs = directory.path() / "logs";
  Process process(run({"--nproc-per-node", "2", "--log-dir", logs, "--rdzv-id", "job"}, {"steady:3000"}),
                  presence.environment());
  EXPECT_TRUE(presence.ends_within(60s)) << "nobody reads the terminal, the workers must end";
  EXPECT_EQ(process.wait().code, 0);
  for (const char* rank : {"0", "1"}) {
    const auto file = logs / "job/attempt_0" / fmt::format("rank_{}.log", rank);
    const auto longest_ms = numbers_after(read_text(file), "longest write ");
    ASSERT_EQ(longest_ms.size(), 1U);
    EXPECT_LE(longest_ms.front(), 100);
  }
}

TEST(RunOutput, GoesWhereItWasSent) {
  const TempDir directory;
  const auto logs = directory.path() / "logs";
  const auto result = run_program(run({"--nproc-per-node", "2", "--log-dir", logs, "--rdzv-id", "job", "--redirects",
                                       "0:1", "--tee", "0", "--local-ranks-filter", "0"},
                                      {"print", "print"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("[rank0]: to err"));
  EXPECT_THAT(result.err, Not(HasSubstr("[rank1]")));
  EXPECT_THAT(read_text(logs / "job/attempt_0/rank_0.log"), HasSubstr("\x1b[31mred")) << "raw";
  EXPECT_THAT(read_text(logs / "job/attempt_0/rank_0.log"), Not(HasSubstr("to err")));
  EXPECT_FALSE(std::filesystem::exists(logs / "job/attempt_0/rank_1.log"));
}

TEST(RunOutput, OfAnEmptyLogDirIsInNoFile) {
  const TempDir directory;
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "run", "--log-dir", "", "--", "true"}, {}, directory.path().string()).code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(RunOutput, TheMainRanksReportIsInItsFileToo) {
  const TempDir directory;
  const auto result = run_program(run({"--log-dir", directory.path(), "--rdzv-id", "job"}, {"print"}));
  EXPECT_THAT(result.err, HasSubstr("step 20 | loss 2.1\n"));
  EXPECT_THAT(read_text(directory.path() / "job/attempt_0/rank_0.log"), HasSubstr("step 20 | loss 2.1"));
}

// --- no orphans (K4, K5) ---

TEST(Orphans, EndWithAnOrdinaryRun) {
  const TempDir directory;
  const Presence presence(directory);
  const auto result = run_program(run({"--nproc-per-node", "2"}, {"daemon:finish"}), presence.environment());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(presence.ends_within(0ms)) << "gone before the launcher is";
}

TEST(Orphans, EndWithAFailure) {
  const TempDir directory;
  const Presence presence(directory);
  const auto result = run_program(
      run({"--nproc-per-node", "2", "--grace", "0.2"}, {"daemon:stay", "fail:1:on purpose"}), presence.environment());
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(presence.ends_within(0ms));
}

TEST(Orphans, EndThoughTheyThrewTheirEnvironmentAway) {
  const auto result = run_program(run({"--nproc-per-node", "2"}, {"bare_daemon"}));
  EXPECT_EQ(result.code, 0);
  const auto daemons = numbers_after(result.out, "daemon ");
  ASSERT_EQ(daemons.size(), 2U);
  EXPECT_TRUE(Process::gone(daemons, 0ms));
}

// Slurm gives a job the environment of the process that has submitted it.
TEST(Orphans, OfAnotherBatchJobAreNoOrphans) {
  for (const std::string own : {"", "1"}) {  // the job of the launcher
    const TempDir directory;
    const auto file = directory.path() / "id";
    const std::string script = "echo $LOCKSTEP_LAUNCH_ID >\"$0\"; echo written; exec sleep 1000";
    Process launcher({LOCKSTEP_CLI, "run", "--", "sh", "-c", script, file.string()},
                     {{"SLURM_JOB_ID", own}, {"LSB_JOBID", ""}, {"PBS_JOBID", ""}});
    ASSERT_TRUE(launcher.wait_for("written")) << launcher.err();
    const auto start = [&](const std::string& job) {
      const std::string id = read_text(file);
      auto process = std::make_unique<Process>(
          Words{"env", "-i", "LOCKSTEP_LAUNCH_ID=" + id.substr(0, id.find('\n')), job, "sleep", "1000"});
      // Before it has this name, it has the environment of this test.
      EXPECT_TRUE(becomes_true([&] { return Process::name_of(process->pid()) == "sleep"; }));
      return process;
    };
    const auto submitted = start("SLURM_JOB_ID=2");
    const auto daemon = start("OTHER=1");
    launcher.signal(SIGTERM);
    launcher.wait();
    EXPECT_EQ(daemon->wait().code, 128 + SIGKILL);
    EXPECT_FALSE(submitted->ended_within(100ms)) << "it is not of this launch";
  }
}

// As in `setup & exec lockstep run ...`: the launcher has a child that nobody waits for.
TEST(Orphans, AreReapedBehindAChildOfTheScript) {
  const std::string rank =
      "for i in 1 2 3 4 5 6; do (setsid sleep 0.6 &); done; sleep 1.2; echo ended; exec sleep 1000";
  Process launcher({"sh", "-c", "sleep 0.3 & exec \"$0\" run -- sh -c \"$1\"", LOCKSTEP_CLI, rank});
  ASSERT_TRUE(launcher.wait_for("ended")) << launcher.err();
  const auto has_one_zombie = [&] {
    return std::ranges::count_if(Process::children_of(launcher.pid()),
                                 [](pid_t child) { return read_process_state(child).state == 'Z'; }) == 1;
  };
  EXPECT_TRUE(becomes_true(has_one_zombie)) << "only the child of the script is left";
  launcher.signal(SIGTERM);
  launcher.wait();
}

/// It gives itself its name, perhaps after the first lines of the ranks. -1: there is none.
pid_t watcher_of(pid_t launcher) {
  pid_t watcher = -1;
  becomes_true([&] {
    for (const pid_t child : Process::children_of(launcher)) {
      watcher = Process::name_of(child) == Process::kWatcher ? child : watcher;
    }
    return watcher > 0;
  });
  return watcher;
}

TEST(Orphans, DoNotOutliveAKilledLauncher) {
  Sweep sweep("killed launchers of daemons");
  const int points = rounds(6);
  for (int point = 0; point < points; ++point) {
    const int ranks = sweep.between(2, 8);
    const auto delay = std::chrono::microseconds(sweep.between(0, 20'000));
    const TempDir directory;
    const Presence presence(directory);
    Process launcher(run({"--nproc-per-node", std::to_string(ranks)}, {"daemon:stay"}), presence.environment());
    ASSERT_TRUE(launcher.wait_for("daemon "));
    usleep(static_cast<useconds_t>(delay.count()));
    launcher.signal(SIGKILL);
    EXPECT_EQ(launcher.wait().code, 137);
    const bool gone = presence.ends_within(1s);
    EXPECT_TRUE(gone) << ranks << " ranks, killed " << delay.count() << " us after the first daemon";
    sweep.count(gone);
  }
  EXPECT_EQ(sweep.points(), points);
}

TEST(Orphans, ControlWithoutItsWatcherTheySurvive) {
  const TempDir directory;
  const Presence presence(directory);
  Process launcher(run({"--nproc-per-node", "1"}, {"daemon:stay"}), presence.environment());
  ASSERT_TRUE(launcher.wait_for("daemon "));
  const pid_t watcher = watcher_of(launcher.pid());
  ASSERT_GT(watcher, 0);
  kill(watcher, SIGKILL);
  launcher.signal(SIGKILL);
  const auto result = launcher.wait();
  EXPECT_FALSE(presence.ends_within(500ms)) << "this test would not see a survivor";
  for (const pid_t daemon : numbers_after(result.out, "daemon ")) {
    kill(daemon, SIGKILL);
  }
  EXPECT_TRUE(presence.ends_within(10s));
}

}  // namespace
}  // namespace lockstep
