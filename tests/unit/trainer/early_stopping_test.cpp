#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/trainer/callbacks.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The mean validation loss is scripted, by epoch. The rank's own loss falls on the first of several ranks and rises on
/// the last: they would decide at other times if each of them decided alone.
class Scripted final : public TinyTask {
 public:
  Scripted(std::vector<double> values, std::size_t first, const World& world)
      : TinyTask(sgd({.lr = 0.1})),
        values_(std::move(values)),
        next_(first),
        slope_(world.rank() - 0.5 * (world.size() - 1)) {}
  StepOutput validation_step(const Batch& batch) override {
    StepOutput out = TinyTask::validation_step(batch);
    out.loss = at::full({}, values_.at(next_) + slope_ * static_cast<double>(next_));
    ++next_;
    return out;
  }

 private:
  std::vector<double> values_;
  std::size_t next_;
  double slope_;
};

struct Ended {
  FitResult result{};
  std::string reason{};
};

/// Trains two steps per epoch. `first`: the epoch with which a resumed run continues.
Ended train(TrainConfig config, World& world, std::vector<double> losses, EarlyStoppingOptions options,
            std::size_t first = 0) {
  config.batch_size = 4 / world.size();
  const Plan plan = plan_for(world.size(), config);
  Scripted task(std::move(losses), first, world);
  const auto stopping = std::make_shared<EarlyStopping>(std::move(options));
  Trainer trainer(plan, world);
  trainer.add(stopping);
  DataLoader data(tiny_data(8), plan.loader, world);
  DataLoader validation(tiny_data(4), plan.eval_loader, world);
  Ended ended{.result = trainer.fit(task, data, &validation)};
  ended.reason = stopping->reason();
  return ended;
}

TEST(EarlyStopping, StopsAllRanksAtTheEndOfTheValidation) {
  for (const int ranks : {1, 2, 4}) {
    thread_world(ranks, [](World& world) {
      const Ended ended = train(in_memory({.max_epochs = 10}), world, {5, 4, 4.5, 4, 3, 3}, {.patience = 2});
      EXPECT_EQ(ended.reason, "val_loss did not improve on 4 in 2 measurements");
      EXPECT_EQ(ended.result.stop, StopKind::program);
      EXPECT_EQ(ended.result.state.step, 8);  // four epochs
      EXPECT_THAT(ended.result.why, HasSubstr(ended.reason));
    });
  }
}

// Only time makes those after odd steps. Their loss is by far the best.
TEST(EarlyStopping, DecidesNothingByValidationsByTime) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      TrainConfig config = in_memory({.max_epochs = 10});
      config.validate.every_s = 1e-9;
      const Ended ended = train(config, world, {1, 5, 1, 4, 1, 4.5, 1, 4, 1, 3}, {.patience = 2});
      EXPECT_EQ(ended.reason, "val_loss did not improve on 4 in 2 measurements");
      EXPECT_EQ(ended.result.state.step, 8);
    });
  }
}

TEST(EarlyStopping, WarnsIfTheTrainingEndsBeforeItsMetric) {
  World world = World::single(c10::kCPU);
  const auto printed = [&](std::int64_t max_steps) {
    CapturedStderr captured;
    train(in_memory({.max_epochs = 2, .max_steps = max_steps}), world, {5, 4}, {});
    return captured.text();
  };
  const std::string warning = "EarlyStopping: the training ended before val_loss was measured";
  EXPECT_THAT(printed(1), HasSubstr(warning));
  EXPECT_THAT(printed(0), testing::Not(HasSubstr(warning)));
}

TEST(EarlyStopping, WarnsIfItsMetricWasNeverFinite) {
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 2});
  config.optim.non_finite = NonFinitePolicy::skip;
  config.checkpoint.monitor = "val_loss";
  const auto printed = [&](const std::vector<double>& losses) {
    CapturedStderr captured;
    train(config, world, losses, {});
    return captured.text();
  };
  EXPECT_THAT(printed({kNan, kNan}), AllOf(HasSubstr("EarlyStopping: found no finite value of val_loss"),
                                           HasSubstr("--checkpoint.monitor: found no finite value of val_loss"),
                                           testing::Not(HasSubstr("was measured"))));
  EXPECT_THAT(printed({kNan, 4}),
              testing::Not(testing::AnyOf(HasSubstr("no finite value"), HasSubstr("was measured"))));
}

TEST(EarlyStopping, KnowsEveryReason) {
  struct Case {
    std::vector<double> losses;
    EarlyStoppingOptions options;
    std::string reason;
  };
  const std::vector<Case> cases{
      {{5, 4, 3, 2}, {.patience = 1}, ""},
      {{5, 4.95, 4.9, 4.85}, {.patience = 2, .min_delta = 0.1}, "val_loss did not improve on 5 in 2 measurements"},
      {{5, 5.1, 5.2, 5.3}, {.mode = MonitorMode::max, .patience = 1}, ""},
      {{5, 5, 5.2, 5.3}, {.mode = MonitorMode::max, .patience = 1}, "val_loss did not improve on 5 in 1 measurement"},
      {{5, kNan, 4, 3}, {.patience = 5}, "val_loss is nan"},
      {{5, kNan, 4, 3}, {.patience = 5, .check_finite = false}, ""},
      {{5, 0.5, 0.4, 3}, {.stopping_threshold = 0.5}, "val_loss 0.4 is better than 0.5"},
      {{5, 9.5, 4, 3}, {.divergence_threshold = 9}, "val_loss 9.5 is worse than 9"},
      {{5, 4, 3, 2},
       {.mode = MonitorMode::max, .patience = 9, .divergence_threshold = 3.5},
       "val_loss 3 is worse than 3.5"},
  };
  World world = World::single(c10::kCPU);
  for (const Case& c : cases) {
    const Ended ended = train(in_memory({.max_epochs = 4}), world, c.losses, c.options);
    EXPECT_EQ(ended.reason, c.reason);
    EXPECT_EQ(ended.result.stop, c.reason.empty() ? StopKind::none : StopKind::program);
  }
}

