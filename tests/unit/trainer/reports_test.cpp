// What a run reports: on the console, in its files, and in its result.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/metrics/classification.h>
#include <lockstep/metrics/regression.h>
#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/callbacks.h>

#include "base/mapped.h"
#include "base/text.h"
#include "report/console.h"
#include "report/step_records.h"
#include "session_access.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/recording_console.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "trainer/output/run_metrics.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::vector<nlohmann::json> rows_of(const std::filesystem::path& run) {
  return mapped(read_lines(run / "metrics.jsonl"), [](const std::string& line) { return nlohmann::json::parse(line); });
}

struct Ran {
  FitResult result{};
  std::vector<std::string> lines{};
};

Ran train(const std::filesystem::path& run, bool interactive, int used_epochs = 0) {
  TrainConfig config{.compute_setup = ComputeSetup::cpu, .max_epochs = 3, .batch_size = 4, .run_dir = run};
  config.checkpoint.monitor = "val_loss";
  config.report.every_steps = 3;
  Session session = Session::single(config);
  const auto console = std::make_shared<RecordingConsole>(interactive);
  SessionAccess::console(session) = console;
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  for (int step = 0; step < 4 * used_epochs; ++step) {
    data.next();
  }
  DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
  Ran ran{.result = Trainer(session).fit(task, data, &validation)};
  ran.lines = console->lines;
  return ran;
}

TEST(Reports, CountEpochsFromOneEverywhere) {
  const TempDir dir;
  const Ran ran = train(dir.path() / "run", /*interactive=*/false);
  std::set<int> epochs;
  for (const auto& row : rows_of(dir.path() / "run")) {
    ASSERT_TRUE(row.contains("epoch")) << row;
    EXPECT_EQ(row["epoch"].get<int>(), (row["step"].get<int>() + 3) / 4) << row;
    epochs.insert(row["epoch"].get<int>());
  }
  EXPECT_THAT(epochs, ElementsAre(1, 2, 3));
  EXPECT_THAT(ran.lines, Contains(StartsWith("step 3 | epoch 1 | loss")));
  EXPECT_THAT(ran.lines, Contains(StartsWith("step 4 | epoch 1 | val_loss")));
  EXPECT_THAT(ran.lines, Contains(StartsWith("step 6 | epoch 2 | loss")));
}

std::vector<std::map<std::string, double>> step_times_of(const std::filesystem::path& run) {
  std::vector<std::map<std::string, double>> rows;
  std::vector<std::string> names;
  for (const std::string& line : read_lines(run / "step_times.csv")) {
    const std::vector<std::string> cells = split(line, ',');
    if (names.empty()) {
      names = cells;
      continue;
    }
    auto& row = rows.emplace_back();
    for (std::size_t i = 0; i < cells.size(); ++i) {
      row[names.at(i)] = parse_double(cells[i]).value();
    }
  }
  return rows;
}

