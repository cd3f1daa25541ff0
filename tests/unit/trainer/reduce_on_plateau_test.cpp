#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <lockstep/trainer/callbacks.h>

#include "support/at_stage.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The mean validation loss is scripted, by epoch. The rank's own loss falls on the first of several ranks and rises on
/// the last: they would decide at other times if each of them decided alone.
class Scripted final : public TinyTask {
 public:
  explicit Scripted(const World& world) : TinyTask(sgd({.lr = 0.1})), slope_(world.rank() - 0.5 * (world.size() - 1)) {}
  StepOutput validation_step(const Batch& batch) override {
    StepOutput out = TinyTask::validation_step(batch);
    out.loss = at::full({}, values_.at(next_) + slope_ * static_cast<double>(next_));
    ++next_;
    return out;
  }
  void start_at(std::size_t epoch) { next_ = epoch; }

 private:
  std::vector<double> values_{5, 4, 4, 4, 4, 3, 3, 3, 3, 3};
  std::size_t next_ = 0;
  double slope_;
};

std::vector<double> rates(TrainConfig config, World& world, ReduceOnPlateauOptions options, std::size_t from = 0) {
  config.batch_size = 4;
  const Plan plan = plan_for(world.size(), config);
  Scripted task(world);
  task.start_at(from);
  std::vector<double> found;
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<ReduceOnPlateau>(std::move(options)));
  trainer.add(at_stage(Stage::epoch_end, [&](const StageContext& context) { found.push_back(context.step.lr); }));
  DataLoader data(tiny_data(8), plan.loader, world);
  DataLoader validation(tiny_data(4), plan.eval_loader, world);
  trainer.fit(task, data, &validation);
  return found;
}

// The values of torch.optim.lr_scheduler.ReduceLROnPlateau(factor=0.5, patience=1, cooldown=1) for these losses.
TEST(ReduceOnPlateau, ReducesTheRatesAsTorchDoes) {
  for (const int ranks : {1, 2, 4}) {
    thread_world(ranks, [](World& world) {
      const TrainConfig config = in_memory({.max_epochs = 10});
      EXPECT_THAT(rates(config, world, {.factor = 0.5, .patience = 1, .cooldown = 1}),
                  ElementsAre(0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.025, 0.025));
      EXPECT_THAT(rates(config, world, {.factor = 0.5, .patience = 0, .min_lr = 0.04}),
                  ElementsAre(0.1, 0.1, 0.1, 0.05, 0.04, 0.04, 0.04, 0.04, 0.04, 0.04));
      EXPECT_THAT(rates(config, world, {.mode = MonitorMode::max, .factor = 0.5, .patience = 8}),
                  ElementsAre(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1));
    });
  }
}

TEST(ReduceOnPlateau, SaysOnlyWhatItHasReduced) {
  World world = World::single(c10::kCPU);
  CapturedStderr captured;
  rates(in_memory({.max_epochs = 10}), world, {.factor = 0.5, .patience = 0, .min_lr = 0.04});
  const std::string text = captured.text();
  std::vector<std::string> told;
  const std::string begin = "the learning rate is ";
  for (auto at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    told.push_back(text.substr(at + begin.size(), text.find(" now", at) - at - begin.size()));
  }
  EXPECT_THAT(told, ElementsAre("0.05", "0.04"));
}

TEST(ReduceOnPlateau, IsMultipliedWithTheSchedule) {
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 10});
  config.optim.schedule = "step:8ep,factor=0.5";
  const auto found = rates(config, world, {.factor = 0.5, .patience = 1, .cooldown = 1});
  EXPECT_THAT(found, ElementsAre(0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.0125, 0.0125));
}

