// A run that is stopped and resumed at any step gives the same bytes with the same world size, and the same samples
// with any.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/file_system.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int kSamples = 103;
constexpr int kSteps = 63;  // 3 epochs of 21 steps; the last step has 3 samples

/// 5 samples a step: accumulation at one rank, uneven shares at two and four.
std::vector<std::string> flags(int ranks) {
  return {"--nprocs",
          std::to_string(ranks),
          "--max_epochs",
          "3",
          "--batch_size",
          "1",
          "--global_batch_size",
          "5",
          "--data.workers",
          "1",
          "--optimizer",
          "sgd",
          "--optim.schedule",
          "warmup:5+cosine:until=70",
          "--optim.max_grad_norm",
          "1",
          "--checkpoint.every_epochs",
          "0",
          "--report.progress",
          "false",
          "--report.epoch_means",
          "--max_time_s",
          "1d",
          "--spike.z_score",
          "0.3",
          "--spike.policy",
          "skip"};
}

/// The number of events about spikes and values that are not finite.
std::size_t anomalies(const std::filesystem::path& run) {
  const auto lines = read_lines(run / "events.jsonl");
  return static_cast<std::size_t>(std::ranges::count_if(lines, [](const std::string& line) {
    const auto event = nlohmann::json::parse(line)["event"];
    return event == "spike" || event == "skipped" || event == "rollback";
  }));
}

/// Of the last fit: "stopped at step 32, epoch 2: val_loss did not improve on 0.25 in 8 measurements".
std::string end_of(const std::filesystem::path& run) {
  std::string why;
  for (const std::string& line : read_lines(run / "events.jsonl")) {
    if (const auto event = nlohmann::json::parse(line); event["event"] == "end") {
      why = event["why"].get<std::string>();
    }
  }
  return why.substr(0, why.find(", saved in "));
}

/// name -> step -> text of the value, of metrics that a resumed run must have as well.
std::map<std::string, std::map<std::int64_t, std::string>> metrics_of(const std::filesystem::path& run) {
  std::map<std::string, std::map<std::int64_t, std::string>> metrics;
  for (const std::string& line : read_lines(run / "metrics.jsonl")) {
    const auto row = nlohmann::json::parse(line);
    for (const char* name : {"loss", "epoch_loss", "loss_smoothed", "error", "grad_norm/b.weight"}) {
      if (row.contains(name)) {
        metrics[name][row["step"].get<std::int64_t>()] = row[name].dump();
      }
    }
  }
  return metrics;
}

struct Trained {
  int ranks = 1;
  std::vector<std::string> more{};
  std::string name{};
  int more_files = 0;  ///< of state in a checkpoint; -1: the last values of the loss are not kept
  std::string end = "finished at step 63, epoch 3 (--max_epochs 3)";  ///< how it begins
};

class StopsAfterEveryStep : public testing::TestWithParam<Trained> {};

