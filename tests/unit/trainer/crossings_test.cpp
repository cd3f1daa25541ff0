// Features that meet: a rollback, a stop or a resume, and what else a run does at that moment.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/lr_range.h>
#include <lockstep/trainer/monitors.h>

#include "checkpoint/run_hold.h"
#include "ipc/progress_record.h"
#include "report/record_comparison.h"
#include "storage/names.h"
#include "support/borrowed.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/minimize_with.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "trainer/output/step_recorder.h"
#include "trainer/resume.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Multiplies the loss of chosen steps. The task counts the calls.
class BadSteps final : public TinyTask {
 public:
  explicit BadSteps(std::set<std::int64_t> steps, double factor = std::nan(""),
                    OptimizerSpec optimizer = sgd({.lr = 0.05}))
      : TinyTask(std::move(optimizer)), steps_(std::move(steps)), factor_(factor) {}
  StepOutput training_step(const Batch& batch) override {
    return TinyTask::training_step(batch).loss * (steps_.contains(step_++) ? factor_ : 1);
  }
  StepOutput validation_step(const Batch& batch) override { return TinyTask::training_step(batch); }

 private:
  std::set<std::int64_t> steps_;
  double factor_;
  std::int64_t step_ = 0;
};

TrainConfig forty_steps() {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 40, .global_batch_size = 12});
  config.report.every_steps = 5;
  return config;
}

TrainConfig in_directory(TrainConfig config, const TempDir& dir) {
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  return config;
}

/// One rank; `add` gives the trainer what it needs.
FitResult fit(const TrainConfig& config, Task& task, const std::function<void(Trainer&)>& add = {},
              std::int64_t samples = 60) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config);
  Trainer trainer(plan, world);
  if (add) {
    add(trainer);
  }
  DataLoader data(tiny_data(samples), plan.loader, world);
  DataLoader validation(tiny_data(12), plan.eval_loader, world);
  return trainer.fit(task, data, &validation);
}

double value_of(const Metrics& metrics, const std::string& name) {
  const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
  return found == metrics.end() ? std::nan("") : found->second;
}

TEST(Crossing, ARollbackAlsoPutsBackACallbackThatHadNoStateBefore) {
  TrainConfig config = forty_steps();
  config.optim.non_finite = NonFinitePolicy::rollback;
  BadSteps task({2});
  const auto average = std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.9});
  const CapturedStderr silent;
  const FitResult result = fit(config, task, [&](Trainer& trainer) { trainer.add(average); });
  ASSERT_FALSE(average->average().empty());
  for (const auto& [name, tensor] : average->average()) {
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
  EXPECT_TRUE(std::isfinite(value_of(result.metrics, "val_loss")));
}

/// Counts reports on each rank. Only rank 0 saves, because the results of the other ranks are not written.
class ReportCounter final : public Callback {
 public:
  explicit ReportCounter(bool saves) : saves_(saves) {}
  std::string name() const override { return "counter"; }
  std::uint32_t stages() const override { return Stage::report; }
  void on(const StageContext&) override { ++count; }
  NamedTensors save() const override {
    return saves_ ? NamedTensors{{"count", at::scalar_tensor(count, at::kLong)}} : NamedTensors{};
  }
  void load(const NamedTensors& state) override {
    count = state.empty() ? 0 : state.front().second.item<std::int64_t>();
  }
  std::int64_t count = 0;

 private:
  bool saves_;
};

TEST(Crossing, ARollbackGivesAllRanksTheCallbackStateOfRank0) {
  TrainConfig config = forty_steps();
  config.optim.non_finite = NonFinitePolicy::rollback;
  CapturedStderr captured;
  thread_world(2, [&](World& world) {
    const Plan plan = plan_for(2, config);
    BadSteps task({32});
    const auto counter = std::make_shared<ReportCounter>(/*saves=*/world.is_main());
    DataLoader data(tiny_data(60), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.add(counter);
    trainer.fit(task, data);
    EXPECT_EQ(counter->count, 7) << "of eight reports one is left out";
  });
  EXPECT_THAT(captured.text(), HasSubstr("the weights are those of step 30 again"));
}

TEST(Crossing, ARollbackPutsBackARateThatACallbackWroteInTheSameReport) {
  TrainConfig config = forty_steps();
  config.spike = {.z_score = 10, .window = 20, .policy = SpikePolicy::rollback};
  BadSteps task({24}, 1e4);
  CapturedStderr captured;
  double lr = 0;
  fit(config, task, [&](Trainer& trainer) {
    trainer.on(Stage::report, [](const StageContext& at) {
      if (at.state.step == 25) {
        auto& options = at.strategy->optimizer().torch_optimizer().param_groups().front().options();
        options.set_lr(options.get_lr() / 2);
      }
    });
    trainer.on(Stage::step_end, [&](const StageContext& at) { lr = at.step.lr; });
  });
  EXPECT_THAT(captured.text(), HasSubstr("the weights are those of step 20 again"));
  EXPECT_DOUBLE_EQ(lr, 0.05);
}

TEST(Crossing, EarlyStoppingWaitsForWhatARollbackRepairs) {
  TrainConfig config = forty_steps();
  config.early_stop = {.metric = "loss", .patience = 100};
  for (const NonFinitePolicy policy : {NonFinitePolicy::rollback, NonFinitePolicy::skip, NonFinitePolicy::warn}) {
    config.optim.non_finite = policy;
    BadSteps task({7});
    const CapturedStderr silent;
    const FitResult result = fit(config, task);
    EXPECT_EQ(result.stop, policy == NonFinitePolicy::warn ? StopKind::program : StopKind::none);
  }
}

// The run goes back to a copy from before the validation that had it.
TEST(Crossing, AMetricStaysKnownAfterARollback) {
  TrainConfig config = forty_steps();
  config.report.every_steps = 20;
  config.validate.every_epochs = 0;
  config.validate.every_steps = 10;
  config.optim.non_finite = NonFinitePolicy::rollback;
  config.early_stop = {.metric = "val_f1", .patience = 100};
  config.plateau.metric = "val_f1";
  BadSteps task({12});
  CapturedStderr captured;
  const FitResult result = fit(config, task, [](Trainer& trainer) {
    trainer.on(Stage::validation_end, [](const StageContext& at) {
      if (at.state.step % 20 == 10) {
        at.log("val_f1", 1);
      }
    });
  });
  EXPECT_THAT(captured.text(), HasSubstr("the weights are those of step 0 again"));
  EXPECT_EQ(result.state.step, 40);
}

struct LeftOutCase {
  std::string metric;
  std::int64_t report_every = 5;  // the spike of step 26 is found at the report, or at the save before it
};

// An epoch has 5 steps: its end comes with the report that finds the spike, after it or before it.
TEST(Crossing, EarlyStoppingDecidesNothingByStepsThatARollbackLeavesOut) {
  for (const LeftOutCase& c :
       {LeftOutCase{"loss"}, LeftOutCase{"epoch_loss"}, LeftOutCase{"epoch_loss", 7}, LeftOutCase{"epoch_loss", 20}}) {
    for (const bool saves : {false, true}) {
      for (const SpikePolicy policy : {SpikePolicy::rollback, SpikePolicy::warn}) {
        const TempDir dir;
        TrainConfig config = in_directory(forty_steps(), dir);
        config.checkpoint.enabled = saves;
        config.checkpoint.every_steps = 3;
        config.report.every_steps = c.report_every;
        config.report.epoch_means = c.metric == "epoch_loss";
        config.spike = {.z_score = 10, .window = 20, .policy = policy};
        config.early_stop = {.metric = c.metric, .patience = 100, .divergence_threshold = 10};
        BadSteps task({26}, 1e4);
        CapturedStderr captured;
        const FitResult result = fit(config, task);
        EXPECT_EQ(result.stop, policy == SpikePolicy::rollback ? StopKind::none : StopKind::program)
            << c.metric << ", a report every " << c.report_every << " steps: " << result.why;
        EXPECT_THAT(captured.text(), HasSubstr("the loss of step 26 is"));
      }
    }
  }
}

// Step 26 is one of the sixth epoch, which ends after step 29.
TEST(Crossing, AnEpochKnowsWhatARollbackLeftOutOfItAfterAResume) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  config.report.epoch_means = true;
  config.spike = {.z_score = 10, .window = 20, .policy = SpikePolicy::rollback};
  std::vector<std::int64_t> left_out;
  for (const std::int64_t last : {28, 40}) {
    config.max_steps = last;
    BadSteps task(last == 28 ? std::set<std::int64_t>{26} : std::set<std::int64_t>{}, 1e4);
    const CapturedStderr silent;
    fit(config, task, [&](Trainer& trainer) {
      trainer.on(Stage::epoch_report, [&](const StageContext& at) {
        if (at.is_left_out) {
          left_out.push_back(at.state.step);
        }
      });
    });
  }
  EXPECT_THAT(left_out, ElementsAre(30));
}

