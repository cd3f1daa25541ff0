// Ownership of a run directory: a second start, another program, --fresh under every launcher, a restart before the
// first save, and the contents of config.toml.
#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/text.h"
#include "support/plain_ranks.h"
#include "support/runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Path = std::filesystem::path;

class RunDirectories : public testing::Test {
 protected:
  Path run(const std::string& name = "run") const { return dir_.path() / name; }
  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    return with(command(TRAIN_PROGRAM, run(), {"--data.workers", "0", "--max_epochs", "1"}), more);
  }
  /// Trains until it is killed.
  std::vector<std::string> endless() const { return train({"--max_epochs", "100000", "--work_ms", "20"}); }

  /// Every file and its content.
  static std::map<std::string, std::string> files_in(const Path& directory) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) {
        files[entry.path().lexically_relative(directory).string()] = read_text(entry.path());
      }
    }
    return files;
  }
  int runs() const {  // "run" and the directories that were moved away
    int found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      found += entry.path().filename().string().starts_with("run") ? 1 : 0;
    }
    return found;
  }

  TempDir dir_;
};

// --- a second start ---

class SecondStart : public RunDirectories, public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(SecondStart, IsRefusedAndTouchesNothing) {
  Process first(with(endless(), GetParam()));
  ASSERT_TRUE(first.wait_for("step 2 ")) << first.err();
  first.signal(SIGSTOP);
  const auto before = files_in(run());
  for (const auto& flags : std::vector<std::vector<std::string>>{{"--nprocs", "1"}, {"--nprocs", "2"}, {"--fresh"}}) {
    auto second = with(train(GetParam()), {"--max_epochs", "7"});
    second.insert(second.end(), flags.begin(), flags.end());
    const auto refused = run_program(second);
    EXPECT_EQ(refused.code, 65) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("run directory "));
    EXPECT_THAT(refused.err, HasSubstr("is in use by pid " + std::to_string(first.pid()) + " on "));
    EXPECT_EQ(runs(), 1) << "the run was renamed under its owner";
    EXPECT_TRUE(files_in(run()) == before) << "a file of the running run was touched";
  }
  first.signal(SIGCONT);
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().code, 75);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, SecondStart,
                         testing::Values(std::vector<std::string>{},
                                         std::vector<std::string>{"--no-checkpoint.enabled"}));

TEST_F(RunDirectories, AreFreeAtOnceWhenTheOwnerWasKilled) {
  Process first(endless());
  ASSERT_TRUE(first.wait_for("step 2 ")) << first.err();
  first.signal(SIGKILL);
  first.wait();
  EXPECT_EQ(run_program(train()).code, 0);
}

TEST_F(RunDirectories, HaveTheNameThatRankZeroWasGiven) {
  const auto ranks = start_ranks(
      3, {"env", "--chdir", dir_.path().string(), TRAIN_PROGRAM, "--compute_setup", "cpu", "--max_epochs", "1"},
      [](PlainRank& rank) {
        rank.words = with(rank.words, {"--run_name", "name_" + std::to_string(rank.rank)});
      });
  for (const auto& rank : ranks) {
    const auto result = rank->wait();
    EXPECT_EQ(result.code, 0) << result.err;
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path() / "runs")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, testing::ElementsAre("name_0"));
}

// --- strangers ---

TEST_F(RunDirectories, OfAnotherProgramAreRefusedByName) {
  ASSERT_EQ(run_program(train()).code, 0);
  const Path renamed = dir_.path() / "renamed";
  std::filesystem::create_symlink(TRAIN_PROGRAM, renamed);
  auto stranger = train({"--max_epochs", "2"});
  stranger.front() = renamed.string();
  const auto files = [&] {  // without the locks, which contain the last process
    auto found = files_in(run());
    found.erase(".lock");
    found.erase("checkpoints/.lock");
    return found;
  };
  const auto before = files();
  const auto refused = run_program(stranger);
  EXPECT_EQ(refused.code, 65) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("contains a run of the program train_program, this program is renamed"));
  EXPECT_THAT(refused.err, HasSubstr("--fresh"));
  EXPECT_THAT(refused.err, HasSubstr("--run_name"));
  EXPECT_TRUE(files() == before);
  // A program that was renamed on purpose uses a different run.
  const auto goes_on =
      run_program(with(stranger, {"--run_dir", run("run_renamed").string(), "--resume", run().string()}));
  EXPECT_EQ(goes_on.code, 0) << goes_on.err;
  EXPECT_THAT(goes_on.err, HasSubstr("resuming from"));
}