TEST_P(StopsAfterEveryStep, EndWithTheBytesOfTheUndisturbedRun) {
  const int ranks = GetParam().ranks;
  const auto all_flags = with(flags(ranks), GetParam().more);
  const TempDir dir;
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, dir.path() / "straight", all_flags)).code, 0);
  const auto straight = final_state(dir.path() / "straight");
  const int files = 4 + ranks + GetParam().more_files;  // model, optimizer, report, generators; name
  ASSERT_EQ(straight.size(), static_cast<std::size_t>(files));
  const std::string end = end_of(dir.path() / "straight");
  ASSERT_THAT(end, testing::StartsWith(GetParam().end));
  const auto metrics = metrics_of(dir.path() / "straight");
  const int last_step = std::stoi(straight.at("name").substr(std::string("step-").size()));
  EXPECT_THAT(end, HasSubstr(fmt::format(" step {}, ", last_step)));
  ASSERT_EQ(metrics.at("epoch_loss").size(), static_cast<std::size_t>(last_step / 21));
  EXPECT_GT(anomalies(dir.path() / "straight"), 0U);

  const int stride = rounds(0) > 0 ? 1 : 20;  // 21 is the end of an epoch
  const auto result =
      run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                          with(all_flags, {"--stops", std::to_string(kSteps - 1), "--stride", std::to_string(stride)})),
                  {}, ".", Process::Seconds(300));
  ASSERT_EQ(result.code, 0) << result.err;
  Sweep sweep(fmt::format("stops, {} ranks{}", ranks, GetParam().name));
  for (int stop = 1; stop < kSteps; stop += stride) {
    const auto run = dir.path() / "run" / fmt::format("stop_{}", stop);
    const bool same = final_state(run) == straight && metrics_of(run) == metrics &&
                      anomalies(run) == anomalies(dir.path() / "straight") && end_of(run) == end;
    EXPECT_TRUE(same) << "after step " << stop;
    sweep.count(same);
  }
  EXPECT_GE(sweep.points(), stride == 1 ? 62 : 4);

  // Control: a different seed is detected.
  const auto control = dir.path() / "run" / "stop_1";
  for (const auto& entry : std::filesystem::directory_iterator(control / "checkpoints")) {
    std::filesystem::remove_all(entry.path());
  }
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, control, with(all_flags, {"--seed", "43"}))).code, 0);
  EXPECT_FALSE(final_state(control) == straight);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, StopsAfterEveryStep,
    testing::Values(
        Trained{1}, Trained{2}, Trained{4}, Trained{4, {"--backend", "gloo"}, "_gloo"},
        Trained{2, {"--dist.compression", "bf16_stochastic"}, "_bf16_stochastic"},
        Trained{2, {"--callbacks", "--validate.every_steps", "4"}, "_callbacks", 1},
        // Only the first validation is an improvement; the run ends in the second epoch, also if it is stopped then.
        Trained{2,
                {"--validate.every_steps", "4", "--early_stop.metric", "val_loss", "--early_stop.min_delta", "1000",
                 "--early_stop.patience", "8"},
                "_early_stop",
                1,
                "stopped at step 32, epoch 2: val_loss did not improve on "},
        // A report inside an epoch decides.
        Trained{2,
                {"--early_stop.metric", "loss", "--early_stop.min_delta", "1000", "--early_stop.patience", "40"},
                "_early_stop_at_report",
                1,
                "stopped at step 41, epoch 2: loss did not improve on "},
        Trained{2, {"--optimizer", "adamw", "--dist.shard_optimizer"}, "_sharded"},
        // One micro-batch in each step; at the end of an epoch one of four ranks has no samples.
        Trained{2, {"--batch_size", "3", "--dist.static_graph"}, "_static_graph"},
        Trained{4, {"--batch_size", "2", "--dist.static_graph"}, "_static_graph"},
        Trained{2, {"--precision", "fp16_mixed"}, "_fp16_mixed"},
        Trained{2, {"--precision", "bf16", "--optim.stochastic_rounding"}, "_bf16_rounded"},
        Trained{
            2,
            {"--broken_sample", "17", "--optim.non_finite", "skip", "--spike.z_score", "0", "--spike.policy", "warn"},
            "_not_finite_skip",
            -1},
        Trained{2,
                {"--broken_sample", "17", "--optim.non_finite", "rollback", "--spike.z_score", "0", "--spike.policy",
                 "warn"},
                "_not_finite_rollback",
                -1},
        Trained{2, {"--loud_sample", "17", "--spike.z_score", "20", "--spike.policy", "rollback"}, "_spike_rollback"},
        Trained{2, {"--loud_sample", "17", "--spike.z_score", "20", "--spike.policy", "lower_lr"}, "_spike_lower_lr"}),
    [](const auto& test) { return std::to_string(test.param.ranks) + test.param.name; });