TEST(Reports, SayWhereTheTimeOfEachRankWent) {
  constexpr int kRanks = 2;
  const TempDir dir;
  const auto train_until = [&](std::int64_t steps) {
    TrainConfig config{.max_epochs = 0, .max_steps = steps, .batch_size = 4, .run_dir = dir.path() / "run"};
    config.compute_setup = ComputeSetup::cpu;
    config.report.every_steps = 3;
    config.report.step_times = true;
    const Plan plan = plan_for(kRanks, config);
    thread_world(kRanks, [&](World& world) {
      TinyTask task;
      DataLoader data(tiny_data(16), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
  };
  train_until(7);
  train_until(12);
  const auto rows = step_times_of(dir.path() / "run");
  std::vector<std::pair<int, int>> steps_and_ranks;
  std::vector<double> counts;
  for (const auto& row : rows) {
    counts.push_back(row.at("steps"));
    steps_and_ranks.emplace_back(row.at("step"), row.at("rank"));
    double sum = 0;
    for (const auto& [name, value] : row) {
      sum += name.ends_with("_ms") && name != "step_ms" ? value : 0;
    }
    EXPECT_GT(row.at("forward_ms"), 0);
    EXPECT_GT(row.at("communication_ms"), 0);
    EXPECT_EQ(row.at("copy_ms"), 0) << "on a CPU";
    EXPECT_NEAR(sum, row.at("step_ms"), 0.01 * row.at("step_ms") + 0.01) << row.at("step");
  }
  EXPECT_THAT(counts, ElementsAre(3, 3, 3, 3, 1, 1, 2, 2, 3, 3));
  using Row = std::pair<int, int>;
  EXPECT_THAT(steps_and_ranks, ElementsAre(Row{3, 0}, Row{3, 1}, Row{6, 0}, Row{6, 1}, Row{7, 0}, Row{7, 1}, Row{9, 0},
                                           Row{9, 1}, Row{12, 0}, Row{12, 1}));
}

TEST(Reports, NameTheStepsThatEachStartPlans) {
  const TempDir dir;
  for (const std::int64_t epochs : {1, 2}) {
    Session session = Session::single(
        {.compute_setup = ComputeSetup::cpu, .max_epochs = epochs, .batch_size = 4, .run_dir = dir.path() / "run"});
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    Trainer(session).fit(task, data);
  }
  std::vector<std::string> starts = read_lines(dir.path() / "run" / "events.jsonl");
  std::erase_if(starts, [](const std::string& line) { return line.find("\"event\":\"start\"") == line.npos; });
  EXPECT_THAT(starts, ElementsAre(HasSubstr("\"total_steps\":4,"), HasSubstr("\"total_steps\":8,")));
}

TEST(Reports, OfAUsedLoaderCountTheEpochsOfTheRun) {
  const TempDir dir;
  const Ran ran = train(dir.path() / "run", /*interactive=*/false, /*used_epochs=*/5);
  EXPECT_EQ(ran.result.state.epoch, 3);
  EXPECT_THAT(ran.lines, Contains(StartsWith("step 12 | epoch 3 | ")));
  EXPECT_THAT(ran.lines, Not(Contains(HasSubstr("epoch 8"))));
}

TEST(Reports, HaveARateInTheLastTrainRow) {
  const TempDir dir;
  TrainConfig config{
      .compute_setup = ComputeSetup::cpu, .max_epochs = 2, .batch_size = 4, .run_dir = dir.path() / "run"};
  config.report.every_steps = 5;
  Session session = Session::single(config);
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
  Trainer(session).fit(task, data, &validation);
  const auto rows = rows_of(dir.path() / "run");
  EXPECT_EQ(rows.back()["step"], 8) << "the last step is that of a validation, too";
  ASSERT_TRUE(rows.back().contains("samples_per_s")) << rows.back();
  EXPECT_GT(rows.back()["samples_per_s"].get<double>(), 0);
}

// Each step takes longer than the time between two reports.
TEST(Reports, ComeByTime) {
  const auto rows = [](ReportConfig report, int ranks) {
    const TempDir dir;
    std::map<int, double> losses;
    thread_world(ranks, [&](World& world) {
      TrainConfig config{
          .compute_setup = ComputeSetup::cpu, .max_epochs = 2, .batch_size = 2, .run_dir = dir.path() / "run"};
      config.report = report;
      const Plan plan = plan_for(world.size(), config);
      TinyTask task;
      DataLoader data(tiny_data(20), plan.loader, world);
      Trainer(plan, world).fit(task, data);
      if (world.is_main()) {
        for (const auto& row : rows_of(dir.path() / "run")) {
          EXPECT_TRUE(losses.emplace(row["step"].get<int>(), row["loss"].get<double>()).second) << "once per step";
        }
      }
    });
    return losses;
  };
  for (const int ranks : {1, 2}) {
    const auto by_steps = rows({.every_steps = 1}, ranks);
    EXPECT_EQ(by_steps.size(), ranks == 1 ? 20U : 10U);
    EXPECT_EQ(rows({.every_steps = 0, .every_s = 1e-9}, ranks), by_steps);
    EXPECT_EQ(rows({.every_steps = 0, .every_s = 1e6}, ranks).size(), 1U) << "the end";
    // Reports by time do not change those by steps.
    const auto both = rows({.every_steps = 4, .every_s = 1e-9}, ranks);
    EXPECT_EQ(both.size(), by_steps.size());
    for (const auto& [step, loss] : rows({.every_steps = 4}, ranks)) {
      EXPECT_EQ(both.at(step), loss) << "step " << step;
    }
  }
}

// Also with callbacks that decide by it.
TEST(Reports, AreTheSameIfTheRunContinuesBetweenTwoOfThem) {
  struct Run {
    std::vector<double> losses{};  // of the reports at steps 4, 8 and 12
    NamedTensors callbacks{};
  };
  for (const int ranks : {1, 2, 3}) {
    const auto train = [&](const std::vector<std::int64_t>& stops) {
      const TempDir dir;
      Run run;
      thread_world(ranks, [&](World& world) {
        TrainConfig config{
            .compute_setup = ComputeSetup::cpu, .max_epochs = 0, .batch_size = 1, .run_dir = dir.path() / "run"};
        config.report.every_steps = 4;
        for (const std::int64_t stop : stops) {
          config.max_steps = stop;
          const Plan plan = plan_for(world.size(), config);
          Trainer trainer(plan, world);
          trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.metric = "loss", .patience = 9}));
          trainer.add(std::make_shared<ReduceOnPlateau>(ReduceOnPlateauOptions{.metric = "loss", .patience = 0}));
          TinyTask task(sgd({.lr = 0.01}));
          DataLoader data(tiny_data(18), plan.loader, world);
          trainer.fit(task, data);
        }
        if (world.is_main()) {
          for (const auto& row : rows_of(dir.path() / "run")) {
            if (row["step"].get<int>() % 4 == 0) {
              run.losses.push_back(row["loss"].get<double>());
            }
          }
          run.callbacks = load_tensors((dir.path() / "run/checkpoints/step-0000000012/callbacks.safetensors").string());
        }
      });
      return run;
    };
    const Run straight = train({12});
    ASSERT_EQ(straight.losses.size(), 3U);
    for (const std::int64_t stop : {2, 3, 4, 5, 9}) {
      const Run continued = train({stop, 12});
      EXPECT_EQ(continued.losses, straight.losses) << ranks << " ranks, stopped at step " << stop;
      ASSERT_EQ(continued.callbacks.size(), straight.callbacks.size());
      for (std::size_t i = 0; i < straight.callbacks.size(); ++i) {
        EXPECT_TRUE(continued.callbacks[i].second.equal(straight.callbacks[i].second)) << straight.callbacks[i].first;
      }
    }
  }
}