// By default the directory follows from where the program starts, from its name and from --run_name.
TEST_F(RunDirectories, OfAnotherNameOrPlaceBeginAtStepZero) {
  const TempDir elsewhere;
  const auto train_in = [](const TempDir& place, const std::vector<std::string>& flags) {
    const auto result = run_program(with({TRAIN_PROGRAM, "--compute_setup", "cpu"}, flags), {}, place.path().string());
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  const auto begins = AllOf(HasSubstr("\nstep 1 |"), Not(HasSubstr("resuming from")));
  EXPECT_THAT(train_in(dir_, {"--max_epochs", "1"}), begins);
  EXPECT_THAT(train_in(dir_, {"--max_epochs", "2", "--run_name", "other"}), begins);
  EXPECT_THAT(train_in(elsewhere, {"--max_epochs", "2"}), begins);
  // Control: the same place and name.
  EXPECT_THAT(train_in(dir_, {"--max_epochs", "2"}), AllOf(HasSubstr("resuming from"), Not(HasSubstr("\nstep 1 |"))));
}

TEST_F(RunDirectories, AreTheSameForAnyNumberOfRanksIfMainChangesTheDirectory) {
  std::filesystem::create_directories(dir_.path() / "sub" / "sub");  // main of a rank would go there
  for (const std::string ranks : {"1", "2"}) {
    const auto result = run_program(
        {TRAIN_PROGRAM, "--compute_setup", "cpu", "--nprocs", ranks, "--max_epochs", "1", "--run_dir", "run_" + ranks},
        {{"TRAIN_PROGRAM_GOES_TO", "sub"}}, dir_.path().string());
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(std::filesystem::exists(dir_.path() / "sub" / ("run_" + ranks) / "checkpoints")) << ranks;
    EXPECT_TRUE(std::filesystem::is_empty(dir_.path() / "sub" / "sub")) << ranks;
  }
}

TEST_F(RunDirectories, OfAnotherModelAreRefusedBeforeTheFirstSave) {
  ASSERT_EQ(run_program(train({"--fail_in", "optimizer", "--fail_step", "0", "--checkpoint.enabled=false"})).code, 1);
  const std::string config = read_text(run() / "config.toml");
  const auto refused = run_program(train({"--fp64", "--seed", "7"}));
  EXPECT_EQ(refused.code, 65) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("holds a run of another model"));
  EXPECT_EQ(read_text(run() / "config.toml"), config);
  EXPECT_EQ(run_program(train({"--fp64", "--fresh"})).code, 0);
}

// --- config.toml ---

TEST_F(RunDirectories, KeepWhatWasAskedForNotWhatFollowedFromTheRanks) {
  ASSERT_EQ(run_program(train({"--global_batch_size", "8", "--nprocs", "1"})).code, 0);
  const std::string config = read_text(run() / "config.toml");
  EXPECT_THAT(config, HasSubstr("global_batch_size = 8\n"));
  EXPECT_THAT(config, HasSubstr("accumulation = 0\n"));
  EXPECT_THAT(config, HasSubstr("nprocs = 1\n"));
  EXPECT_THAT(config, HasSubstr("backend = \"auto\"\n"));
  // The same file with another number of ranks and another name: another run.
  const auto wider = run_program({TRAIN_PROGRAM, "--config", (run() / "config.toml").string(), "--run_name", "wider",
                                  "--nprocs", "2", "--max_epochs", "2"},
                                 {}, dir_.path().string());
  EXPECT_EQ(wider.code, 0) << wider.err;
  EXPECT_THAT(wider.err, Not(HasSubstr("resuming")));
  EXPECT_TRUE(std::filesystem::exists(dir_.path() / "runs" / "wider" / "run.json"));
}