/// Step -> ids over all ranks, in the order of the global batch. A repeated step has the same ids.
std::map<std::int64_t, std::vector<std::int64_t>> read_ledger(const std::filesystem::path& folder, int ranks) {
  std::map<std::int64_t, std::vector<std::int64_t>> steps;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream in(folder / fmt::format("rank_{}.txt", rank));
    std::map<std::int64_t, std::string> lines;
    for (std::string line; std::getline(in, line);) {
      const auto colon = line.find(':');
      if (colon == std::string::npos || in.eof()) {
        continue;  // killed during the write
      }
      const auto [entry, is_new] = lines.try_emplace(std::stoll(line), line.substr(colon + 1));
      EXPECT_TRUE(is_new || entry->second == line.substr(colon + 1)) << line;
    }
    for (const auto& [step, text] : lines) {
      std::istringstream words(text);
      for (std::int64_t id = 0; words >> id;) {
        steps[step].push_back(id);
      }
    }
  }
  return steps;
}

/// Checks that each of three epochs has every sample once.
bool is_exact(const std::map<std::int64_t, std::vector<std::int64_t>>& ledger) {
  std::map<std::int64_t, int> seen;
  std::int64_t in_epoch = 0;
  for (const auto& [step, ids] : ledger) {
    for (const std::int64_t id : ids) {
      ++seen[id];
    }
    in_epoch += static_cast<std::int64_t>(ids.size());
    if (in_epoch == kSamples) {
      const bool once = static_cast<int>(seen.size()) == kSamples &&
                        std::all_of(seen.begin(), seen.end(), [](const auto& s) { return s.second == 1; });
      if (!once) {
        return false;
      }
      seen.clear();
      in_epoch = 0;
    }
  }
  return ledger.size() == kSteps && in_epoch == 0;
}

TEST(SampleLedger, IsExactThroughRandomCrashes) {
  Sweep sweep("crashes");
  const TempDir dir;
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, dir.path() / "straight", flags(2))).code, 0);
  const auto straight = final_state(dir.path() / "straight");
  const int wanted = 3 * rounds(1);
  for (int run = 0; sweep.points() < wanted; ++run) {
    const auto folder = dir.path() / std::to_string(run);
    std::filesystem::create_directories(folder);
    Process process(command(TRAIN_PROGRAM, folder / "run",
                            with(flags(2), {"--backend", sweep.between(0, 1) == 0 ? "auto" : "gloo", "--ledger",
                                            folder.string(), "--dist.max_restarts", "100", "--checkpoint.async",
                                            "--checkpoint.every_steps", "3", "--report.every_steps", "1"})));
    int crashes = 0;
    for (int step = sweep.between(1, 12); step < kSteps; step += sweep.between(4, 16)) {
      if (!process.wait_for(fmt::format("step {} ", step), Process::Seconds(30))) {
        break;
      }
      const auto ranks = Process::ranks_of(process.pid());
      if (ranks.size() == 2 && kill(ranks[static_cast<std::size_t>(sweep.between(0, 1))], SIGKILL) == 0) {
        ++crashes;
      }
    }
    const auto result = process.wait(Process::Seconds(60));
    EXPECT_EQ(result.code, 0) << result.err;
    const bool exact = is_exact(read_ledger(folder, 2)) && final_state(folder / "run") == straight;
    EXPECT_TRUE(exact) << "run " << run << ", " << crashes << " crashes";
    ASSERT_GT(crashes, 0);
    for (int crash = 0; crash < crashes; ++crash) {
      sweep.count(exact);
    }
  }
}

TEST(SampleLedger, NoticesAnotherOrder) {  // the control
  const TempDir dir;
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                                with(flags(2), {"--ledger", dir.path().string(), "--max_epochs", "2"})))
                .code,
            0);
  auto ledger = read_ledger(dir.path(), 2);
  EXPECT_FALSE(is_exact(ledger)) << "an epoch is missing";
  for (auto ids : std::map(ledger)) {
    ledger[ids.first + 42] = ids.second;
  }
  while (ledger.size() > kSteps) {
    ledger.erase(std::prev(ledger.end()));
  }
  EXPECT_TRUE(is_exact(ledger));
  ledger[5][0] = ledger[4][0];
  EXPECT_FALSE(is_exact(ledger)) << "one sample twice, another never";
}