/// Two optimizers, each for one parameter. The second one is updated in steps with an even number only.
class TwoOptimizers final : public Task {
 public:
  TwoOptimizers() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 2; ++i) {
      parts_[i]->weight.fill_(i == 0 ? 0.1 : 2);
      net_->push_back(parts_[i]);
    }
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    return mapped(parts_, [](torch::nn::Linear& part) {
      OptimizerSpec spec = sgd({.lr = 0.1});
      spec.module = part.get();
      return spec;
    });
  }
  void optimize(Step& step) override {
    for (std::size_t i = 0; i < (step.number() % 2 == 0 ? 2U : 1U); ++i) {
      update_with(i, step, [&](const Batch& batch) { return at::mse_loss(parts_[i](batch.input), batch.target); });
    }
  }

 private:
  std::vector<torch::nn::Linear> parts_{torch::nn::Linear(torch::nn::LinearOptions(4, 1).bias(false)),
                                        torch::nn::Linear(torch::nn::LinearOptions(4, 1).bias(false))};
  torch::nn::Sequential net_{};
};

double norm_of_gradients(StrategyOptimizer& optimizer) {
  double squares = 0;
  for (const at::Tensor& parameter : optimizer.torch_optimizer().param_groups().front().params()) {
    squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

TEST(Reports, HaveTheGradientNormOfEachOptimizerAndOfAll) {
  for (const int ranks : {1, 2}) {
    for (const bool shard : {false, true}) {
      if (shard && ranks == 1) {
        continue;
      }
      thread_world(ranks, [&](World& world) {
        TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 6, .global_batch_size = 4});
        config.report.every_steps = 1;
        config.optim.max_grad_norm = 1e-3;
        config.dist.shard_optimizer = shard;
        const Plan plan = plan_for(ranks, config);
        TwoOptimizers task;
        DataLoader data(tiny_data(24), plan.loader, world);
        Trainer trainer(plan, world);
        std::vector<double> norms;  // of the step
        int reports = 0;
        trainer.on(Stage::step_start, [&](const StageContext&) { norms.clear(); });
        trainer.on(Stage::backward_end, [&](const StageContext& at) {  // before they are clipped
          norms.push_back(norm_of_gradients(*at.optimizer));
        });
        trainer.on(Stage::report, [&](const StageContext& at) {
          const auto reported = std::map<std::string, double>(at.metrics->begin(), at.metrics->end());
          const bool updates_both = at.state.step % 2 == 1;
          ASSERT_EQ(norms.size(), updates_both ? 2U : 1U);
          EXPECT_NEAR(reported.at("grad_norm_0"), norms[0], 1e-5 * norms[0]);
          ASSERT_EQ(reported.contains("grad_norm_1"), updates_both);
          if (updates_both) {
            EXPECT_NEAR(reported.at("grad_norm_1"), norms[1], 1e-5 * norms[1]);
            EXPECT_GT(std::abs(norms[0] - norms[1]), 1e-3) << "else the names could be exchanged";
          }
          const double all = updates_both ? std::hypot(norms[0], norms[1]) : norms[0];
          EXPECT_NEAR(reported.at("grad_norm"), all, 1e-5 * all);
          ++reports;
        });
        trainer.fit(task, data);
        EXPECT_EQ(reports, 6);
      });
    }
  }
}