TEST(ReduceOnPlateau, AlsoReducesRatesThatAreZeroNow) {
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 4});
  config.optim.schedule = "constant:factor=0,for=3ep+constant";
  EXPECT_THAT(rates(config, world, {.factor = 0.5, .patience = 0}), ElementsAre(0, 0, 0, 0.05));
  const TempDir dir;
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  config.max_epochs = 3;
  EXPECT_THAT(rates(config, world, {.factor = 0.5, .patience = 0}), ElementsAre(0, 0, 0));
  config.max_epochs = 4;
  EXPECT_THAT(rates(config, world, {.factor = 0.5, .patience = 0}, 3), ElementsAre(0.05)) << "resumed";
}

TEST(ReduceOnPlateau, ContinuesAfterAResume) {
  World world = World::single(c10::kCPU);
  const TempDir dir;
  TrainConfig config = in_memory({.max_epochs = 10});
  const auto straight = rates(config, world, {.factor = 0.5, .patience = 1});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  config.max_epochs = 3;  // one measurement without an improvement is counted
  auto found = rates(config, world, {.factor = 0.5, .patience = 1});
  config.max_epochs = 10;
  const auto rest = rates(config, world, {.factor = 0.5, .patience = 1}, 3);
  found.insert(found.end(), rest.begin(), rest.end());
  EXPECT_EQ(found, straight);
}

TEST(ReduceOnPlateau, BeginsAnewInAnotherTrainingOfTheSameTrainer) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 3, .batch_size = 4}));
  Scripted task(world);
  DataLoader data(tiny_data(8), plan.loader, world);
  DataLoader validation(tiny_data(4), plan.eval_loader, world);
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<ReduceOnPlateau>(ReduceOnPlateauOptions{.patience = 0}));
  double lr = 0;
  trainer.on(Stage::epoch_end, [&](const StageContext& at) { lr = at.step.lr; });
  task.start_at(5);  // 3, 3, 3
  trainer.fit(task, data, &validation);
  EXPECT_LT(lr, 0.1);
  task.start_at(0);  // 5, 4, 4
  trainer.fit(task, data, &validation);
  EXPECT_EQ(lr, 0.1);
}

TEST(ReduceOnPlateau, GoesOnWithoutAMetricThatIsMissingNowAndThen) {
  World world = World::single(c10::kCPU);
  TinyTask task(sgd({.lr = 0.1}));
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1}));
  ReduceOnPlateau plateau({.metric = "loss", .factor = 0.5, .patience = 0});
  EXPECT_TRUE(plateau.save().empty());
  Trainer trainer(plan, world);
  trainer.add(at_stage(Stage::fit_start, [&](const StageContext& start) {
    const auto report = [&](const Metrics& metrics) {
      StageContext context = start;
      context.stage = Stage::report;
      context.metrics = &metrics;
      plateau.on(context);
      return start.strategy->optimizer().lr();
    };
    EXPECT_THROW(report({{"lr", 0.1}}), ConfigError);
    EXPECT_EQ(report({{"loss", 2}}), 0.1);
    EXPECT_EQ(report({{"lr", 0.1}}), 0.1);
    EXPECT_EQ(report({{"loss", 2}}), 0.05);
  }));
  DataLoader data(tiny_data(8), plan.loader, world);
  trainer.fit(task, data);
}

TEST(ReduceOnPlateau, NamesWhatIsWrong) {
  World world = World::single(c10::kCPU);
  const auto error = error_of<ConfigError>([&] { ReduceOnPlateau({.factor = 1, .patience = -1}); });
  EXPECT_THAT(error.what(), HasSubstr("factor is 1, expected a number between 0 and 1"));
  EXPECT_THAT(error.what(), HasSubstr("patience is -1, expected 0 or more"));
  const auto unknown =
      error_of<ConfigError>([&] { rates(in_memory({.max_epochs = 1}), world, {.metric = "val_lost"}); });
  EXPECT_THAT(unknown.what(), HasSubstr("found no metric val_lost"));
  EXPECT_THAT(unknown.hint(), HasSubstr("val_loss"));
}

}  // namespace
}  // namespace lockstep