// Two launchers act as two nodes; the disk of the first one is lost.
TEST(CopiesPerNode, OutliveTheLossOfANode) {
  const TempDir dir;
  const std::string port = free_port();
  const auto node = [&](int number, const std::string& run, const std::vector<std::string>& more) {
    std::vector<std::string> words{LOCKSTEP_CLI,
                                   "run",
                                   "--nnodes",
                                   "2",
                                   "--node-rank",
                                   std::to_string(number),
                                   "--nproc-per-node",
                                   "1",
                                   "--master-addr",
                                   "127.0.0.1",
                                   "--master-port",
                                   port,
                                   "--"};
    auto program = with(command(TRAIN_PROGRAM, dir.path() / fmt::format("{}_{}", run, number), flags(2)),
                        with({"--checkpoint.per_node"}, more));
    return with(words, program);
  };
  const auto run_both = [&](const std::string& run, const std::vector<std::string>& more) {
    Process first(node(0, run, more));
    Process second(node(1, run, more));
    const auto end = first.wait();
    EXPECT_EQ(end.code, 0) << end.err;
    EXPECT_EQ(second.wait().code, 0);
    return end.err;
  };
  run_both("straight", {});
  run_both("run", {"--max_steps", "31"});
  std::filesystem::remove_all(dir.path() / "run_0");
  EXPECT_THAT(run_both("run", {}), HasSubstr("resuming from step 31"));
  const auto straight = final_state(dir.path() / "straight_0");
  EXPECT_EQ(straight.at("name"), "step-0000000063");
  for (const char* copy : {"straight_1", "run_0", "run_1"}) {
    EXPECT_TRUE(final_state(dir.path() / copy) == straight) << copy;
  }
}

// A restart does not begin again at the first attempt's checkpoint.
TEST(RestartedRun, GoesOnFromItsOwnNewestCheckpoint) {
  const TempDir dir;
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    return command(TRAIN_PROGRAM, dir.path() / name, with(flags(2), more));
  };
  ASSERT_EQ(run_program(train("straight", {})).code, 0);
  ASSERT_EQ(run_program(train("first", {"--max_steps", "20"})).code, 0);
  Process process(train("second", {"--resume", (dir.path() / "first").string(), "--checkpoint.every_steps", "5",
                                   "--dist.max_restarts", "2", "--work_ms", "20"}));
  ASSERT_TRUE(process.wait_for("step 33 ")) << process.err();
  kill(Process::ranks_of(process.pid()).at(0), SIGKILL);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resuming from " + (dir.path() / "first").string()));
  EXPECT_THAT(result.err, testing::ContainsRegex("resuming from step (25|30|35) in "));
  EXPECT_TRUE(final_state(dir.path() / "second") == final_state(dir.path() / "straight"));
  const CheckpointDir second(real_file_system(), dir.path() / "second" / "checkpoints");
  EXPECT_EQ(second.manifest(second.steps().back()).restart, 1);
}