TEST(Crossing, AMonitorOfGradientsForgetsAStepThatARollbackLeavesOut) {
  TrainConfig config = forty_steps();
  config.spike = {.z_score = 10, .window = 20, .policy = SpikePolicy::rollback};
  BadSteps task({24}, 1e4);
  std::vector<std::int64_t> reported;
  const CapturedStderr silent;
  fit(config, task, [&](Trainer& trainer) {
    trainer.add(
        std::make_shared<GradientMonitor>(GradientMonitorOptions{.every_steps = 25, .groups = {{.name = "all"}}}));
    trainer.on(Stage::report, [&](const StageContext& at) {
      if (std::isfinite(value_of(*at.metrics, "grad_norm/all"))) {
        reported.push_back(at.state.step);
      }
    });
  });
  EXPECT_THAT(reported, ElementsAre(25)) << "the report that finds the spike";
}

/// Two epochs of 5 steps and a validation after each; asks for a stop in the validation after epoch `stop_in`.
class StoppedValidation final : public TinyTask {
 public:
  explicit StoppedValidation(int stop_in) : TinyTask(sgd({.lr = 0.05})), stop_in_(stop_in) {}
  StepOutput validation_step(const Batch& batch) override {
    if (++validated_ == stop_in_) {
      control_.request_stop("the test", StopKind::terminate);
    }
    return TinyTask::training_step(batch);
  }
  int validated() const { return validated_; }
  /// One rank; three batches in each validation.
  FitResult fit(
      const TrainConfig& config, const std::function<void(Trainer&)>& add = [](Trainer&) {}) {
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    Trainer trainer(plan, world, control_);
    add(trainer);
    DataLoader data(tiny_data(60), plan.loader, world);
    DataLoader validation(tiny_data(36), plan.eval_loader, world);
    return trainer.fit(*this, data, &validation);
  }

 private:
  int stop_in_;
  int validated_ = 0;
  TrainControl control_{};
};

TEST(Crossing, AStoppedValidationIsDoneBeforeTheNextStep) {
  const auto run = [](const TempDir& dir, int stop_in) {
    TrainConfig config = in_directory(in_memory({.max_epochs = 4, .batch_size = 12}), dir);
    config.report.every_steps = 5;
    config.checkpoint.enabled = true;
    config.checkpoint.monitor = "score";  // the step of the stopped validation has the best one
    config.optim.schedule = LrSchedule("linear:to=0.01");
    StoppedValidation task(stop_in);
    // The worst possible threshold: each validation after the first one lowers the rate, which the schedule has lowered
    // already.
    const FitResult result = task.fit(config, [](Trainer& trainer) {
      trainer.add(std::make_shared<ReduceOnPlateau>(
          ReduceOnPlateauOptions{.factor = 0.1, .patience = 0, .threshold = 0.99, .min_lr = 0.01}));
      trainer.on(Stage::step_end,
                 [](const StageContext& at) { at.log("score", std::abs(static_cast<double>(at.state.step) - 10)); });
    });
    return std::pair(result, weights_of(task));
  };
  const CapturedStderr silent;
  const TempDir whole;
  const auto straight = run(whole, 0);
  const TempDir parts;
  const auto stopped = run(parts, 3 + 2);  // in the second validation
  EXPECT_EQ(stopped.first.stop, StopKind::terminate);
  EXPECT_EQ(stopped.first.state.step, 10);
  const auto resumed = run(parts, 0);
  EXPECT_EQ(resumed.first.state.step, 20);
  EXPECT_TRUE(are_equal(straight.second, resumed.second));
  EXPECT_FALSE(are_equal(straight.second, stopped.second)) << "the control";
  ASSERT_TRUE(straight.first.best && resumed.first.best);
  EXPECT_EQ(straight.first.best->step, 10);
  EXPECT_EQ(resumed.first.best->step, 10);
}

TEST(Crossing, EachStartOfAValidationHasAnEnd) {
  const TempDir dir;
  std::string order;
  const auto run = [&](int stop_in) {
    TrainConfig config = in_directory(in_memory({.max_epochs = 2, .batch_size = 12}), dir);
    config.checkpoint.enabled = true;
    StoppedValidation task(stop_in);
    task.fit(config, [&](Trainer& trainer) {
      trainer.on(Stage::validation_start | Stage::validation_end | Stage::evaluation_stopped,
                 [&](const StageContext& at) {
                   order += at.stage == Stage::validation_start ? '<' : at.stage == Stage::validation_end ? '>' : '!';
                 });
    });
  };
  const CapturedStderr silent;
  run(2);
  EXPECT_EQ(order, "<!");
  run(0);
  EXPECT_EQ(order, "<!<><>");
}

// Only time makes that after step 1.
TEST(Crossing, AValidationThatDecidesNothingDoesNotDecideAfterAStopEither) {
  const TempDir dir;
  std::map<std::int64_t, bool> decides;  // by step
  const auto run = [&](double every_s, int stop_in) {
    TrainConfig config = in_directory(in_memory({.max_epochs = 1, .batch_size = 12}), dir);
    config.validate.every_s = every_s;
    StoppedValidation(stop_in).fit(config, [&](Trainer& trainer) {
      trainer.on(Stage::validation_end, [&](const StageContext& at) { decides[at.state.step] = at.ends_window; });
    });
  };
  const CapturedStderr silent;
  run(1e-9, 2);
  EXPECT_TRUE(decides.empty());
  run(0, 0);
  EXPECT_EQ(decides, (std::map<std::int64_t, bool>{{1, false}, {5, true}}));
}

TEST(Crossing, AFinishedRunHasTheSameMetricsAgain) {
  for (const bool stops : {false, true}) {
    const TempDir dir;
    TrainConfig config = in_directory(in_memory({.max_epochs = 2, .batch_size = 12}), dir);
    config.report.every_steps = 3;  // no report is due at the end
    if (stops) {
      config.early_stop = {.metric = "val_loss", .patience = 1, .min_delta = 1000};
    }
    const auto metrics = [&] {
      BadSteps task({});
      const Metrics found = fit(config, task).metrics;
      return std::map<std::string, double>(found.begin(), found.end());
    };
    const CapturedStderr silent;
    const auto first = metrics();
    EXPECT_TRUE(first.contains("loss") && first.contains("val_loss"));
    EXPECT_EQ(metrics(), first);
  }
}

TEST(Crossing, AMetricThatTheValidationLacksIsAFailureOfTheValidation) {
  for (const bool monitors : {false, true}) {
    TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 12});
    (monitors ? config.checkpoint.monitor : config.early_stop.metric) = "val_los";
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    TinyTask task;
    DataLoader data(tiny_data(60), plan.loader, world);
    DataLoader validation(tiny_data(12), plan.eval_loader, world);
    Trainer trainer(plan, world);
    EXPECT_THAT(message_of([&] { trainer.fit(task, data, &validation); }), HasSubstr("val_los"));
    EXPECT_EQ(view(WorldAccess::progress(world)).phase, Phase::validation);
  }
}

TEST(Crossing, AMetricOfAStepThatReportsCannotHaveIsNoFailureOfTheOptimizer) {
  class Unnamed final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      StepOutput output = TinyTask::training_step(batch);
      output.metrics = {{"", at::ones({})}};
      return output;
    }
  } task;
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .batch_size = 12}));
  DataLoader data(tiny_data(60), plan.loader, world);
  Trainer trainer(plan, world);
  EXPECT_THAT(message_of([&] { trainer.fit(task, data); }), HasSubstr("found the metric name ''"));
  EXPECT_EQ(view(WorldAccess::progress(world)).phase, Phase::task);
}

/// Stores and gets a tensor of its own.
class Keeper final : public Callback {
 public:
  explicit Keeper(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  std::uint32_t stages() const override { return Stage::step_end; }
  void on(const StageContext&) override {}
  NamedTensors save() const override { return {{"n", at::scalar_tensor(static_cast<double>(name_.size()))}}; }
  void load(const NamedTensors& state) override { loaded = state; }
  NamedTensors loaded{};

 private:
  std::string name_;
};

TEST(Crossing, ACallbackGetsNothingOfAnotherOneWhoseNameBeginsWithItsOwn) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  std::vector<std::shared_ptr<Keeper>> keepers;
  for (int start = 0; start < 2; ++start) {
    keepers = {std::make_shared<Keeper>("loss"), std::make_shared<Keeper>("loss.box")};
    BadSteps task({});
    const CapturedStderr silent;
    fit(config, task, [&](Trainer& trainer) { trainer.add(keepers[0]).add(keepers[1]); });
  }
  for (const auto& keeper : keepers) {
    ASSERT_EQ(keeper->loaded.size(), 1U) << keeper->name();
    EXPECT_EQ(keeper->loaded.front().first, "n");
    EXPECT_EQ(keeper->loaded.front().second.item<double>(), static_cast<double>(keeper->name().size()));
  }
}