TEST_F(RunDirectories, KeepTheSettingsFileOfTheUser) {
  const std::string mine = "# why this rate\n[optim]\nlr = 0.01\n";
  std::filesystem::create_directories(run());
  std::ofstream(run() / "config.toml") << mine;
  const auto start = train({"--config", (run() / "config.toml").string(), "--optim.lr", "0.02"});
  const auto first = run_program(start);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("config.toml was there before the run: moved it to config.toml.1"));
  EXPECT_EQ(read_text(run() / "config.toml.1"), mine);
  EXPECT_THAT(read_text(run() / "config.toml"), HasSubstr("lr = 0.02\n"));
  ASSERT_EQ(run_program(with(start, {"--max_epochs", "2"})).code, 0);  // from now on it is the run's
  EXPECT_FALSE(std::filesystem::exists(run() / "config.toml.2"));
}

TEST_F(RunDirectories, KeepTheSettingsFileOfTheUserIfTheFirstAttemptDiesBeforeItsFit) {
  const std::string mine = "# why this rate\n[optim]\nlr = 0.01\n";
  std::filesystem::create_directories(run());
  std::ofstream(run() / "config.toml") << mine;
  const auto result = run_program(train({"--nprocs", "2", "--dist.max_restarts", "2"}),
                                  {{"TRAIN_PROGRAM_DIES_ONCE", (dir_.path() / "died").string()}});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 now ("));
  EXPECT_EQ(read_text(run() / "config.toml.1"), mine);
}

TEST_F(RunDirectories, KeepTheSettingsFileOfTheUserOnceHoweverManyStartsFail) {
  const std::string mine = "[optim]\nlr = 0.01\n";
  std::filesystem::create_directories(run());
  std::ofstream(run() / "config.toml") << mine;
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(run_program(train({"--init_weights", (dir_.path() / "missing").string()})).code, 65);
  }
  EXPECT_EQ(read_text(run() / "config.toml"), mine);
  EXPECT_EQ(read_text(run() / "config.toml.1"), mine);
  EXPECT_FALSE(std::filesystem::exists(run() / "config.toml.2"));
}

// The run that it could not resume has not begun.
TEST_F(RunDirectories, KeepTheSettingsFileThatTheUserChangesAfterAStartThatFailed) {
  ASSERT_EQ(run_program(with(train(), {"--run_dir", run("other").string()})).code, 0);
  std::filesystem::create_directories(run());
  std::ofstream(run() / "config.toml") << "[optim]\nlr = 0.01\n";
  const auto failed = run_program(train({"--fp64", "--resume", run("other").string()}));
  ASSERT_EQ(failed.code, 65) << failed.err;
  ASSERT_THAT(failed.err, HasSubstr("the checkpoint does not match the model"));
  const std::string edited = "# better\n[optim]\nlr = 0.02\n";
  std::ofstream(run() / "config.toml") << edited;
  const auto first = run_program(train({"--fp64"}));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(read_text(run() / "config.toml.2"), edited);
}

TEST_F(RunDirectories, OfAFinishedRunStayFinishedIfAStartWithAnotherModelFails) {
  for (const char* ranks : {"1", "2"}) {
    const Path folder = dir_.path() / ranks;
    const auto start = with(train({"--nprocs", ranks}), {"--run_dir", (folder / "run").string()});
    const auto first = run_program(start);
    ASSERT_EQ(first.code, 0) << first.err;
    const auto failed = run_program(with(start, {"--fp64"}));
    EXPECT_EQ(failed.code, 65) << failed.err;
    EXPECT_THAT(failed.err, HasSubstr("the checkpoint does not match the model"));
    EXPECT_THAT(read_lines(folder / "run" / "events.jsonl").back(), HasSubstr(R"("event":"failure")"));
    const auto list = run_program({LOCKSTEP_CLI, "list", "--json", folder.string()});
    const auto found = nlohmann::json::parse(list.out)["runs"][0];
    EXPECT_EQ(found["state"], "finished") << list.out;
    EXPECT_THAT(found["notes"].dump(), AllOf(HasSubstr("a later start failed: "), HasSubstr("does not match")));
  }
}

TEST_F(RunDirectories, OfAFinishedRunNameTheSettingsThatChanged) {
  ASSERT_EQ(run_program(train()).code, 0);
  const auto again = run_program(train({"--optim.lr", "0.002", "--seed", "3"}));
  EXPECT_EQ(again.code, 0);
  const std::string last = again.err.substr(again.err.find("nothing to do"));
  EXPECT_THAT(last, HasSubstr("--seed is 3 now, 42 when"));
  EXPECT_THAT(last, HasSubstr("--optim.lr is 0.002 now, 0 when"));
  EXPECT_THAT(last, HasSubstr("--run_name"));
  EXPECT_THAT(last, HasSubstr("--fresh"));
}