TEST(Reports, OfOneOptimizerHaveOneGradientNorm) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .batch_size = 4, .optim = {.max_grad_norm = 1}}));
  TinyTask task;
  DataLoader data(tiny_data(16), plan.loader, world);
  const FitResult result = Trainer(plan, world).fit(task, data);
  EXPECT_THAT(result.metrics, Contains(testing::Key("grad_norm")));
  EXPECT_THAT(result.metrics, Not(Contains(testing::Key("grad_norm_0"))));
}

TEST(Reports, RecordEveryStepBeforeAFailure) {
  for (const bool loses_a_peer : {false, true}) {
    const TempDir dir;
    TrainConfig config{
        .compute_setup = ComputeSetup::cpu, .max_epochs = 3, .batch_size = 4, .run_dir = dir.path() / "run"};
    config.checkpoint.enabled = false;
    config.report.record = 1;
    Session session = Session::single(config);
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    Trainer trainer(session);
    trainer.on(Stage::step_end, [&](const StageContext& context) {
      if (context.state.step == 7 && loses_a_peer) {
        throw CommError("a peer is lost");
      }
      if (context.state.step == 7) {
        throw DataError("a sample is damaged");
      }
    });
    EXPECT_ANY_THROW(trainer.fit(task, data));
    EXPECT_EQ(read_records(real_file_system(), dir.path() / "run/records-0.bin").entries.size(), 7U) << loses_a_peer;
  }
}

TEST(Reports, OfATerminalLeaveALineForEveryEpochAndValidation) {
  const TempDir dir;
  const Ran ran = train(dir.path() / "run", /*interactive=*/true);
  ASSERT_GE(ran.lines.size(), 8U);
  EXPECT_THAT(ran.lines[0], AllOf(StartsWith("step 3 | epoch 1 | loss "), HasSubstr("samples/s")));
  EXPECT_THAT(ran.lines[1], StartsWith("step 4 | epoch 1 | val_loss "));
  EXPECT_THAT(ran.lines[2], StartsWith("step 6 | epoch 2 | loss "));
  EXPECT_THAT(ran.lines[3], StartsWith("step 8 | epoch 2 | val_loss "));
  EXPECT_THAT(ran.lines[4], StartsWith("step 12 | epoch 3 | loss "));
}