TEST(Crossing, AFrozenGroupKeepsTheRateThatACallbackLowered) {
  const auto run = [](const TempDir& dir, std::int64_t epochs) {
    TrainConfig config = in_directory(in_memory({.max_epochs = epochs, .batch_size = 12}), dir);
    OptimizerSpec optimizer = sgd({.lr = 0.05});
    optimizer.groups = {{.select = named("weight")}, {.select = named("bias")}};
    BadSteps task({}, 1, optimizer);
    fit(config, task, [](Trainer& trainer) {
      trainer.add(std::make_shared<FreezeUntil>("weight", 4));
      trainer.add(
          std::make_shared<ReduceOnPlateau>(ReduceOnPlateauOptions{.factor = 0.1, .patience = 0, .threshold = 0.99}));
    });
    return weights_of(task);
  };
  const CapturedStderr silent;
  const TempDir whole;
  const auto straight = run(whole, 6);
  const TempDir parts;
  run(parts, 3);
  const auto resumed = run(parts, 6);
  EXPECT_TRUE(are_equal(straight, resumed));
}

/// Updates with a closure.
class ClosureTask final : public TinyTask {
 public:
  using TinyTask::TinyTask;
  void optimize(Step& step) override {
    step.add(minimize_with(step, [this](const Batch& batch) { return training_step(batch); }));
  }
};

TEST(Crossing, AClosureIsRefusedWhereTheOptimizerIsSharded) {
  TrainConfig config = in_memory({.max_epochs = 1, .global_batch_size = 12});
  config.dist.shard_optimizer = true;
  const CapturedStderr silent;
  const auto run = [&](int ranks) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, config);
      ClosureTask task(adamw({.lr = 0.05}));
      DataLoader data(tiny_data(60), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
  };
  EXPECT_THAT(message_of<ConfigError>([&] { run(2); }),
              HasSubstr("--dist.shard_optimizer true: an optimizer with a closure"));
  run(1);  // it has all parameters
}

// FreezeUntil freezes them again after the optimizer has got its state.
TEST(Crossing, LbfgsResumesWhileACallbackFreezesParameters) {
  const TempDir dir;
  const auto run = [&](std::int64_t epochs) {
    ClosureTask task(OptimizerFactory([](ParamGroups groups) -> OptimizerPtr {
      return std::make_unique<torch::optim::LBFGS>(std::move(groups), torch::optim::LBFGSOptions(0.1).max_iter(2));
    }));
    return fit(in_directory(in_memory({.max_epochs = epochs, .batch_size = 12}), dir), task,
               [](Trainer& trainer) { trainer.add(std::make_shared<FreezeUntil>("bias", 3)); })
        .state.step;
  };
  CapturedStderr captured;
  EXPECT_EQ(run(1), 5);
  EXPECT_EQ(run(4), 20);
  EXPECT_THAT(captured.text(), HasSubstr("LBFGS begins with an empty memory: other parameters were frozen"));
}

TEST(Crossing, ATrainingInACallbackLeavesTheCommandsToTheFit) {
  const TempDir dir;
  const TrainConfig config = in_directory(in_memory({.max_epochs = 1, .batch_size = 12}), dir);
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config);
  BadSteps task({});
  TinyTask probe;
  DataLoader data(tiny_data(60), plan.loader, world);
  DataLoader probed(tiny_data(60), plan.loader, world);
  Trainer trainer(plan, world);
  const std::filesystem::path command = dir.path() / "run" / "commands" / "save";
  trainer.on(Stage::epoch_end, [&](const StageContext&) {
    std::filesystem::create_directories(command.parent_path());
    std::ofstream(command) << "";
    find_lr(plan, world, probe, probed, {.min_lr = 1e-6, .max_lr = 1e-3, .steps = 3});
    EXPECT_TRUE(std::filesystem::exists(command));
  });
  const CapturedStderr silent;
  trainer.fit(task, data);
}

// Restarts, and the place of a failure, are about the fit.
TEST(Crossing, ATrainingInACallbackLeavesThePlaceToTheFit) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 2, .batch_size = 12}));
  TinyTask task;
  TinyTask probe;
  DataLoader data(tiny_data(60), plan.loader, world);
  DataLoader probed(tiny_data(24), plan.loader, world);
  const ProgressRecord& record = WorldAccess::progress(world);
  Trainer trainer(plan, world);
  trainer.on(
      Stage::epoch_end,
      [&](const StageContext& at) {
        Trainer inner(plan, world);
        inner.on(Stage::step_end, [&](const StageContext&) { EXPECT_EQ(view(record).step, at.state.step); });
        inner.fit(probe, probed);
        probed.seek({});
        EXPECT_EQ(place_of(view(record)), fmt::format("at step {} in callback 'outer' (epoch_end)", at.state.step));
        inner.on(Stage::step_start, [](const StageContext&) { throw std::runtime_error("trouble"); });
        EXPECT_THROW(inner.fit(probe, probed), std::runtime_error);
        probed.seek({});
        EXPECT_EQ(place_of(view(record)), fmt::format("at step {} in callback 'outer' (epoch_end)", at.state.step));
      },
      {.name = "outer"});
  const CapturedStderr silent;
  trainer.fit(task, data);
  EXPECT_EQ(place_of(view(record)), "after step 10");
  data.seek({});
  trainer.fit(task, data);
  EXPECT_EQ(view(record).step, 10);
  EXPECT_EQ(record.all_steps(), 20);
}

// As with --fresh, where the rank holds the run from its start on. A fit takes what it was asked for before.
TEST(Crossing, AFitTakesTheCommandsOfARunThatTheProgramHolds) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, in_directory(in_memory({.max_epochs = 1, .batch_size = 12}), dir));
  const auto held = RunHold::take(plan, world);
  const std::filesystem::path command = dir.path() / "run" / "commands" / "save";
  std::filesystem::create_directories(command.parent_path());
  std::ofstream(command) << "";
  BadSteps task({});
  DataLoader data(tiny_data(60), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.on(Stage::fit_start, [&](const StageContext&) { EXPECT_TRUE(held->has_fit()); });
  const CapturedStderr silent;
  trainer.fit(task, data);
  EXPECT_FALSE(std::filesystem::exists(command));
  EXPECT_FALSE(held->has_fit());
}

TEST(Crossing, AStoppedValidationAfterTheLastStepIsDoneOnceOnResume) {
  const TempDir dir;
  const auto run = [&](int stop_in) {
    TrainConfig config = in_directory(in_memory({.max_epochs = 1, .batch_size = 12}), dir);
    config.checkpoint.monitor = "val_loss";
    StoppedValidation task(stop_in);
    const FitResult result = task.fit(config);
    return std::pair(result, task.validated());
  };
  const CapturedStderr silent;
  EXPECT_FALSE(run(2).first.best);
  const auto resumed = run(0);
  EXPECT_EQ(resumed.second, 3) << "batches";
  ASSERT_TRUE(resumed.first.best);
  EXPECT_EQ(resumed.first.best->value, value_of(resumed.first.metrics, "val_loss"));
  EXPECT_THAT(resumed.first.why, testing::StartsWith("finished at step 5, epoch 1")) << "there was something to do";
  const auto finished = run(0);
  EXPECT_EQ(finished.second, 0);
  EXPECT_THAT(finished.first.why, testing::StartsWith("nothing to do: this run is finished (step 5, epoch 1)"));
  EXPECT_EQ(value_of(finished.first.metrics, "val_loss"), resumed.first.best->value);
}

// It saves its checkpoint again, after the validation.
TEST(Crossing, AResumedRunKnowsMetricsThatAreNotFinite) {
  CheckpointContents contents;
  contents.values = {{metric_key("grad_norm"), "nan"}, {metric_key("loss"), "0.5"}, {metric_key("score"), "-inf"}};
  const Metrics metrics = metrics_of(contents);
  ASSERT_EQ(metrics.size(), 3U);
  EXPECT_TRUE(std::isnan(value_of(metrics, "grad_norm")));
  EXPECT_EQ(value_of(metrics, "loss"), 0.5);
  EXPECT_EQ(value_of(metrics, "score"), -std::numeric_limits<double>::infinity());
}

