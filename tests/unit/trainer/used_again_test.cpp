// Loaders, callbacks and trainers that a program has used before.
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/lr_range.h>
#include <lockstep/trainer/monitors.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

/// Counts the samples of its validations.
class CountingValidation final : public TinyTask {
 public:
  StepOutput validation_step(const Batch& batch) override {
    samples += batch.samples;
    if (samples > fails_after) {
      throw std::runtime_error("no validation");
    }
    return training_step(batch);
  }
  NamedTensors predict_step(const Batch& batch) override { return {{"y", net_(batch.input)}}; }

  std::int64_t samples = 0;
  std::int64_t fails_after = 1000;
};

TEST(UsedAgain, ALoaderThatGaveAStepIsValidatedAndPredictedAsAWhole) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4}));
      CountingValidation task;
      DataLoader data(tiny_data(32), plan.eval_loader, world);
      data.next();
      const LoaderPosition before = data.position();
      Trainer trainer(plan, world);
      trainer.validate(task, data);
      EXPECT_EQ(task.samples, 32 / ranks);
      EXPECT_EQ(data.position(), before);
      const NamedTensors predicted = trainer.predict(task, data);
      if (world.is_main()) {
        EXPECT_EQ(tensor_of(predicted, "y").size(0), 32);
      }
    });
  }
}

TEST(UsedAgain, ALoaderWhoseValidationFailedIsValidatedAsAWhole) {
  World world = World::single(at::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .batch_size = 4}));
  CountingValidation task;
  DataLoader data(tiny_data(32), plan.eval_loader, world);
  Trainer trainer(plan, world);
  task.fails_after = 12;
  EXPECT_THROW(trainer.validate(task, data), std::runtime_error);
  task = {};
  trainer.validate(task, data);
  EXPECT_EQ(task.samples, 32);
}

TEST(UsedAgain, ALoaderWhoseDataWasAwayInItsFirstStepIsValidatedAsAWhole) {
  World world = World::single(at::kCPU);
  for (const int workers : {0, 2}) {
    TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 4});
    config.data.workers = workers;
    const Plan plan = plan_for(1, config);
    std::atomic<bool> is_away = true;
    const auto samples = tiny_data(32);
    const auto get = [&](std::int64_t id, std::uint64_t) {
      if (is_away && id == 0) {
        throw IoError("Stale file handle");
      }
      const Batch sample = samples->get(std::vector<std::int64_t>{id}, {});
      return Batch{.input = sample.input[0], .target = sample.target[0]};
    };
    CountingValidation task;
    DataLoader data(sample_dataset(32, get), plan.eval_loader, world);
    Trainer trainer(plan, world);
    EXPECT_THROW(trainer.validate(task, data), DataError);
    EXPECT_THROW(trainer.validate(task, data), DataError) << "it is still away";
    EXPECT_EQ(task.samples, 0);
    is_away = false;
    trainer.validate(task, data);
    EXPECT_EQ(task.samples, 32);
  }
}

TEST(UsedAgain, ALoaderWhosePredictionWasStoppedIsPredictedAsAWhole) {
  const TempDir dir;
  World world = World::single(at::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .batch_size = 4}));
  CountingValidation task;
  DataLoader data(tiny_data(32), plan.eval_loader, world);
  const LoaderPosition before = data.position();
  {
    Trainer stopped(plan, world);
    stopped.on(Stage::predict_batch_end, [](const StageContext& context) {
      if (context.batch_number == 3) {
        context.control.request_stop("enough");
      }
    });
    EXPECT_THROW(stopped.predict(task, data, dir.path() / "a", 2), std::exception);
  }
  EXPECT_EQ(data.position(), before);
  Trainer trainer(plan, world);
  for (const char* name : {"b", "a"}) {  // anew, and continued
    trainer.predict(task, data, dir.path() / name, 2);
    EXPECT_EQ(tensor_of(load_predictions(dir.path() / name), "y").size(0), 32) << name;
    EXPECT_EQ(data.position(), before);
  }
}

TEST(UsedAgain, AFitAfterAFailedOneHasWholeEpochs) {
  class FailsOnce final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      if (++steps == 6) {
        throw std::runtime_error("once");
      }
      return TinyTask::training_step(batch);
    }
    int steps = 0;
  };
  World world = World::single(at::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 3, .batch_size = 4}));
  FailsOnce task;
  DataLoader data(tiny_data(64), plan.loader, world);
  Trainer trainer(plan, world);
  EXPECT_THROW(trainer.fit(task, data), std::runtime_error);
  const FitResult result = trainer.fit(task, data);
  EXPECT_EQ(result.state.step, 48);
  EXPECT_EQ(result.state.samples, 192);
}

// The validation after step 5 is done again, and compared with what was known after step 3.
TEST(UsedAgain, AFitThatResumesAfterAFailureHasTheCallbacksOfTheCheckpoint) {
  class FailsOnce final : public TinyTask {
   public:
    FailsOnce() : TinyTask(sgd({.lr = 0.01})) {}
    StepOutput training_step(const Batch& batch) override {
      if (++steps == 6) {
        throw std::runtime_error("once");
      }
      return TinyTask::training_step(batch);
    }
    StepOutput validation_step(const Batch& batch) override { return TinyTask::training_step(batch); }
    int steps = 0;
  };
  const TempDir dir;
  TrainConfig config = in_memory({.max_epochs = 3, .batch_size = 4});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  config.checkpoint.every_steps = 3;
  config.checkpoint.every_epochs = 0;
  const Plan plan = plan_for(1, config);
  World world = World::single(at::kCPU);
  FailsOnce task;
  DataLoader data(tiny_data(20), plan.loader, world);
  DataLoader validation(tiny_data(20), plan.eval_loader, world);
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.metric = "val_loss", .patience = 1}));
  EXPECT_THROW(trainer.fit(task, data, &validation), std::runtime_error);
  const FitResult result = trainer.fit(task, data, &validation);
  EXPECT_EQ(result.stop, StopKind::none) << result.why;
  EXPECT_EQ(result.state.step, 15);
}