TEST_F(RunDirectories, HaveThePermissionsOfTheUmask) {
  const mode_t before = umask(027);
  const auto result = run_program(train());
  umask(before);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run())) {
    if (!entry.is_symlink()) {
      struct stat status {};
      ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 0777U, entry.is_directory() ? 0750U : 0640U) << entry.path();
    }
  }
}

// --- where a restart begins ---

// A requeued job is a restart of its launch, under every launcher.
TEST_F(RunDirectories, ARestartBeforeTheFirstSaveBeginsWhereTheLaunchBegan) {
  ASSERT_EQ(run_program(train({"--max_steps", "4"})).code, 0);
  auto other = train({"--max_steps", "20", "--max_epochs", "0"});
  ASSERT_EQ(run_program(with(other, {"--run_dir", run("run_other").string()})).code, 0);
  const auto launch = with(endless(), {"--resume", run("run_other").string(), "--checkpoint.every_epochs", "0"});
  Process killed(launch, {{"SLURM_JOB_ID", "77"}});
  ASSERT_TRUE(killed.wait_for("step 22 ")) << killed.err();
  killed.signal(SIGKILL);
  killed.wait();
  Process again(with(launch, {"--checkpoint.every_steps", "10"}),
                {{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "1"}});
  ASSERT_TRUE(again.wait_for("step 35 ")) << again.err();
  EXPECT_THAT(again.err(), HasSubstr("resuming from " + run("run_other").string()));
  again.signal(SIGKILL);
  again.wait();
  // After its first save, it resumes from its own checkpoint.
  Process third(launch, {{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "2"}});
  ASSERT_TRUE(third.wait_for("resuming from")) << third.err();
  EXPECT_THAT(third.err(), HasSubstr(" in " + run().string()));
}