TEST(Crossing, AValidationThatFailedIsDoneOnResume) {
  class FailingValidation final : public TinyTask {
   public:
    StepOutput validation_step(const Batch& batch) override {
      if (fails) {
        throw std::runtime_error("no disk");
      }
      return TinyTask::training_step(batch);
    }
    bool fails = false;
  };
  const TempDir dir;
  TrainConfig config = in_directory(in_memory({.max_epochs = 1, .batch_size = 12}), dir);
  FailingValidation task;
  task.fails = true;
  const CapturedStderr silent;
  EXPECT_THROW(fit(config, task), std::runtime_error);
  task.fails = false;
  const FitResult resumed = fit(config, task);
  EXPECT_EQ(resumed.state.step, 5);
  EXPECT_FALSE(std::isnan(value_of(resumed.metrics, "val_loss")));
}

/// The steps after which a run over 58 samples validates. Each pass over them ends with a short step.
std::vector<std::int64_t> validated_steps(const TrainConfig& config) {
  BadSteps task({});
  std::vector<std::int64_t> found;
  fit(
      config, task,
      [&](Trainer& trainer) {
        trainer.on(Stage::validation_end, [&](const StageContext& at) { found.push_back(at.state.step); });
      },
      /*samples=*/58);
  return found;
}

TEST(Crossing, APartOfAnEpochIsCountedInAResumedRunAsBefore) {
  const auto steps = [](const TempDir& dir, std::int64_t most) {
    TrainConfig config = in_directory(forty_steps(), dir);
    config.max_steps = most;
    config.data.steps_per_epoch = 12;
    config.validate.every_epochs = 0.25;
    return validated_steps(config);
  };
  const TempDir whole;
  EXPECT_THAT(steps(whole, 12), ElementsAre(3, 6, 9, 12));
  const TempDir parts;
  EXPECT_THAT(steps(parts, 7), ElementsAre(3, 6));
  EXPECT_THAT(steps(parts, 12), ElementsAre(9, 12));
}

// Three passes of 5 steps are as long as 30 steps of half the batch, because the last step of a pass is smaller.
TEST(Crossing, AnEpochOfSeveralPassesGoesOnWithAnotherGlobalBatch) {
  const TempDir dir;
  const auto steps = [&](std::int64_t global_batch, std::int64_t most) {
    TrainConfig config = in_directory(forty_steps(), dir);
    config.global_batch_size = global_batch;
    config.max_steps = most;
    config.data.steps_per_epoch = 40;
    config.validate.every_epochs = 0.25;
    return validated_steps(config);
  };
  EXPECT_THAT(steps(12, 15), ElementsAre(10));
  EXPECT_THAT(steps(6, 25), ElementsAre(25));
}

TEST(Crossing, AScheduleAndPartsOfEpochsGoOnWithAnotherNumberOfRanks) {
  struct Seen {
    std::vector<double> rates{};
    std::vector<std::int64_t> validations{};
  };
  StepCount steps;
  const auto run = [&steps](const TempDir& dir, int ranks, std::int64_t stop_after, Seen& seen) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config{.compute_setup = ComputeSetup::cpu,
                         .max_epochs = 3,
                         .batch_size = 2,
                         .run_dir = dir.path() / "run",
                         .data = {.steps_per_epoch = steps},
                         .optim = {.schedule = "linear"},
                         .validate = {.every_epochs = 0.5}};
      const Plan plan = plan_for(ranks, config);
      TinyTask task;
      DataLoader data(tiny_data(16), plan.loader, world);
      DataLoader validation(tiny_data(6), plan.eval_loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::step_end, [&](const StageContext& at) {
        if (world.is_main()) {
          seen.rates.push_back(at.step.lr);
        }
        if (at.state.step == stop_after) {
          at.control.request_stop("enough");
        }
      });
      trainer.on(Stage::validation_end, [&](const StageContext& at) {
        if (world.is_main()) {
          seen.validations.push_back(at.state.step);
        }
      });
      trainer.fit(task, data, &validation);
    });
  };
  for (const StepCount length : {StepCount(), StepCount::percent(50)}) {
    steps = length;
    for (const auto& [before, after] : {std::pair(1, 2), std::pair(2, 1), std::pair(2, 3)}) {
      const TempDir straight_dir;
      const TempDir dir;
      Seen straight;
      Seen resumed;
      run(straight_dir, before, 0, straight);
      run(dir, before, 3, resumed);
      run(dir, after, 0, resumed);
      const std::int64_t of_epoch = steps.of(8 / before);
      EXPECT_EQ(std::ssize(straight.rates), 3 * of_epoch);
      EXPECT_EQ(resumed.rates, straight.rates) << before << " and then " << after << " ranks";
      EXPECT_EQ(resumed.validations, straight.validations) << before << " and then " << after << " ranks";
      EXPECT_LT(resumed.rates.back(), resumed.rates.front() / 2);
    }
  }
}

/// The reported means, by step.
std::map<std::int64_t, double> losses_of(const TrainConfig& config, Task& task, const std::string& name = "loss") {
  std::map<std::int64_t, double> losses;
  const auto note = [&](const StageContext& at) {
    if (const double value = value_of(*at.metrics, name); at.stage == Stage::report || name.starts_with("epoch_")) {
      losses[at.state.step] = value;
    }
  };
  fit(
      config, task, [&](Trainer& trainer) { trainer.on(Stage::report | Stage::epoch_report, note); }, 48);
  return losses;
}

TEST(Crossing, AStepWhoseLossIsNotFiniteDoesNotCountInTheReports) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 12, .global_batch_size = 12});
  config.report.every_steps = 4;
  config.report.epoch_means = true;
  config.optim.non_finite = NonFinitePolicy::skip;
  TrainConfig each = config;
  each.report.every_steps = 1;
  BadSteps task_of_each({5});
  auto single = losses_of(each, task_of_each);  // of each step, named by the number of steps after it
  ASSERT_EQ(single.size(), 12U);
  EXPECT_TRUE(std::isnan(single.at(6))) << "nothing is left to report";
  BadSteps task({5});
  const auto of_windows = losses_of(config, task);
  EXPECT_NEAR(of_windows.at(4), (single.at(1) + single.at(2) + single.at(3) + single.at(4)) / 4, 1e-6);
  EXPECT_NEAR(of_windows.at(8), (single.at(5) + single.at(7) + single.at(8)) / 3, 1e-6);
  BadSteps again({5});
  const auto of_epochs = losses_of(config, again, "epoch_loss");
  EXPECT_NEAR(of_epochs.at(8), of_windows.at(8), 1e-12);
}

TEST(Crossing, ASpikeThatIsLeftOutIsSeenInTheReports) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 40, .global_batch_size = 12});
  config.report.every_steps = 1;
  config.spike = {.z_score = 6, .window = 10, .policy = SpikePolicy::skip};
  BadSteps task({30}, 1e4);
  CapturedStderr captured;
  const auto losses = losses_of(config, task);
  EXPECT_THAT(captured.text(), HasSubstr("the loss of step 30"));
  EXPECT_GT(losses.at(31), 100 * losses.at(30));
  EXPECT_LT(losses.at(32), 10 * losses.at(30)) << "the weights stayed as they were";
}

TEST(Crossing, EarlyStoppingPassesOverAReportOfWhichEveryStepWasLeftOut) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 12, .global_batch_size = 12});
  config.report.every_steps = 1;
  config.optim.non_finite = NonFinitePolicy::skip;
  config.early_stop = {.metric = "loss", .patience = 20};
  BadSteps task({0, 5});
  const auto losses = losses_of(config, task);
  EXPECT_EQ(losses.size(), 12U) << "the first report has the metric, too";
}

/// Trains with a callback that tests at the end of each epoch of 5 steps; returns the result of rank 0 and the number
/// of complete tests.
std::pair<FitResult, int> fit_with_tests(int ranks, const TrainConfig& config,
                                         const std::function<void(Trainer&)>& add) {
  std::pair<FitResult, int> found;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    BadSteps task({});
    DataLoader data(tiny_data(60), plan.loader, world);
    DataLoader validation(tiny_data(12), plan.eval_loader, world);
    DataLoader test(tiny_data(7), plan.eval_loader, world);
    Trainer trainer(plan, world);
    int tests = 0;
    trainer.on(Stage::epoch_end, [&](const StageContext&) {
      trainer.test(task, test);
      ++tests;
    });
    if (add) {
      add(trainer);
    }
    FitResult result = trainer.fit(task, data, &validation);
    if (world.is_main()) {
      found = {std::move(result), tests};
    }
  });
  return found;
}