// As in a cross-validation with one callback for all folds.
TEST(UsedAgain, CallbacksBeginEachTrainingAnew) {
  struct Outcome {
    at::Tensor average{};
    double smoothed = 0;
  };
  const auto train = [](const std::shared_ptr<WeightAverage>& average, const std::shared_ptr<SmoothedMetric>& smoothed,
                        double shift) {
    TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 8});
    config.report.every_steps = 1;
    Session session = Session::single(config);
    TinyTask task;
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : task.module().parameters()) {
        parameter.add_(shift);
      }
    }
    DataLoader data(tiny_data(32), session.plan.loader, session.world);
    const FitResult result = Trainer(session).add(average).add(smoothed).fit(task, data);
    return Outcome{average->average().front().second.clone(), metric_of(result.metrics, "loss_smoothed")};
  };
  const auto make_average = [] { return std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.9}); };
  const auto average = make_average();
  const auto smoothed = std::make_shared<SmoothedMetric>("loss", 0.98);
  const Outcome first = train(average, smoothed, /*shift=*/10);
  const Outcome second = train(average, smoothed, /*shift=*/0);
  const Outcome expected = train(make_average(), std::make_shared<SmoothedMetric>("loss", 0.98), /*shift=*/0);
  EXPECT_TRUE(at::equal(second.average, expected.average));
  EXPECT_EQ(second.smoothed, expected.smoothed);
  EXPECT_NE(first.smoothed, second.smoothed);
}

TEST(UsedAgain, ATrainerWhoseFirstFitFailedBeginsWithTheGivenWeights) {
  const TempDir dir;
  const std::string weights = (dir.path() / "weights.safetensors").string();
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 1, .batch_size = 4});
  config.init_weights = weights;
  Session session = Session::single(config);
  Trainer trainer(session);
  TinyTask task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_THROW(trainer.fit(task, data), Error) << "there is no such file yet";
  TinyTask other;
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : other.module().parameters()) {
      parameter.fill_(7);
    }
  }
  save_tensors(weights, module_tensors(other.module()));
  double at_start = 0;
  trainer.on(Stage::fit_start, [&](const StageContext& context) {
    at_start = context.module.parameters().front().mean().item<double>();
  });
  trainer.fit(task, data);
  EXPECT_EQ(at_start, 7);
}

TEST(UsedAgain, AModelWhoseRangeTestFailedIsAsBefore) {
  class FailsLate final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      if (++steps == 6) {
        throw std::runtime_error("late");
      }
      return TinyTask::training_step(batch);
    }
    int steps = 0;
  };
  World world = World::single(at::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .batch_size = 4}));
  FailsLate task;
  const at::Tensor random = rng_state(at::kCPU);
  DataLoader data(tiny_data(64), plan.loader, world);
  EXPECT_THROW(find_lr(plan, world, task, data, {.min_lr = 0.01, .max_lr = 0.1, .steps = 20}), std::runtime_error);
  EXPECT_TRUE(at::equal(rng_state(at::kCPU), random));
  EXPECT_TRUE(are_equal(weights_of(task), weights_of(*std::make_unique<TinyTask>())));
}

// Otherwise every model after the first one begins with the same weights, as each training has the same seed.
TEST(UsedAgain, AFitPutsTheRandomNumbersBack) {
  class Drops final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      drawn = at::rand({});
      if (fails) {
        throw std::runtime_error("no step");
      }
      return TinyTask::training_step(batch);
    }
    at::Tensor drawn{};
    bool fails = false;
  };
  World world = World::single(at::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .batch_size = 4}));
  for (const bool fails : {false, true}) {
    Drops task;
    task.fails = fails;
    DataLoader data(tiny_data(8), plan.loader, world);
    const at::Tensor random = rng_state(at::kCPU);
    if (fails) {
      EXPECT_THROW(Trainer(plan, world).fit(task, data), std::runtime_error);
    } else {
      Trainer(plan, world).fit(task, data);
    }
    EXPECT_TRUE(task.drawn.defined());
    EXPECT_TRUE(at::equal(rng_state(at::kCPU), random)) << fails;
  }
}

TEST(UsedAgain, MetricsAreFoundByTheirNames) {
  const Metrics metrics{{"loss", 2}, {"accuracy", 0.5}};
  EXPECT_EQ(metric_of(metrics, "accuracy"), 0.5);
  EXPECT_THAT(message_of<Error>([&] { static_cast<void>(metric_of(metrics, "acuracy")); }), HasSubstr("accuracy"));
}

TEST(UsedAgain, ANullCallbackIsRefused) {
  Session session = Session::single(in_memory({.max_epochs = 1}));
  Trainer trainer(session);
  EXPECT_THAT(message_of<ConfigError>([&] { trainer.add(nullptr); }), HasSubstr("null pointer"));
}

/// Has a buffer without values.
class MetaBuffer final : public TinyTask {
 public:
  MetaBuffer() { net_->register_buffer("table", at::empty({2}, at::kMeta)); }
};

TEST(UsedAgain, ABufferWithoutValuesIsRefused) {
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 4}));
  MetaBuffer task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_THAT(message_of<ConfigError>([&] { Trainer(session).fit(task, data); }),
              HasSubstr("table is on the device meta"));
}

}  // namespace
}  // namespace lockstep