TEST(Records, TellWhereTwoRunsPart) {
  const TempDir dir;
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    return run_program(command(TRAIN_PROGRAM, dir.path() / name, with(flags(2), with({"--report.record", "1"}, more))));
  };
  const auto compare = [&](const std::string& a, const std::string& b) {
    return run_program({LOCKSTEP_CLI, "compare", (dir.path() / a).string(), (dir.path() / b).string()});
  };
  ASSERT_EQ(train("straight", {}).code, 0);
  {
    Process process(command(TRAIN_PROGRAM, dir.path() / "killed",
                            with(flags(2), {"--report.record", "1", "--checkpoint.every_steps", "7"})));
    ASSERT_TRUE(process.wait_for("step 25 ")) << process.err();
    process.signal(SIGKILL);
  }
  ASSERT_EQ(train("killed", {}).code, 0);
  const auto same = compare("straight", "killed");
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_THAT(same.out, HasSubstr("same: 63 steps, 1 to 63"));

  ASSERT_EQ(train("other", {"--max_steps", "30"}).code, 0);
  ASSERT_EQ(train("other", {"--optim.lr", "0.049"}).code, 0);
  const auto other = compare("straight", "other");
  EXPECT_EQ(other.code, 1) << other.out << other.err;
  EXPECT_THAT(other.out, HasSubstr("different: step 31, rank 0 (after 30 equal steps)"));
  EXPECT_THAT(other.out, HasSubstr("parameters"));
}

double worst_difference(const std::map<std::int64_t, double>& a, const std::map<std::int64_t, double>& b) {
  double worst = a.size() == b.size() ? 0 : 1e9;
  for (const auto& [step, value] : a) {
    const auto other = b.find(step);
    worst = std::max(worst, other == b.end() ? 1e9 : std::abs(value - other->second) / std::abs(value));
  }
  return worst;
}

TEST(RankChange, KeepsSamplesOrderAndLosses) {
  const std::vector<int> worlds{1, 2, 3, 4, 6, 8};
  const bool all = rounds(0) > 0;
  Sweep sweep("changes of the number of ranks");
  for (const bool fp64 : {false, true}) {
    const TempDir dir;
    const std::vector<std::string> exact{"--dropout", "0", "--fp64", fp64 ? "true" : "false"};
    const auto whole = dir.path() / "whole";
    std::filesystem::create_directories(whole);
    ASSERT_EQ(
        run_program(command(TRAIN_PROGRAM, whole / "run", with(flags(1), with(exact, {"--ledger", whole.string()}))))
            .code,
        0);
    const auto ledger = read_ledger(whole, 1);
    const auto losses = metric(whole / "run", "loss");
    ASSERT_EQ(losses.size(), static_cast<std::size_t>(kSteps));
    for (const int from : worlds) {
      const int stop = sweep.between(3, 13);  // at least 50 steps follow
      const auto first = dir.path() / fmt::format("from_{}", from);
      std::filesystem::create_directories(first);
      std::vector<int> to = worlds;
      if (!all) {
        to = {worlds[static_cast<std::size_t>(sweep.between(0, 5))]};
        if (from != 1 && from != 4) {
          continue;
        }
      }
      ASSERT_EQ(run_program(command(TRAIN_PROGRAM, first / "run",
                                    with(flags(from), with(exact, {"--max_steps", std::to_string(stop), "--ledger",
                                                                   first.string()}))),
                            {}, ".", Process::Seconds(60))
                    .code,
                0);
      for (const int ranks : to) {
        const auto second = dir.path() / fmt::format("from_{}_to_{}", from, ranks);
        std::filesystem::create_directories(second);
        std::filesystem::copy(first / "run", second / "run",
                              std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
        const auto result = run_program(
            command(TRAIN_PROGRAM, second / "run", with(flags(ranks), with(exact, {"--ledger", second.string()}))), {},
            ".", Process::Seconds(120));
        ASSERT_EQ(result.code, 0) << result.err;
        auto mine = read_ledger(first, from);
        mine.merge(read_ledger(second, ranks));
        const double worst = worst_difference(losses, metric(second / "run", "loss"));
        const bool kept = mine == ledger && worst <= (fp64 ? 1e-10 : 1e-5);
        EXPECT_TRUE(kept) << from << " to " << ranks << " ranks at step " << stop << ": losses differ by " << worst;
        sweep.count(kept);
      }
    }
  }
  EXPECT_GE(sweep.points(), all ? 72 : 4);
}

}  // namespace
}  // namespace lockstep