TEST(Crossing, ATestInACallbackTakesNoStopFromTheFit) {
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    TrainConfig config = in_directory(in_memory({.max_epochs = 8, .min_epochs = 5, .global_batch_size = 12}), dir);
    config.early_stop = {.metric = "val_loss", .patience = 1, .min_delta = 100};  // asks in the second epoch
    const CapturedStderr silent;
    const auto [result, tests] = fit_with_tests(ranks, config, {});
    EXPECT_EQ(result.state.step, 25) << "the minimum, and then the stop";
    EXPECT_EQ(result.stop, StopKind::program);
    EXPECT_EQ(tests, 5);
    EXPECT_TRUE(std::filesystem::exists(dir.path() / "run" / "checkpoints" / "step-0000000025"));
  }
}

TEST(Crossing, LoopsOfAnotherTrainerInACallbackTakeNoStopFromTheFit) {
  const TempDir dir;
  TrainConfig config = in_directory(in_memory({.max_epochs = 8, .min_epochs = 5, .global_batch_size = 12}), dir);
  config.early_stop = {.metric = "val_loss", .patience = 1, .min_delta = 100};  // asks in the second epoch
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config);
  const Plan of_probe = plan_for(1, in_memory({.max_epochs = 0, .max_steps = 3, .global_batch_size = 12}));
  const TrainControl control;
  BadSteps task({});
  TinyTask probe;
  DataLoader data(tiny_data(60), plan.loader, world);
  DataLoader validation(tiny_data(12), plan.eval_loader, world);
  DataLoader test(tiny_data(7), plan.eval_loader, world);
  DataLoader probed(tiny_data(120), of_probe.loader, world);
  Trainer trainer(plan, world, control);
  int loops = 0;
  trainer.on(Stage::epoch_end, [&](const StageContext&) {
    Trainer other(of_probe, world, control);
    other.on(Stage::step_end, [](const StageContext& at) { at.control.request_stop("enough"); });
    EXPECT_EQ(other.fit(probe, probed).state.step, 2) << "its own stop, not that of the other fit";
    other.test(task, test);
    ++loops;
  });
  const CapturedStderr silent;
  const FitResult result = trainer.fit(task, data, &validation);
  EXPECT_EQ(loops, 5);
  EXPECT_EQ(result.state.step, 25) << "the minimum, and then the stop that a callback asked for in an earlier epoch";
  EXPECT_EQ(result.stop, StopKind::program);
}

TEST(Crossing, ASignalInATestOfACallbackEndsTheFitAndSaves) {
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    const TrainConfig config = in_directory(in_memory({.max_epochs = 8, .global_batch_size = 12}), dir);
    const CapturedStderr silent;
    const auto [result, tests] = fit_with_tests(ranks, config, [](Trainer& trainer) {
      trainer.on(Stage::test_batch_end,
                 [](const StageContext& at) { at.control.request_stop("SIGTERM", StopKind::terminate); });
    });
    EXPECT_EQ(tests, 1) << "it was completed";
    EXPECT_EQ(result.stop, StopKind::terminate);
    EXPECT_EQ(result.state.step, 5) << "the validation behind it sees the signal, too";
    EXPECT_TRUE(std::filesystem::exists(dir.path() / "run" / "checkpoints" / "step-0000000005"));
  }
}

TEST(Crossing, TheBestCheckpointFollowsAMetricThatACallbackLogs) {
  for (const Stage stage : {Stage::step_end, Stage::epoch_end}) {
    const TempDir dir;
    TrainConfig config = in_directory(in_memory({.max_epochs = 5, .global_batch_size = 12}), dir);
    config.report.every_steps = 3;  // not at the ends of epochs
    config.checkpoint.monitor = "score";
    BadSteps task({});
    const CapturedStderr silent;
    const FitResult result = fit(config, task, [&](Trainer& trainer) {
      trainer.on(stage, [](const StageContext& at) {
        at.log("score", std::abs(static_cast<double>(at.state.step) - 10) + 0.5);
      });
    });
    ASSERT_TRUE(result.best);
    EXPECT_EQ(result.best->step, 10);
    EXPECT_EQ(result.best->value, 0.5);
    EXPECT_TRUE(std::filesystem::exists(result.best->path)) << "it was kept";
  }
}

TEST(Crossing, AValueThatWasLoggedInAnEarlierStepIsNotThatOfACheckpoint) {
  const TempDir dir;
  TrainConfig config = in_directory(in_memory({.max_epochs = 2, .global_batch_size = 12}), dir);
  config.report.every_steps = 4;  // the report of step 8 has the value of step 6
  config.checkpoint.every_steps = 2;
  config.checkpoint.monitor = "score";
  BadSteps task({});
  const CapturedStderr silent;
  const FitResult result = fit(config, task, [&](Trainer& trainer) {
    trainer.on(Stage::step_end, [](const StageContext& at) {
      if (at.state.step == 2 || at.state.step == 6) {
        at.log("score", 1.0 / static_cast<double>(at.state.step));
      }
    });
  });
  ASSERT_TRUE(result.best);
  EXPECT_EQ(result.best->step, 6);
}

TEST(Crossing, ASaveWithoutAValueOfTheMonitorIsTold) {
  const TempDir dir;
  TrainConfig config = in_directory(in_memory({.max_epochs = 3, .global_batch_size = 12}), dir);
  config.report.every_steps = 3;
  config.checkpoint.monitor = "score";
  BadSteps task({});
  CapturedStderr captured;
  fit(config, task,
      [](Trainer& trainer) { trainer.on(Stage::report, [](const StageContext& at) { at.log("score", 1); }); });
  EXPECT_THAT(captured.text(),
              HasSubstr("--checkpoint.monitor score: step 5 has no value of it, so its checkpoint is not compared"));
}

// What a callback has not done of a step would be missing in the resumed run.
TEST(Crossing, AFailedCallbackLeavesTheLastSave) {
  for (const Stage stage : {Stage::epoch_start, Stage::step_end, Stage::epoch_end, Stage::report, Stage::epoch_report,
                            Stage::validation_start, Stage::validation_batch_start, Stage::validation_batch_end,
                            Stage::validation_end, Stage::checkpoint_saved}) {
    const auto run = [&](const TempDir& dir, std::int64_t fails_at) {
      TrainConfig config = in_directory(in_memory({.max_epochs = 4, .global_batch_size = 12}), dir);
      config.report.every_steps = 4;
      config.report.epoch_means = true;
      config.checkpoint.every_steps = 3;
      config.early_stop = {.metric = "val_loss", .patience = 100};  // counts validations
      BadSteps task({});
      const auto add = [&](Trainer& trainer) {
        trainer.on(stage, [=](const StageContext& at) {
          if (at.state.step == fails_at) {
            throw std::runtime_error("no disk");
          }
        });
        trainer.add(std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.5}));
        trainer.add(std::make_shared<ReduceOnPlateau>(
            ReduceOnPlateauOptions{.metric = "epoch_loss", .factor = 0.5, .patience = 0, .threshold = 0.9}));
      };
      fit(config, task, add);
      return weights_of(task);
    };
    const CapturedStderr silent;
    const TempDir whole;
    const auto straight = run(whole, -1);
    const TempDir parts;
    EXPECT_THROW(run(parts, stage == Stage::report ? 12 : 10), std::runtime_error);
    const auto resumed = run(parts, -1);
    EXPECT_TRUE(are_equal(straight, resumed)) << static_cast<std::uint32_t>(stage);
    EXPECT_EQ(read_text(parts.path() / "run" / "checkpoints" / "last" / "callbacks.safetensors"),
              read_text(whole.path() / "run" / "checkpoints" / "last" / "callbacks.safetensors"));
  }
}

// Else a resumed run would choose another best checkpoint than a straight one.
TEST(Crossing, EveryValidationHasTheSameRandomNumbers) {
  const auto run = [](const TempDir& dir, std::int64_t epochs) {
    TrainConfig config = in_directory(in_memory({.max_epochs = epochs, .global_batch_size = 12}), dir);
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    const auto noisy = sample_dataset(6, [](std::int64_t id, std::uint64_t seed) {
      const double noise = static_cast<double>(seed % 1000) / 1000;
      return Batch{.input = at::full({4}, static_cast<double>(id) + noise), .target = at::full({1}, noise)};
    });
    BadSteps task({});
    DataLoader data(tiny_data(24), plan.loader, world);
    DataLoader validation(noisy, plan.eval_loader, world);
    std::vector<double> losses;
    Trainer trainer(plan, world);
    trainer.on(Stage::validation_end,
               [&](const StageContext& at) { losses.push_back(value_of(*at.metrics, "val_loss")); });
    trainer.fit(task, data, &validation);
    return losses;
  };
  const CapturedStderr silent;
  const TempDir whole;
  auto straight = run(whole, 4);
  const TempDir parts;
  auto resumed = run(parts, 2);
  const auto rest = run(parts, 4);
  resumed.insert(resumed.end(), rest.begin(), rest.end());
  EXPECT_EQ(resumed, straight);
  EXPECT_NE(straight.at(0), straight.at(1)) << "the weights changed";
}