TEST_F(RunDirectories, ARestartBeforeTheFirstSaveBeginsAtTheBestCheckpointAgain) {
  const std::vector<std::string> monitor{"--checkpoint.monitor",      "val_loss",
                                         "--checkpoint.mode",         "max",  // the highest loss: the first checkpoint
                                         "--validate.every_steps",    "10",
                                         "--checkpoint.every_epochs", "0"};
  ASSERT_EQ(
      run_program(with(train({"--max_steps", "30", "--max_epochs", "0", "--checkpoint.every_steps", "10"}), monitor))
          .code,
      0);
  const auto launch = with(with(endless(), monitor), {"--resume", "best"});
  for (const char* restart : {"0", "1"}) {
    Process attempt(launch, {{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", restart}});
    ASSERT_TRUE(attempt.wait_for("step 12 ")) << attempt.err();
    EXPECT_THAT(attempt.err(), HasSubstr("resuming from step 10 in " + run().string()));
    attempt.signal(SIGKILL);
    attempt.wait();
  }
}

// --- other libraries ---

TEST_F(RunDirectories, LoseOldCheckpointsInAProgramThatLinksAllOfLibTorch) {
  const auto result = run_program(command(TRAIN_PROGRAM_WITH_TORCH, run(), {"--max_epochs", "4"}));
  EXPECT_EQ(result.code, 0) << result.err;
  const std::filesystem::directory_iterator checkpoints(run() / "checkpoints");
  EXPECT_EQ(std::count_if(begin(checkpoints), end(checkpoints),
                          [](const auto& entry) { return entry.path().filename().string().starts_with("step-"); }),
            2);
}

// --- --fresh ---

TEST_F(RunDirectories, FreshTakesASlashAtTheEnd) {
  ASSERT_EQ(run_program(train()).code, 0);
  const auto fresh = run_program(train({"--run_dir", run().string() + "/", "--fresh"}));
  EXPECT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_THAT(fresh.err, HasSubstr("moved the old run to " + run().string() + ".1"));
  EXPECT_TRUE(std::filesystem::exists(run("run.1") / "checkpoints"));
}

TEST_F(RunDirectories, FreshStartsOverInASecondAttemptIfTheFirstDiedBefore) {
  ASSERT_EQ(run_program(train({"--max_steps", "9"})).code, 0);
  const auto result = run_program(train({"--fresh", "--nprocs", "2", "--dist.max_restarts", "2"}),
                                  {{"TRAIN_PROGRAM_DIES_ONCE", (dir_.path() / "died").string()}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 now ("));
  EXPECT_THAT(result.err, HasSubstr("moved the old run to"));
  EXPECT_THAT(result.err, Not(HasSubstr("resuming")));
  EXPECT_EQ(runs(), 2);
}

struct Requeue {
  const char* name;
  Process::Environment job;
  const char* ranks;
};

class FreshInASlurmJob : public RunDirectories, public testing::WithParamInterface<Requeue> {};

TEST_P(FreshInASlurmJob, ActsOnceHoweverOftenTheJobIsQueuedAgain) {
  const auto& [name, job, ranks] = GetParam();
  ASSERT_EQ(run_program(train()).code, 0);
  for (const int attempt : {0, 1, 2}) {
    auto environment = job;
    if (attempt > 0) {
      environment["SLURM_RESTART_COUNT"] = std::to_string(attempt);
    }
    const auto result =
        run_program(train({"--fresh", "--nprocs", ranks, "--max_steps", std::to_string(4 + attempt)}), environment);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err.find("resuming from step") != std::string::npos, attempt > 0) << result.err;
    EXPECT_EQ(runs(), 2) << "attempt " << attempt;
  }
  // The same command without a requeue is another launch.
  const auto second = run_program(train({"--fresh", "--nprocs", ranks, "--max_steps", "3"}), job);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(runs(), 3);
}

INSTANTIATE_TEST_SUITE_P(Jobs, FreshInASlurmJob,
                         testing::Values(Requeue{"without_srun", {{"SLURM_JOB_ID", "77"}}, "1"},
                                         Requeue{"without_srun_two_ranks", {{"SLURM_JOB_ID", "77"}}, "2"},
                                         Requeue{"one_task_per_node",
                                                 {{"SLURM_JOB_ID", "77"},
                                                  {"SLURM_STEP_ID", "0"},
                                                  {"SLURM_PROCID", "0"},
                                                  {"SLURM_STEP_NUM_TASKS", "1"},
                                                  {"SLURM_LOCALID", "0"},
                                                  {"SLURM_NODEID", "0"},
                                                  {"SLURM_STEP_NUM_NODES", "1"},
                                                  {"SLURM_STEP_TASKS_PER_NODE", "1"},
                                                  {"SLURM_STEP_NODELIST", "localhost"}},
                                                 "2"}),
                         [](const auto& test) { return test.param.name; });

// An agent whose rank failed counts a restart, the others see a change of membership and do not.
TEST_F(RunDirectories, FreshActsOnceUnderAgentsThatCountRestartsDifferently) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agents = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  ASSERT_EQ(run_program(train()).code, 0);
  const auto attempt = [&](const std::array<int, 2>& counts, const std::string& steps) {
    // Another agent may have rank 0 next time: its process does not tell one launch from another.
    const auto words = join(train({"--fresh", "--max_steps", steps}), " ");
    const auto ranks = start_ranks(2, {"sh", "-c", words + "; exit $?"}, [&](PlainRank& rank) {
      rank.variables["MASTER_PORT"] = std::to_string(agents->getPort());
      rank.variables["TORCHELASTIC_RUN_ID"] = "job";
      rank.variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
      rank.variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(counts[static_cast<std::size_t>(rank.rank)]);
    });
    std::string text;
    for (const auto& rank : ranks) {
      const auto result = rank->wait(Process::Seconds(60));
      EXPECT_EQ(result.code, 0) << result.err;
      text += result.err;
    }
    return text;
  };
  EXPECT_THAT(attempt({0, 1}, "4"), HasSubstr("moved the old run to"));
  EXPECT_EQ(runs(), 2);
  EXPECT_THAT(attempt({0, 2}, "5"), HasSubstr("resuming from step 4"));
  EXPECT_THAT(attempt({1, 2}, "6"), HasSubstr("resuming from step 5"));
  EXPECT_EQ(runs(), 2);
}

// --- a directory for each launch ---

class NumberedRuns : public RunDirectories {
 protected:
  std::vector<std::string> numbered(const std::vector<std::string>& more = {}) const {
    return with(train({"--run_dir", (dir_.path() / "runs" / "{n}").string(), "--max_steps", "4"}), more);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    const Path runs = dir_.path() / "runs";
    if (std::filesystem::exists(runs)) {
      for (const auto& entry : std::filesystem::directory_iterator(runs)) {
        found.push_back(entry.path().filename().string());
      }
    }
    std::ranges::sort(found);
    return found;
  }
  Path numbered_run(const std::string& name) const { return dir_.path() / "runs" / name; }
};

TEST_F(NumberedRuns, EachStartBeginsOneAndResumeLastContinuesTheNewest) {
  const auto nothing = run_program(numbered({"--resume", "last"}));
  EXPECT_EQ(nothing.code, 65);
  EXPECT_THAT(nothing.err, HasSubstr("found no run "));
  EXPECT_THAT(names(), testing::IsEmpty());
  for (const char* ranks : {"1", "2"}) {
    const auto result = run_program(numbered({"--nprocs", ranks}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("run directory: " + numbered_run(ranks).string()));
  }
  EXPECT_THAT(names(), testing::ElementsAre("1", "2"));
  const auto further = run_program(numbered({"--resume", "last", "--nprocs", "2", "--max_steps", "6"}));
  EXPECT_EQ(further.code, 0) << further.err;
  EXPECT_THAT(further.err, HasSubstr("resuming from step 4 in " + numbered_run("2").string()));
  const auto finished = run_program(numbered({"--resume", "last", "--nprocs", "2", "--max_steps", "6"}));
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr("or leave out --resume for a new run"));
  // The configuration of a run continues this run.
  const auto same =
      run_program({TRAIN_PROGRAM, "--config", (numbered_run("1") / "config.toml").string(), "--max_steps", "5"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.err, HasSubstr("resuming from step 4 in " + numbered_run("1").string()));
  // Weights of another run: a new directory.
  const auto other = run_program(numbered({"--resume", numbered_run("1").string(), "--max_steps", "7"}));
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(names(), testing::ElementsAre("1", "2", "3"));
  // What writes nothing takes no number.
  ASSERT_EQ(run_program(numbered({"--fast_dev_run", "2"})).code, 0);
  ASSERT_EQ(run_program(numbered({"--dry-run"})).code, 0);
  EXPECT_THAT(names(), testing::ElementsAre("1", "2", "3"));
  const auto refused = run_program(numbered({"--fresh"}));
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("each start begins a run of its own already"));
}

TEST_F(NumberedRuns, ARestartOfOurLauncherStaysInItsDirectory) {
  ASSERT_EQ(run_program(numbered()).code, 0);
  const auto result = run_program(numbered({"--nprocs", "2", "--dist.max_restarts", "2"}),
                                  {{"TRAIN_PROGRAM_DIES_ONCE", (dir_.path() / "died").string()}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 now ("));
  EXPECT_THAT(names(), testing::ElementsAre("1", "2"));
  EXPECT_THAT(read_text(numbered_run("2") / "events.jsonl"), HasSubstr("\"goodput\"")) << "the launcher finds it";
}

TEST_F(NumberedRuns, AJobThatIsKilledAndQueuedAgainStaysInItsDirectory) {
  const auto endless_run =
      numbered({"--max_epochs", "100000", "--max_steps", "0", "--work_ms", "20", "--checkpoint.every_steps", "3"});
  Process killed(endless_run, {{"SLURM_JOB_ID", "77"}});
  ASSERT_TRUE(killed.wait_for("step 5 ")) << killed.err();
  killed.signal(SIGKILL);
  killed.wait();
  const auto again = run_program(numbered({"--max_steps", "9", "--max_epochs", "0"}),
                                 {{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("resuming from step "));
  EXPECT_THAT(names(), testing::ElementsAre("1"));
  EXPECT_EQ(run_program(numbered(), {{"SLURM_JOB_ID", "77"}}).code, 0);
  EXPECT_THAT(names(), testing::ElementsAre("1", "2")) << "another start is another run";
}

TEST_F(NumberedRuns, RankZeroDecidesUnderALauncherOfOthers) {
  for (const std::string expected : {"1", "2"}) {
    for (const auto& rank : start_ranks(3, numbered())) {
      const auto result = rank->wait(Process::Seconds(60));
      EXPECT_EQ(result.code, 0) << result.err;
    }
    EXPECT_EQ(names().back(), expected);
    EXPECT_EQ(names().size(), static_cast<std::size_t>(std::stoi(expected)));
  }
}

}  // namespace
}  // namespace lockstep
