// Early stopping and reduction on a plateau by settings: the same as by the callbacks of the program.
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/lr_range.h>

#include "support/at_stage.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TrainConfig short_config() {
  TrainConfig config = in_memory({.max_epochs = 8});
  config.global_batch_size = 4;
  return config;
}

struct Ended {
  FitResult result{};
  double lr = 0;
};

constexpr double kLr = 1e-6;  // so small that the loss stays, by its measure of an improvement

Ended train(const TrainConfig& config, World& world, const std::shared_ptr<Callback>& callback = nullptr) {
  const Plan plan = plan_for(world.size(), config);
  TinyTask task(sgd({.lr = kLr}));
  DataLoader data(tiny_data(8), plan.loader, world);
  DataLoader validation(tiny_data(4), plan.eval_loader, world);
  Trainer trainer(plan, world);
  if (callback != nullptr) {
    trainer.add(callback);
  }
  Ended ended;
  trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) { ended.lr = context.step.lr; }));
  ended.result = trainer.fit(task, data, &validation);
  return ended;
}

TEST(ConfiguredCallbacks, SeeWhatACallbackLogs) {
  World world = World::single(c10::kCPU);
  TrainConfig config = short_config();
  config.early_stop = {.metric = "val_mine", .patience = 1};
  config.plateau = {.metric = "val_mine"};
  const Plan plan = plan_for(1, config);
  TinyTask task;
  DataLoader data(tiny_data(8), plan.loader, world);
  DataLoader validation(tiny_data(4), plan.eval_loader, world);
  Trainer trainer(plan, world);
  trainer.on(Stage::validation_end, [](const StageContext& at) { at.log("mine", 1); });  // never improves
  EXPECT_LT(trainer.fit(task, data, &validation).state.epoch, 8);
}

TEST(ConfiguredCallbacks, SeeWhatACallbackLogsThatIsAddedAfterAFit) {
  World world = World::single(c10::kCPU);
  TrainConfig config = short_config();
  config.early_stop = {.metric = "val_mine", .patience = 1};
  const Plan plan = plan_for(1, config);
  TinyTask task;
  DataLoader data(tiny_data(8), plan.loader, world);
  DataLoader validation(tiny_data(4), plan.eval_loader, world);
  Trainer trainer(plan, world);
  bool is_second = false;
  trainer.on(Stage::validation_end, [&](const StageContext& at) {
    if (!is_second) {
      at.log("mine", 1);
    }
  });
  trainer.fit(task, data, &validation);
  is_second = true;
  trainer.on(Stage::validation_end, [](const StageContext& at) { at.log("mine", 1); });
  EXPECT_LT(trainer.fit(task, data, &validation).state.epoch, 8);
}

TEST(ConfiguredCallbacks, OfWhatNeverHappensOrIsSeldomMeantAreWarnings) {
  World world = World::single(c10::kCPU);
  const auto log_of = [&](const std::function<void(TrainConfig&)>& change) {
    TrainConfig config = in_memory({.max_epochs = 1});
    change(config);
    CapturedStderr captured;
    train(config, world);
    return captured.text();
  };
  EXPECT_THAT(log_of([](TrainConfig& c) {
                c.early_stop.metric = "val_loss";
                c.validate.every_epochs = 2;
              }),
              HasSubstr("--early_stop.metric val_loss: no validation will happen"));
  EXPECT_THAT(
      log_of([](TrainConfig& c) { c.early_stop = {.metric = "val_loss", .mode = MonitorMode::max}; }),
      HasSubstr("--early_stop.metric val_loss with --early_stop.mode max: the largest value counts as the best"));
  EXPECT_THAT(log_of([](TrainConfig& c) { c.early_stop.metric = "val_loss"; }), testing::Not(HasSubstr("warning")));
}

TEST(ConfiguredCallbacks, StopEarlyAtAThreshold) {
  World world = World::single(c10::kCPU);
  const auto end_of = [&](const EarlyStopConfig& stop) {
    TrainConfig config = short_config();
    config.early_stop = stop;
    return train(config, world).result;
  };
  const FitResult good = end_of({.metric = "val_loss", .patience = 100, .stopping_threshold = 1e9});
  EXPECT_EQ(good.state.epoch, 1);
  EXPECT_THAT(good.why, HasSubstr("is better than 1e+09"));
  const FitResult bad = end_of({.metric = "val_loss", .patience = 100, .divergence_threshold = -1});
  EXPECT_EQ(bad.state.epoch, 1);
  EXPECT_THAT(bad.why, HasSubstr("is worse than -1"));
  EXPECT_EQ(end_of({.metric = "val_loss", .patience = 100}).state.epoch, 8);
}