// The position of the checkpoint may be the end of an epoch of the new run.
TEST(Crossing, RunAndLoaderAgreeOnTheEpochAfterAResumeWithAnotherGlobalBatch) {
  const TempDir dir;
  const auto run = [&](std::int64_t batch, std::int64_t steps) {
    TrainConfig config =
        in_directory(in_memory({.max_epochs = 0, .max_steps = steps, .global_batch_size = batch}), dir);
    config.data.steps_per_epoch = 10;
    BadSteps task({});
    std::vector<std::pair<std::int64_t, std::int64_t>> epochs;  // of the run and of the data
    fit(config, task, [&](Trainer& trainer) {
      trainer.on(Stage::step_start,
                 [&](const StageContext& at) { epochs.emplace_back(at.state.epoch, at.batches->epoch); });
    });
    return epochs;
  };
  const CapturedStderr silent;
  run(8, 6);  // 48 samples, and then an epoch has 40
  const auto resumed = run(4, 28);
  ASSERT_EQ(resumed.size(), 22U);
  for (const auto& [of_run, of_data] : resumed) {
    EXPECT_EQ(of_run, of_data);
  }
  EXPECT_EQ(resumed.front().first, 1);
  EXPECT_EQ(resumed.back().first, 3);
}

TEST(Crossing, AnEpochThatIsOverAtTheResumeIsNotInTheMeansOfTheNext) {
  class StepNumbers final : public TinyTask {
   public:
    StepNumbers(const std::int64_t& step, TrainControl control, bool stops)
        : step_(step), control_(std::move(control)), stops_(stops) {}
    StepOutput training_step(const Batch& batch) override {
      StepOutput out = TinyTask::training_step(batch);
      out.metrics.emplace_back("number", at::scalar_tensor(static_cast<double>(step_ + 1)));
      return out;
    }
    StepOutput validation_step(const Batch& batch) override {
      if (stops_) {
        control_.request_stop("the test", StopKind::terminate);
      }
      return TinyTask::training_step(batch);
    }

   private:
    const std::int64_t& step_;
    TrainControl control_;
    bool stops_;
  };
  const TempDir dir;
  const auto run = [&](std::int64_t epoch, std::int64_t steps, bool stops) {
    TrainConfig config = in_directory(in_memory({.max_epochs = 0, .max_steps = steps, .global_batch_size = 4}), dir);
    config.data.steps_per_epoch = epoch;
    config.report.epoch_means = true;
    config.validate.every_epochs = 0;
    config.validate.every_steps = 7;
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    TrainControl control;
    std::int64_t done = stops ? 0 : 7;
    StepNumbers task(done, control, stops);
    std::vector<double> means;
    int validations = 0;
    Trainer trainer(plan, world, control);
    trainer.on(Stage::step_end, [&](const StageContext& at) { done = at.state.step; });
    trainer.on(Stage::validation_end, [&](const StageContext&) { ++validations; });
    trainer.on(Stage::epoch_report,
               [&](const StageContext& at) { means.push_back(metric_of(*at.metrics, "epoch_number")); });
    DataLoader data(tiny_data(60), plan.loader, world);
    DataLoader validation(tiny_data(12), plan.eval_loader, world);
    trainer.fit(task, data, &validation);
    return std::pair{means, validations};
  };
  const CapturedStderr silent;
  EXPECT_EQ(run(10, 20, /*stops=*/true).second, 0) << "stopped after 7 steps, in the validation";
  const auto [means, validations] = run(5, 12, /*stops=*/false);
  EXPECT_THAT(means, ElementsAre(10)) << "of the steps 8 to 12";
  EXPECT_EQ(validations, 1) << "the one that was stopped";
}

TEST(Crossing, AFinishedRunIsFinishedThoughItsTimeIsOver) {
  const TempDir dir;
  const auto run = [&] {
    TrainConfig config = in_directory(in_memory({.max_epochs = 1, .global_batch_size = 12, .max_time_s = 0.05}), dir);
    BadSteps task({});
    return fit(config, task,
               [](Trainer& trainer) {
                 trainer.on(Stage::validation_end, [](const StageContext&) {
                   const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(60);
                   while (std::chrono::steady_clock::now() < until) {
                   }
                 });
               })
        .why;
  };
  const CapturedStderr silent;
  const std::string first = run();
  EXPECT_THAT(run(), HasSubstr("nothing to do: this run is finished")) << first;
}

TEST(Crossing, TheTimeOfTheRunDoesNotEndTheRangeTest) {
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 1, .global_batch_size = 12, .max_time_s = 1e-6});
  const Plan plan = plan_for(1, config);
  BadSteps task({});
  DataLoader data(tiny_data(60), plan.loader, world);
  EXPECT_EQ(find_lr(plan, world, task, data, {.steps = 20, .stop_factor = 0}).lrs.size(), 20U);
}

/// 30 samples. Four are not finite, or are their neighbours, by which a run with data.check_finite replaces them.
std::shared_ptr<Dataset> partly_bad_data(bool replaced) {
  at::Tensor input = at::sin(at::arange(120, at::kFloat) * 0.37).view({30, 4});
  at::Tensor target = input.sum(1, /*keepdim=*/true);
  for (const std::int64_t id : {25, 7, 6, 2}) {
    if (replaced) {
      input[id] = input[id + 1];
      target[id] = target[id + 1];
    } else {
      (id % 2 == 0 ? input : target)[id].fill_(std::nan(""));
    }
  }
  return tensor_dataset(input, target);
}

TEST(Crossing, SamplesThatAreNotFiniteAreReplacedAlikeInEveryRun) {
  const auto weights_after = [](int ranks, const std::vector<std::int64_t>& ends, bool replaced = false) {
    const TempDir dir;
    std::vector<at::Tensor> weights;
    for (const std::int64_t end : ends) {
      thread_world(ranks, [&](World& world) {
        TrainConfig config = in_directory(in_memory({.max_epochs = 0, .max_steps = end, .global_batch_size = 6}), dir);
        config.data.max_bad_samples = 4;
        config.data.check_finite = true;
        const Plan plan = plan_for(ranks, config);
        TinyTask task;
        DataLoader data(partly_bad_data(replaced), plan.loader, world);
        DataLoader validation(partly_bad_data(replaced), plan.eval_loader, world);
        const FitResult result = Trainer(plan, world).fit(task, data, &validation);
        EXPECT_TRUE(std::isfinite(value_of(result.metrics, "val_loss")) || end < 5) << "of whole epochs";
        if (world.is_main()) {
          weights = weights_of(task);
        }
      });
    }
    return weights;
  };
  CapturedStderr captured;
  const auto expected = weights_after(1, {13}, /*replaced=*/true);
  EXPECT_TRUE(are_equal(weights_after(1, {13}), expected));
  for (const int ranks : {2, 3, 4}) {
    const auto straight = weights_after(ranks, {13});
    EXPECT_TRUE(are_equal(weights_after(ranks, {3, 8, 13}), straight)) << ranks;
    for (std::size_t i = 0; i < straight.size(); ++i) {
      EXPECT_TRUE(at::allclose(straight[i], expected[i], 1e-5, 1e-6)) << ranks;
    }
  }
  EXPECT_THAT(captured.text(), HasSubstr("bad sample 25, replaced by the next one"));
}

/// By step: the digests of the samples of all ranks.
std::map<std::int64_t, std::uint64_t> sample_digests(int ranks, bool combined) {
  const TempDir dir;
  TrainConfig config = in_memory({.max_epochs = 1, .global_batch_size = 7, .run_dir = dir.path() / "run"});
  config.report.record = 1;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    const auto loader = [&](std::int64_t samples) { return DataLoader(tiny_data(samples), plan.loader, world); };
    DataLoader a = loader(22);
    DataLoader b = loader(13);
    DataLoader c = loader(40);
    CombinedLoader inner({borrowed(a), borrowed(b)}, CombineMode::max_size);
    CombinedLoader outer({borrowed(inner), borrowed(c)}, CombineMode::min_size);
    BatchSource& source = combined ? static_cast<BatchSource&>(outer) : a;
    TinyTask task;
    StepRecorder recorder(config, world);
    recorder.open(config.run_dir, 0, world);
    for (std::int64_t step = 1; step <= 6; ++step) {
      recorder.add({.step = step}, *source.next(), {}, task.module());
    }
    recorder.flush();
  });
  std::map<std::int64_t, std::uint64_t> sums;
  for (const auto& rank : read_run_records(real_file_system(), dir.path() / "run").ranks) {
    for (const auto& entry : rank.entries) {
      sums[entry.record.step] += entry.record.sample_digest.value();
    }
  }
  return sums;
}