TEST(EarlyStopping, ContinuesAfterAResume) {
  const std::vector<double> losses{5, 4, 4, 4, 4, 4, 4, 4};
  for (const int ranks : {1, 2}) {
    for (const std::int64_t stop : {3, 4, 5, 6, 7}) {  // in the middle of an epoch too
      const TempDir dir;
      thread_world(ranks, [&](World& world) {
        TrainConfig config = in_memory({.max_epochs = 8});
        config.run_dir = (dir.path() / "run").string();
        config.checkpoint.enabled = true;
        config.max_steps = stop;
        train(config, world, losses, {.patience = 2});
        config.max_steps = 0;
        const Ended ended = train(config, world, losses, {.patience = 2}, static_cast<std::size_t>(stop) / 2);
        EXPECT_EQ(ended.result.state.step, 8) << stop;
      });
    }
  }
}

// The reports of steps 3, 6 and 9 count. Step 9 is the first one of an epoch.
TEST(EarlyStopping, EndsAfterTheStepWhoseReportDecidesAlsoIfTheRunWasStopped) {
  const std::vector<double> losses(8, 1);
  const EarlyStoppingOptions options{.metric = "loss", .patience = 2, .min_delta = 1000};
  for (const int ranks : {1, 2}) {
    for (const std::int64_t stop : {0, 3, 5, 6, 7, 8, 9, 10}) {
      const TempDir dir;
      thread_world(ranks, [&](World& world) {
        TrainConfig config = in_memory({.max_epochs = 8});
        config.run_dir = (dir.path() / "run").string();
        config.checkpoint.enabled = true;
        config.report.every_steps = 3;
        if (stop > 0) {
          config.max_steps = stop;
          train(config, world, losses, options);
          config.max_steps = 0;
        }
        const Ended ended = train(config, world, losses, options, static_cast<std::size_t>(stop) / 2);
        EXPECT_EQ(ended.result.state.step, 9) << "stopped after step " << stop;
        EXPECT_EQ(ended.result.stop, StopKind::program);
        EXPECT_THAT(ended.reason, HasSubstr("loss did not improve on "));
      });
    }
  }
}

// The validation of the first epoch gives no number, and the policies let the run go on.
TEST(EarlyStopping, AResumedRunDecidesNothingBeforeAMeasurement) {
  const EarlyStoppingOptions small{.patience = 9, .stopping_threshold = 0.1};
  const EarlyStoppingOptions large{.mode = MonitorMode::max, .patience = 9, .divergence_threshold = 0.1};
  World world = World::single(c10::kCPU);
  for (const NonFinitePolicy policy : {NonFinitePolicy::skip, NonFinitePolicy::rollback}) {
    for (const EarlyStoppingOptions& options : {small, large}) {
      const TempDir dir;
      TrainConfig config = in_memory({.max_epochs = 3});
      config.run_dir = (dir.path() / "run").string();
      config.checkpoint.enabled = true;
      config.optim.non_finite = policy;
      config.max_steps = 2;
      const std::vector<double> losses{kNan, 5, 4};
      train(config, world, losses, options);
      config.max_steps = 0;
      const Ended ended = train(config, world, losses, options, 1);
      EXPECT_EQ(ended.reason, "");
      EXPECT_EQ(ended.result.state.step, 6);
    }
  }
}

TEST(EarlyStopping, StaysStoppedUntilItsOptionsChange) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 8});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  const std::vector<double> losses{5, 4, 4, 4, 4, 4, 4, 4};
  EXPECT_EQ(train(config, world, losses, {.patience = 2}).result.state.step, 8);
  const Ended again = train(config, world, losses, {.patience = 2}, 4);
  EXPECT_EQ(again.result.state.step, 8);
  EXPECT_EQ(again.reason, "val_loss did not improve on 4 in 2 measurements");
  EXPECT_EQ(again.result.stop, StopKind::program);
  EXPECT_EQ(train(config, world, losses, {.patience = 4}, 4).result.state.step, 12);
}

TEST(EarlyStopping, BeginsAnewInAnotherTrainingOfTheSameTrainer) {
  TrainConfig config = in_memory({.max_epochs = 10, .batch_size = 4});
  config.report.every_steps = 2;
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config);
  TinyTask task;
  DataLoader data(tiny_data(8), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.on(Stage::report, [](const StageContext& at) { at.log("score", 1); });
  trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.metric = "score", .patience = 2}));
  const std::int64_t steps = trainer.fit(task, data).state.step;
  EXPECT_GT(steps, 4);
  EXPECT_LT(steps, 20);
  EXPECT_EQ(trainer.fit(task, data).state.step, steps);
}

TEST(EarlyStopping, NamesWhatIsWrong) {
  EXPECT_THAT(message_of([] { EarlyStopping({.metric = "", .patience = 0, .min_delta = -1}); }),
              AllOf(HasSubstr("metric is empty"), HasSubstr("patience is 0, expected 1 or more"),
                    HasSubstr("min_delta is -1, expected 0 or more")));
  World world = World::single(c10::kCPU);
  EXPECT_THAT(message_of([&] { train(in_memory({.max_epochs = 1}), world, {1}, {.metric = "val_acuracy"}); }),
              AllOf(HasSubstr("EarlyStopping: found no metric val_acuracy"),
                    HasSubstr("use one of val_loss; --validate.sanity_steps 1 finds this before the training")));
}

}  // namespace
}  // namespace lockstep