TEST(ConfiguredCallbacks, StopEarlyAsTheCallbackDoes) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      const Ended by_callback =
          train(short_config(), world,
                std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 2, .min_delta = 0.1}));
      TrainConfig config = short_config();
      config.early_stop = {.metric = "val_loss", .patience = 2, .min_delta = 0.1};
      const Ended by_setting = train(config, world);
      EXPECT_EQ(by_setting.result.stop, StopKind::program);
      EXPECT_EQ(by_setting.result.why, by_callback.result.why);
      EXPECT_LT(by_setting.result.state.step, train(short_config(), world).result.state.step);  // the control
    });
  }
}

TEST(ConfiguredCallbacks, ReduceLearningRatesAsTheCallbackDoes) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      const auto callback =
          std::make_shared<ReduceOnPlateau>(ReduceOnPlateauOptions{.factor = 0.5, .patience = 1, .cooldown = 1});
      TrainConfig config = short_config();
      config.plateau = {.metric = "val_loss", .factor = 0.5, .patience = 1, .cooldown = 1};
      EXPECT_EQ(train(config, world).lr, train(short_config(), world, callback).lr);
      EXPECT_LT(train(config, world).lr, kLr);
    });
  }
}

TEST(ConfiguredCallbacks, ContinueAfterAResume) {
  const auto train_to = [](World& world, const TempDir& dir, std::int64_t steps) {
    TrainConfig config = short_config();
    config.plateau = {.metric = "val_loss", .factor = 0.5, .patience = 1};
    config.early_stop = {.metric = "val_loss", .patience = 6, .min_delta = 0.1};
    config.run_dir = (dir.path() / "run").string();
    config.checkpoint.enabled = true;
    config.max_steps = steps;
    return train(config, world);
  };
  World world = World::single(c10::kCPU);
  const TempDir straight;
  const Ended expected = train_to(world, straight, 0);
  for (const std::int64_t stop : {3, 8, 9}) {
    const TempDir dir;
    train_to(world, dir, stop);
    const Ended found = train_to(world, dir, 0);
    EXPECT_EQ(found.lr, expected.lr) << stop;
    EXPECT_EQ(found.result.state.step, expected.result.state.step) << stop;
  }
}

TEST(ConfiguredCallbacks, NeedTheDataOfTheirMetric) {
  World world = World::single(c10::kCPU);
  TrainConfig config = short_config();
  config.early_stop.metric = "val_loss";
  config.plateau.metric = "val_accuracy";
  const Plan plan = plan_for(1, config);
  TinyTask task;
  DataLoader data(tiny_data(8), plan.loader, world);
  EXPECT_THAT(message_of<ConfigError>([&] { Trainer(plan, world).fit(task, data); }),
              AllOf(HasSubstr("--early_stop.metric val_loss: found no validation data"),
                    HasSubstr("--plateau.metric val_accuracy: found no validation data")));
}

TEST(ConfiguredCallbacks, StandBesideNoSecondOneOfTheProgram) {
  World world = World::single(c10::kCPU);
  TrainConfig config = short_config();
  config.early_stop.metric = "loss";
  EXPECT_THAT(message_of<ConfigError>([&] { train(config, world, std::make_shared<EarlyStopping>()); }),
              HasSubstr("two callbacks have the name 'early_stopping'"));
}

TEST(ConfiguredCallbacks, AreNotPartOfARangeTest) {
  World world = World::single(c10::kCPU);
  TrainConfig config = short_config();
  config.early_stop.metric = "val_loss";
  config.plateau.metric = "val_loss";
  const Plan plan = plan_for(1, config);
  TinyTask task;
  DataLoader data(tiny_data(8), plan.loader, world);
  EXPECT_FALSE(find_lr(plan, world, task, data, {.steps = 5}).lrs.empty());
}

}  // namespace
}  // namespace lockstep