TEST(Crossing, RecordsOfCombinedLoadersAreThoseOfAnyNumberOfRanks) {
  for (const bool combined : {false, true}) {
    const auto expected = sample_digests(1, combined);
    ASSERT_EQ(expected.size(), 6U);
    EXPECT_NE(expected.at(1), expected.at(2));
    for (const int ranks : {2, 3, 4}) {
      EXPECT_EQ(sample_digests(ranks, combined), expected) << ranks << " ranks, combined " << combined;
    }
  }
}

TEST(Crossing, ARunDirectoryThatWasMovedIsReportedOnce) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  config.checkpoint.every_epochs = 0;
  config.checkpoint.every_steps = 3;
  BadSteps task({});
  CapturedStderr captured;
  const auto add = [&](Trainer& trainer) {
    trainer.on(Stage::step_end, [&](const StageContext& at) {
      if (at.state.step == 4) {
        std::filesystem::rename(dir.path() / "run", dir.path() / "moved");
      }
    });
  };
  EXPECT_THAT(message_of<CheckpointError>([&] { fit(config, task, add); }), HasSubstr("was renamed or removed"));
  const std::string text = captured.text();
  EXPECT_THAT(text, Not(HasSubstr("was renamed or removed"))) << "the error says it";
  EXPECT_THAT(text, Not(HasSubstr("is saved in"))) << "not there";
}

TEST(Crossing, AWrongMetricOfTheValidationLosesNoStep) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  config.checkpoint.every_epochs = 0;
  const auto stop_by = [](const std::string& metric) {
    return [metric](Trainer& trainer) {
      trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.metric = metric, .patience = 100}));
    };
  };
  BadSteps task({});
  CapturedStderr captured;
  const auto error = error_of<ConfigError>([&] { fit(config, task, stop_by("val_los")); });
  EXPECT_THAT(error.what(), HasSubstr("EarlyStopping: found no metric val_los"));
  EXPECT_THAT(captured.text(), HasSubstr("step 5 is saved in"));
  const CapturedStderr silent;
  BadSteps resumed({});
  fit(config, resumed, stop_by("val_loss"));  // it does the validation first
  const TempDir straight_dir;
  BadSteps straight({});
  fit(in_directory(forty_steps(), straight_dir), straight, stop_by("val_loss"));
  EXPECT_TRUE(at::equal(resumed.module().parameters()[0], straight.module().parameters()[0]));
}

TEST(Crossing, TheFirstStepsOfAValidationShowAMonitorThatDoesNotExist) {
  TrainConfig config = in_memory({.max_epochs = 1, .global_batch_size = 12});
  config.early_stop = {.metric = "val_los", .patience = 20};
  config.plateau.metric = "val_accuracy";
  config.validate.sanity_steps = 1;
  BadSteps task({});
  const auto error = error_of<ConfigError>([&] { fit(config, task); });
  ASSERT_EQ(error.problems().size(), 2U);
  EXPECT_EQ(error.problems()[0].what, "--plateau.metric val_accuracy: found no such metric");
  EXPECT_EQ(error.problems()[1].what, "--early_stop.metric val_los: found no such metric");
  EXPECT_EQ(error.problems()[1].hint, "did you mean val_loss? use one of val_loss");
}

TEST(Crossing, ASmoothedMetricDoesNotCountTheReportOfAStop) {
  const auto last = [](const TempDir& dir, std::int64_t most) {
    TrainConfig config = in_directory(forty_steps(), dir);
    config.max_steps = most;
    config.report.every_steps = 10;
    BadSteps task({});
    return fit(config, task, [](Trainer& trainer) { trainer.add(std::make_shared<SmoothedMetric>("loss")); }).metrics;
  };
  const TempDir whole;
  const double straight = value_of(last(whole, 40), "loss_smoothed");
  const TempDir parts;
  last(parts, 15);
  EXPECT_EQ(value_of(last(parts, 40), "loss_smoothed"), straight);
}

TEST(Crossing, EarlyStoppingBelowTheMinimumKeepsItsReasonOverAResume) {
  const auto run = [](const TempDir& dir, std::int64_t stop) {
    TrainConfig config = in_directory(forty_steps(), dir);
    config.min_steps = 30;
    BadSteps task({});
    // The first report is good enough, the second one would not be.
    const auto stopping = std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.metric = "lr", .patience = 1, .stopping_threshold = 0.04});
    const FitResult result = fit(config, task, [&](Trainer& trainer) {
      trainer.add(stopping);
      trainer.on(Stage::step_end, [stop](const StageContext& at) {
        if (at.state.step == stop) {
          at.control.request_stop("the test", StopKind::terminate);
        }
      });
      trainer.on(Stage::report, [](const StageContext& at) {
        at.strategy->optimizer().torch_optimizer().param_groups().front().options().set_lr(at.state.step == 5 ? 0.01
                                                                                                              : 0.05);
      });
    });
    return std::pair(result.state.step, stopping->reason());
  };
  const TempDir whole;
  const auto straight = run(whole, 0);
  EXPECT_EQ(straight.first, 30);
  EXPECT_THAT(straight.second, HasSubstr("is better than 0.04"));
  const TempDir parts;
  EXPECT_EQ(run(parts, 17).first, 18);
  EXPECT_EQ(run(parts, 0), straight);
}

TEST(Crossing, EarlyStoppingBeginsAnewWithAnotherMetric) {
  const TempDir dir;
  const auto run = [&](std::int64_t most, const std::string& metric) {
    TrainConfig config = in_directory(forty_steps(), dir);
    config.max_steps = most;
    BadSteps task({});
    return fit(config, task,
               [&](Trainer& trainer) {
                 trainer.on(Stage::report, [](const StageContext& at) {
                   at.log("falls_from_9", 9 - 0.1 * static_cast<double>(at.state.step));
                 });
                 trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.metric = metric, .patience = 2}));
               })
        .stop;
  };
  EXPECT_EQ(run(10, "loss"), StopKind::none);
  EXPECT_EQ(run(40, "falls_from_9"), StopKind::none) << "9 is no improvement on a loss, but no loss was 9";
}

TEST(Crossing, WeightsOnlyOfAScheduleFreeOptimizerAreThoseThatItEvaluates) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  config.checkpoint.weights_only = true;
  BadSteps task({}, 1, schedule_free_adamw({.lr = 0.05}));
  fit(config, task);  // at its end the module has these weights
  const NamedTensors saved = load_tensors(dir.path() / "run" / "checkpoints" / "step-0000000040" / "model.safetensors");
  const auto expected = task.module().named_parameters();
  ASSERT_EQ(saved.size(), expected.size());
  for (const auto& [name, tensor] : saved) {
    EXPECT_TRUE(at::equal(tensor, expected[name])) << name;
  }
}

TEST(Crossing, AValidationInACallbackEvaluatesTheWeightsOfTheFitsOwnValidations) {
  for (const Stage stage :
       {Stage::validation_batch_start, Stage::validation_batch_end, Stage::validation_end, Stage::fit_end}) {
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .global_batch_size = 12}));
    BadSteps task({}, 1, schedule_free_adamw({.lr = 0.05}));
    DataLoader data(tiny_data(60), plan.loader, world);
    DataLoader validation(tiny_data(12), plan.eval_loader, world);
    DataLoader again(tiny_data(12), plan.eval_loader, world);
    Trainer trainer(plan, world);
    double nested = std::nan("");
    trainer.on(stage, [&](const StageContext&) { nested = value_of(trainer.validate(task, again), "loss"); });
    const FitResult result = trainer.fit(task, data, &validation);
    EXPECT_EQ(nested, value_of(result.metrics, "val_loss"));
    EXPECT_EQ(value_of(trainer.validate(task, again), "loss"), nested);
  }
}

TEST(Crossing, AFailureNamesTheSaveThatRanInTheBackground) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  config.checkpoint.async = true;
  config.checkpoint.every_steps = 9;
  BadSteps task({});
  CapturedStderr captured;
  const auto add = [](Trainer& trainer) {
    trainer.on(Stage::step_end, [](const StageContext& at) {
      if (at.state.step == 10) {
        throw std::runtime_error("no disk");
      }
    });
  };
  EXPECT_THROW(fit(config, task, add), std::runtime_error);
  EXPECT_THAT(captured.text(), HasSubstr("step 9 is saved in"));
}