TEST(Reports, HaveTheValuesOfALargeMetricInTheFilesAndNotOnTheConsole) {
  class TaskWithAMatrix final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      confusion_.update(at::ones({4}, at::kLong), at::ones({4}, at::kLong));
      return TinyTask::training_step(batch);
    }
    std::vector<metrics::NamedMetric> metrics() override { return {{"confusion", confusion_}}; }

   private:
    metrics::ConfusionMatrix confusion_{{.classes = 3}};
  } task;
  const TempDir dir;
  TrainConfig config{
      .compute_setup = ComputeSetup::cpu, .max_epochs = 1, .batch_size = 4, .run_dir = dir.path() / "run"};
  config.report.every_steps = 4;
  Session session = Session::single(config);
  const auto console = std::make_shared<RecordingConsole>(/*interactive=*/false);
  SessionAccess::console(session) = console;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  const auto rows = rows_of(dir.path() / "run");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].value("confusion_1_1", 0.0), 16);
  EXPECT_TRUE(rows[0].contains("confusion_2_2")) << rows[0];
  EXPECT_THAT(console->lines, Contains(StartsWith("step 4 | epoch 1 | loss ")));
  EXPECT_THAT(console->lines.back(), StartsWith("loss "));
  EXPECT_THAT(join(console->lines, "\n"), Not(HasSubstr("confusion")));
}

TEST(Reports, EndWithTheFinalMetricsTheBestCheckpointAndTheTime) {
  const TempDir dir;
  const Ran ran = train(dir.path() / "run", /*interactive=*/true);
  const FitResult& result = ran.result;
  ASSERT_TRUE(result.best.has_value());
  EXPECT_EQ(result.best->step, 12);
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(result.best->path) / "MANIFEST.json")) << result.best->path;
  std::vector<std::string> names;
  for (const auto& [name, value] : result.metrics) {
    names.push_back(name);
    if (name == "val_loss") {
      EXPECT_EQ(value, result.best->value);
    }
  }
  EXPECT_THAT(names, ElementsAre("loss", "lr", "val_loss"));
  EXPECT_GT(result.duration_s, 0);
  EXPECT_THAT(ran.lines[ran.lines.size() - 2], StartsWith("finished at step 12, epoch 3"));
  EXPECT_THAT(ran.lines.back(), AllOf(StartsWith("loss "), HasSubstr(", val_loss "), HasSubstr(" | best val_loss "),
                                      HasSubstr(" at step 12 in " + result.best->path), HasSubstr(" | time 00:0")));
}

// A checkpoint has the metrics in the order of their names.
TEST(Reports, EndInTheirOrderAlsoAfterAResume) {
  const TempDir dir;
  Session session = Session::single({.compute_setup = ComputeSetup::cpu,
                                     .max_epochs = 1,
                                     .batch_size = 4,
                                     .run_dir = dir.path() / "run",
                                     .report = {.every_steps = 2}});
  for (const std::int64_t epochs : {1, 2}) {
    session.plan.config.max_epochs = epochs;
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    Trainer trainer(session);
    trainer.on(Stage::report, [](const StageContext& at) { at.log("accuracy", 0.5); });
    if (epochs == 1) {
      trainer.on(Stage::report, [](const StageContext& at) { at.log("before", 0.25); });
    }
    const auto names = mapped(trainer.fit(task, data).metrics, &Metrics::value_type::first);
    EXPECT_THAT(names, ElementsAre("loss", "lr", "accuracy", "before")) << epochs;
  }
}

TEST(Reports, HaveTheValidationOfStep0OnceIfAStartFailsBeforeItsFirstSave) {
  const TempDir dir;
  Session session = Session::single({.compute_setup = ComputeSetup::cpu,
                                     .max_epochs = 1,
                                     .batch_size = 4,
                                     .run_dir = dir.path() / "run",
                                     .validate = {.at_start = true}});
  for (const bool fails : {true, false}) {
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
    Trainer trainer(session);
    trainer.on(Stage::step_end, [&](const StageContext&) {
      if (fails) {
        throw Error("the test");
      }
    });
    if (fails) {
      EXPECT_ANY_THROW(trainer.fit(task, data, &validation));
    } else {
      trainer.fit(task, data, &validation);
    }
    const auto steps =
        mapped(rows_of(dir.path() / "run"), [](const auto& row) { return row["step"].template get<int>(); });
    EXPECT_EQ(std::ranges::count(steps, 0), 1) << fails;
  }
}

TEST(Reports, KeepTheProgramsOwnFlags) {
  const TempDir dir;
  const auto rows = dir.path() / "rows";
  Session session = Session::single({.compute_setup = ComputeSetup::cpu,
                                     .max_epochs = 1,
                                     .batch_size = 4,
                                     .run_dir = dir.path() / "run",
                                     .report = {.command = "cat > '" + rows.string() + "'"}});
  session.plan.facts.program_values = {{.name = "hidden", .text = "64"}};
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  const auto first = nlohmann::json::parse(read_lines(rows).at(0));
  EXPECT_EQ(first["run_dir"], (dir.path() / "run").string());
  EXPECT_EQ(first["resume_step"], -1);
  EXPECT_EQ(first["settings"]["hidden"], 64);
  EXPECT_EQ(first["settings"]["batch_size"], 4);
  EXPECT_EQ(first["settings"]["run_dir"], (dir.path() / "run").string());
  EXPECT_THAT(read_text(dir.path() / "run" / "config.toml"), HasSubstr("\n[program]\nhidden = 64\n"));
  const CheckpointContents contents = load_checkpoint(dir.path() / "run", session.world);
  EXPECT_EQ(contents.values.at("program.hidden"), "64");
  session.plan.facts.program_values = {{.name = "hidden", .text = "32"}};
  session.plan.config.max_epochs = 2;
  CapturedStderr captured;
  Trainer(session).fit(task, data);
  EXPECT_THAT(captured.text(), HasSubstr("--hidden is 32 now, 64 when the checkpoint was written"));
}

TEST(Reports, SayNothingOfAProgramFlagThatMayChange) {
  const TempDir dir;
  Session session = Session::single(
      {.compute_setup = ComputeSetup::cpu, .max_epochs = 1, .batch_size = 4, .run_dir = dir.path() / "run"});
  const auto start_with = [&](const std::string& out) {
    session.plan.facts.program_values = {{.name = "out", .text = out, .is_text = true, .may_change = true}};
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    CapturedStderr captured;
    Trainer(session).fit(task, data);
    return captured.text();
  };
  start_with("p1");
  const std::string again = start_with("p2");
  EXPECT_THAT(again, HasSubstr("nothing to do: this run is finished"));
  EXPECT_THAT(again, testing::Not(HasSubstr("--out")));
  EXPECT_THAT(read_text(dir.path() / "run" / "config.toml"), HasSubstr("out = \"p2\""));
}

TEST(Reports, SayThatTheDataOfAResumedRunHasChanged) {
  const TempDir dir;
  Session session = Session::single(
      {.compute_setup = ComputeSetup::cpu, .max_epochs = 1, .batch_size = 4, .run_dir = dir.path() / "run"});
  const auto train_on = [&](const std::shared_ptr<const Dataset>& samples) {
    TinyTask task;
    DataLoader data(samples, session.plan.loader, session.world);
    CapturedStderr captured;
    Trainer(session).fit(task, data);
    ++session.plan.config.max_epochs;
    return captured.text();
  };
  const std::string warning = " when the checkpoint was written";
  train_on(tiny_data(16));
  EXPECT_THAT(train_on(tiny_data(16)), testing::Not(HasSubstr(warning)));
  EXPECT_THAT(train_on(tensor_dataset(at::ones({16, 4}), at::ones({16, 1}))),
              AllOf(HasSubstr("the data set is 16 samples, input [16, 4] Float "), HasSubstr(warning)));
}