TEST(Crossing, AFailureBeforeTheFirstSaveSaysThatNothingIsSaved) {
  const auto said = [](bool saves, std::int64_t fails_after) {
    const TempDir dir;
    TrainConfig config = in_directory(forty_steps(), dir);
    config.checkpoint.enabled = saves;
    BadSteps task({});
    CapturedStderr captured;
    const auto add = [&](Trainer& trainer) {
      trainer.on(fails_after == 0 ? Stage::fit_start : Stage::step_end, [&](const StageContext& at) {
        if (at.state.step == fails_after) {
          throw std::runtime_error("no disk");
        }
      });
    };
    EXPECT_THROW(fit(config, task, add), std::runtime_error);
    return captured.text();
  };
  EXPECT_THAT(said(true, 2), HasSubstr("run yet; the same command trains all steps again"));
  EXPECT_THAT(said(false, 2), Not(HasSubstr("is saved"))) << "nobody expects it";
  EXPECT_THAT(said(true, 0), Not(HasSubstr("is saved"))) << "no step is lost";
}

TEST(Crossing, FreshKeepsTheOldRunIfTheWeightsForTheNewOneAreMissingOrInIt) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  const CapturedStderr silent;
  BadSteps task({});
  fit(config, task);
  config.fresh = true;
  config.init_weights = (dir.path() / "missing").string();
  EXPECT_THAT(message_of([&] { fit(config, task); }), HasSubstr("missing: no such file or directory"));
  config.init_weights = (dir.path() / "run" / "checkpoints" / "last").string();
  EXPECT_THAT(message_of([&] { fit(config, task); }), HasSubstr("which --fresh renames first"));
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "run" / "checkpoints" / "step-0000000040"));
}

TEST(Crossing, TheRangeTestOfARunThatResumesDoesNotReadTheWeightsOfItsBeginning) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  World world = World::single(c10::kCPU);
  Plan plan = plan_for(1, config);
  BadSteps task({});
  DataLoader data(tiny_data(60), plan.loader, world);
  const CapturedStderr silent;
  fit(config, task);
  plan.config.init_weights = (dir.path() / "gone").string();
  EXPECT_EQ(find_lr(plan, world, task, data, {.min_lr = 1e-6, .max_lr = 1e-3, .steps = 5}).lrs.size(), 5U);
  plan.config.resume = "never";
  EXPECT_THAT(message_of([&] { find_lr(plan, world, task, data, {.steps = 5}); }), HasSubstr("no such file"));
}

/// Batch norm before the linear layer of TinyTask.
class NormalizedTask final : public TinyTask {
 public:
  NormalizedTask() { parts_->push_back(norm_), parts_->push_back(net_); }
  torch::nn::Module& module() override { return *parts_; }
  StepOutput training_step(const Batch& batch) override {
    return at::mse_loss(parts_->forward(batch.input), batch.target);
  }
  NamedTensors predict_step(const Batch& batch) override { return {{"y", parts_->forward(batch.input)}}; }

 private:
  torch::nn::BatchNorm1d norm_{4};
  torch::nn::Sequential parts_{};
};

TEST(Crossing, PredictionsUseTheStatisticsOfTheMainRankAndTheAverageAsATestDoes) {
  thread_world(2, [](World& world) {
    const Plan plan = plan_for(2, forty_steps());
    NormalizedTask task;
    Trainer trainer(plan, world);
    trainer.add(std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.9}));
    DataLoader data(tiny_data(60), plan.loader, world);
    DataLoader test(tiny_data(30), plan.eval_loader, world);
    trainer.fit(task, data);
    const NamedTensors predicted = trainer.predict(task, test);
    const double tested = value_of(trainer.test(task, test), "loss");
    if (world.is_main()) {
      const at::Tensor target = at::sin(at::arange(30 * 4, at::kFloat) * 0.37).view({30, 4}).sum(1, true);
      EXPECT_NEAR(at::mse_loss(predicted.at(1).second, target).item<double>(), tested, 1e-6);
    }
  });
}

TEST(Crossing, TheRangeTestIgnoresSchedulesOfGroupsAndTheMonitor) {
  TrainConfig config = forty_steps();
  config.checkpoint.monitor = "val_loss";
  OptimizerSpec optimizer = sgd({.lr = 0.05});
  optimizer.groups = {{.schedule = LrSchedule("cosine:for=10")}};
  BadSteps task({}, 1, optimizer);
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config);
  DataLoader data(tiny_data(60), plan.loader, world);
  const LrRange range = find_lr(plan, world, task, data, {.min_lr = 1e-6, .max_lr = 1e-2, .steps = 20});
  ASSERT_EQ(range.lrs.size(), 20U);
  EXPECT_NEAR(range.lrs.front(), 1e-6, 1e-12);
  EXPECT_NEAR(range.lrs.back(), 1e-2, 1e-8);
  EXPECT_TRUE(std::ranges::is_sorted(range.lrs));
}

TEST(Crossing, AStopBeforeTheFirstSaveIsContinuedFromTheOtherRun) {
  const TempDir first;
  const TempDir second;
  TrainConfig config = in_directory(in_memory({.max_epochs = 1, .batch_size = 12}), first);
  const CapturedStderr silent;
  StoppedValidation(0).fit(config);
  TrainConfig next = in_directory(config, second);
  next.max_epochs = 2;
  next.resume = config.run_dir;
  const auto stop = [](Trainer& trainer) { trainer.control().request_stop("the test", StopKind::terminate); };
  const std::string why = StoppedValidation(0).fit(next, stop).why;
  EXPECT_THAT(why, HasSubstr("stopped at step 5"));
  EXPECT_THAT(why, testing::EndsWith("the test; run the same command again to continue")) << "it has saved nothing";
}

TEST(Crossing, AFailureIsThatOfTheCallbackThatThrew) {
  const TempDir dir;
  const TrainConfig config = in_directory(in_memory({.max_epochs = 1, .batch_size = 12}), dir);
  TinyTask task;
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config);
  DataLoader data(tiny_data(60), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.on(Stage::step_end, [](const StageContext&) { throw std::runtime_error("trouble"); }, {.name = "guilty"});
  trainer.on(Stage::exception, [](const StageContext&) {}, {.name = "told"});
  trainer.add(std::make_shared<SmoothedMetric>("loss"));  // is saved
  const CapturedStderr silent;
  EXPECT_THROW(trainer.fit(task, data), std::runtime_error);
  const ProgressView place = view(WorldAccess::progress(world));
  EXPECT_EQ(place.phase, Phase::callback);
  EXPECT_THAT(std::string(callback_of(place)), HasSubstr("guilty"));
}

// As in the text of the end and in the metrics.
TEST(Crossing, EventsHaveTheEpochOfTheirStepFromOne) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);  // an epoch has 5 steps
  const auto run_until = [&](std::int64_t step) {
    config.max_steps = step;
    BadSteps task({});
    const std::string why = fit(config, task).why;
    const auto event = nlohmann::json::parse(read_lines(dir.path() / "run" / "events.jsonl").back());
    EXPECT_EQ(event["event"], "end");
    EXPECT_THAT(why, HasSubstr("epoch " + event["epoch"].dump()));
    return event["epoch"].get<int>();
  };
  EXPECT_EQ(run_until(3), 1);
  EXPECT_EQ(run_until(5), 1);
  EXPECT_EQ(run_until(7), 2);
  std::vector<int> resumed;
  for (const std::string& line : read_lines(dir.path() / "run" / "events.jsonl")) {
    if (const auto event = nlohmann::json::parse(line); event["event"] == "resume") {
      resumed.push_back(event["epoch"].get<int>());
    }
  }
  EXPECT_THAT(resumed, ElementsAre(1, 1)) << "of steps 3 and 5";
}

TEST(Crossing, AFailureOfTheOnlyRankIsAnEvent) {
  const TempDir dir;
  TrainConfig config = in_directory(forty_steps(), dir);
  BadSteps task({7});
  EXPECT_THAT(message_of([&] { fit(config, task); }), HasSubstr("is not finite"));
  const auto event = nlohmann::json::parse(read_lines(dir.path() / "run" / "events.jsonl").back());
  EXPECT_EQ(event["event"], "failure");
  EXPECT_THAT(event["what"].get<std::string>(), HasSubstr("the loss of step 7 is not finite"));
}

}  // namespace
}  // namespace lockstep