TEST(Reports, NameAProgramFlagThatChangedTheModel) {
  class Other final : public TinyTask {
   public:
    torch::nn::Module& module() override { return *other_; }

   private:
    torch::nn::Linear other_{5, 5};
  };
  const TempDir dir;
  Session session = Session::single(
      {.compute_setup = ComputeSetup::cpu, .max_epochs = 1, .batch_size = 4, .run_dir = dir.path() / "run"});
  session.plan.facts.program_values = {{.name = "depth", .text = "2"}, {.name = "hidden", .text = "64"}};
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  session.plan.facts.program_values = {{.name = "depth", .text = "2"}, {.name = "hidden", .text = "32"}};
  Other other;
  const auto error = error_of<CheckpointError>([&] { Trainer(session).fit(other, data); });
  EXPECT_THAT(error.what(), HasSubstr("the checkpoint does not match the model"));
  EXPECT_THAT(error.hint(),
              StartsWith("--hidden was 64, is 32 now: --run_dir NEW --init_weights " + session.plan.config.run_dir +
                         " --checkpoint.allow_partial starts another run with those of its weights that fit, --fresh "
                         "renames this one and starts over; load it into the model"));
  const auto hint_with = [&](const std::string& resume) {
    session.plan.config.resume = resume;
    return error_of<CheckpointError>([&] { Trainer(session).fit(other, data); }).hint();
  };
  const std::string partial = " --checkpoint.allow_partial instead of --resume ";
  EXPECT_THAT(hint_with("last"), HasSubstr("--run_dir NEW --init_weights " + session.plan.config.run_dir + partial +
                                           "starts another run with those of its weights that fit; load it"));
  const std::string from = session.plan.config.run_dir;
  session.plan.config.run_dir = (dir.path() / "new").string();
  EXPECT_THAT(hint_with(from), HasSubstr("now: --init_weights " + from + partial +
                                         "begins with those of its weights that fit; load it"));
}

TEST(Reports, NameThePrecisionAndTheProgramFlagThatChangedTheOptimizer) {
  const TempDir dir;
  Session session = Session::single(
      {.compute_setup = ComputeSetup::cpu, .max_epochs = 1, .batch_size = 4, .run_dir = dir.path() / "run"});
  const auto start_with = [&](Precision precision, const std::string& name, const OptimizerSpec& optimizer) {
    session.plan.config.precision = precision;
    session.plan.facts.program_values = {{.name = "optimizer", .text = name, .is_text = true}};
    TinyTask task(optimizer);
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    Trainer(session).fit(task, data);
  };
  start_with(Precision::fp32, "adamw", adamw({.lr = 0.01}));
  const std::string another = " now: --run_dir NEW --init_weights " + session.plan.config.run_dir +
                              " starts another run with its weights, --fresh renames this one and starts over";
  const auto half = error_of<CheckpointError>([&] { start_with(Precision::bf16, "adamw", adamw({.lr = 0.01})); });
  EXPECT_THAT(half.what(), HasSubstr("weight is Float [1, 4], expected BFloat16 [1, 4]"));
  EXPECT_EQ(half.hint(), "--precision was fp32, is bf16" + another);
  const auto sgd_state = error_of<CheckpointError>([&] { start_with(Precision::fp32, "sgd", sgd({.lr = 0.01})); });
  EXPECT_THAT(sgd_state.what(), HasSubstr("the optimizer state does not match"));
  EXPECT_THAT(sgd_state.hint(), StartsWith("--optimizer was adamw, is sgd" + another +
                                           "; resume with the optimizer and parameter groups"));
}

// A callback that a run did not have before has nothing to load.
TEST(Reports, GiveANewCallbackNothingToLoad) {
  class Loads final : public Callback {
   public:
    explicit Loads(std::string name) : name_(std::move(name)) {}
    std::string name() const override { return name_; }
    std::uint32_t stages() const override { return 0; }
    void on(const StageContext&) override {}
    NamedTensors save() const override { return {{"n", at::full({}, 7)}}; }
    void load(const NamedTensors& tensors) override { loaded.push_back(tensors.at(0).second.item<int>()); }
    std::vector<int> loaded{};

   private:
    std::string name_;
  };
  const TempDir dir;
  const auto old = std::make_shared<Loads>("old");
  const auto fresh = std::make_shared<Loads>("fresh");
  for (const int epochs : {1, 2}) {
    Session session = Session::single(
        {.compute_setup = ComputeSetup::cpu, .max_epochs = epochs, .batch_size = 4, .run_dir = dir.path() / "run"});
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    Trainer trainer(session);
    trainer.add(old);
    if (epochs == 2) {
      trainer.add(fresh);
    }
    trainer.fit(task, data);
  }
  EXPECT_THAT(old->loaded, ElementsAre(7));
  EXPECT_THAT(fresh->loaded, IsEmpty());
}

/// Its metrics of a validation have the names of Lightning.
class TwicePrefixed final : public TinyTask {
 public:
  StepOutput validation_step(const Batch& batch) override {
    const at::Tensor loss = at::mse_loss(net_(batch.input), batch.target);
    return {loss, {{"val_acc", loss}, {"val/loss", loss}, {"value", loss}}};
  }
};

TEST(Reports, ANameOfAValidationThatHasThePrefixAlreadyIsToldOnce) {
  Session session = Session::single(in_memory({.max_epochs = 2, .batch_size = 4}));
  TwicePrefixed task;
  DataLoader train(tiny_data(16), session.plan.loader, session.world);
  DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
  CapturedStderr captured;
  Trainer(session).fit(task, train, &validation);
  const std::string text = captured.text();
  EXPECT_THAT(text, HasSubstr("a metric val_acc, which is reported as val_val_acc: call it acc"));
  EXPECT_THAT(text, HasSubstr("a metric val/loss, which is reported as val_val/loss: call it loss"));
  EXPECT_THAT(text, Not(HasSubstr("a metric value")));
  EXPECT_EQ(text.find("val_val_acc: call"), text.rfind("val_val_acc: call"));
}

TEST(Reports, RefuseAMetricOfAStepWithThePrefixOfAValidation) {
  class Prefixed final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      StepOutput output = TinyTask::training_step(batch);
      output.metrics.emplace_back("val_acc", output.loss);
      return output;
    }
  };
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 4}));
  Prefixed task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
  EXPECT_NO_THROW(Trainer(session).fit(task, data)) << "the control: nothing is validated";
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data, &validation); }),
              HasSubstr("the training reports a metric 'val_acc', but this prefix is reserved for validation metrics | "
                        "give it a name that does not begin with val_"));
}

// An epoch that ended inside of the window of a report is a part of that window.
TEST(RunMetrics, KeepTheWindowIfTheMeansOfEpochsAreSwitchedOff) {
  World world = World::single(c10::kCPU);
  metrics::MeanAbsoluteError error;
  NamedTensors saved;
  Metrics straight;
  {
    RunMetrics means(/*of_epochs=*/true, world);
    means.begin({{"error", error}});
    error.update(at::full({3}, 1.0), at::zeros({3}));
    means.end_epoch();
    error.update(at::full({1}, 5.0), at::zeros({1}));
    saved = means.save();
    straight = means.end_window();
  }
  EXPECT_EQ(straight, (Metrics{{"error", 2}}));
  for (const bool of_epochs : {true, false}) {
    RunMetrics means(of_epochs, world);
    means.begin({{"error", error}});
    means.load(saved);
    const NamedTensors again = means.save();
    EXPECT_EQ(means.end_window(), straight) << of_epochs;
    means.load(again);
    EXPECT_EQ(means.end_window(), straight) << "after a second resume, " << of_epochs;
    EXPECT_EQ(means.end_window(), Metrics()) << "the next window begins";
  }
}

}  // namespace
}  // namespace lockstep
