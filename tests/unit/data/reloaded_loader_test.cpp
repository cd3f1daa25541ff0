#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/data/reloaded_loader.h>
#include <lockstep/world/world.h>

#include "data/epoch_begin.h"
#include "support/borrowed.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t kBatch = 6;

/// Rows 1000 e, 1000 e + 1, ... for the loader of epoch e; the loaders have different lengths.
std::unique_ptr<BatchSource> loader_of(std::int64_t epoch, World& world, std::int64_t batch = kBatch) {
  const std::int64_t first = 1000 * epoch;
  const LoaderPlan plan{
      .batch = {.batch_size = std::max<std::int64_t>(1, batch / world.size()), .global_batch_size = batch},
      .data = {.workers = static_cast<int>(epoch % 2)}};
  return std::make_unique<DataLoader>(tensor_dataset(at::arange(first, first + 13 + 7 * (epoch % 3))), plan, world);
}

ReloadedLoader reloaded(World& world, std::int64_t every_epochs, std::int64_t batch = kBatch) {
  return ReloadedLoader([&world, batch](std::int64_t epoch) { return loader_of(epoch, world, batch); }, world,
                        every_epochs);
}

/// A step of all ranks.
struct Step {
  std::vector<std::int64_t> rows{};
  std::int64_t epoch = 0;
  bool ends_epoch = false;
  bool operator==(const Step&) const = default;
};

Step take(BatchSource& source, World& world) {
  const StepBatches& step = *source.next();
  std::string mine;
  for (const Batch& batch : step.micro) {
    for (std::int64_t i = 0; i < batch.samples; ++i) {
      mine += fmt::format("{} ", batch.input[i].item<std::int64_t>());
    }
  }
  Step result{.epoch = step.epoch, .ends_epoch = step.ends_epoch};
  for (const std::string& of_rank : world.gather(mine)) {
    std::istringstream words(of_rank);
    for (std::int64_t row = 0; words >> row;) {
      result.rows.push_back(row);
    }
  }
  EXPECT_EQ(step.global_samples, std::ssize(result.rows));
  return result;
}

TEST(ReloadedLoader, GivesTheStepsOfSeparatelyMadeLoaders) {
  World world = World::single(c10::kCPU);
  for (const std::int64_t every : {1, 2, 3}) {
    std::vector<std::int64_t> made;
    ReloadedLoader loader(
        [&](std::int64_t epoch) {
          made.push_back(epoch);
          return loader_of(epoch, world);
        },
        world, every);
    for (std::int64_t epoch = 0; epoch < 7; ++epoch) {
      const auto alone = loader_of(epoch - epoch % every, world);
      alone->seek({.epoch = epoch});
      for (bool ends = false; !ends;) {
        const Step step = take(loader, world);
        ASSERT_EQ(step, take(*alone, world)) << "every " << every << ", epoch " << epoch;
        EXPECT_EQ(loader.steps_per_epoch(), alone->steps_per_epoch());
        ends = step.ends_epoch;
      }
    }
    std::vector<std::int64_t> expected;
    for (std::int64_t epoch = 0; epoch < 7; epoch += every) {
      expected.push_back(epoch);
    }
    EXPECT_EQ(made, expected) << "every " << every;
  }
}

TEST(ReloadedLoader, ShufflesEveryEpochInAnotherWay) {
  World world = World::single(c10::kCPU);
  ReloadedLoader loader([&](std::int64_t) { return loader_of(0, world); }, world);
  const Step first = take(loader, world);
  loader.seek({.epoch = 1});
  EXPECT_NE(take(loader, world).rows, first.rows);
  loader.seek({});
  EXPECT_EQ(take(loader, world), first) << "the control";
}

TEST(ReloadedLoader, ContinuesAtEveryStepWithAnyNumberOfRanks) {
  constexpr std::size_t kSteps = 24;
  for (const std::int64_t every : {1, 2}) {
    std::vector<Step> steps;
    std::vector<LoaderPosition> positions;
    World world = World::single(c10::kCPU);
    ReloadedLoader straight = reloaded(world, every);
    for (std::size_t i = 0; i < kSteps; ++i) {
      positions.push_back(straight.position());
      steps.push_back(take(straight, world));
    }
    for (const int ranks : {1, 2, 3}) {
      thread_world(ranks, [&](World& ours) {
        for (std::size_t start = 0; start < kSteps; ++start) {
          ReloadedLoader resumed = reloaded(ours, every);
          resumed.seek(positions[start]);
          EXPECT_EQ(resumed.position().epoch, positions[start].epoch);
          EXPECT_EQ(resumed.position().consumed, positions[start].consumed);
          for (std::size_t i = start; i < std::min(kSteps, start + 6); ++i) {
            ASSERT_EQ(take(resumed, ours), steps[i]) << ranks << " ranks, every " << every << ", from " << start;
          }
        }
      });
    }
  }
}

// As a single loader does; the plan of the program may have another one with another number of ranks.
TEST(ReloadedLoader, KeepsTheGlobalBatchOfTheCheckpointInLaterLoaders) {
  World world = World::single(c10::kCPU);
  ReloadedLoader straight = reloaded(world, 1);
  take(straight, world);
  ReloadedLoader resumed = reloaded(world, 1, /*batch=*/4);
  resumed.seek(straight.position());
  for (int step = 0; step < 12; ++step) {
    ASSERT_EQ(take(resumed, world), take(straight, world)) << "step " << step;
  }
  ReloadedLoader other = reloaded(world, 1, /*batch=*/4);
  EXPECT_EQ(std::ssize(take(other, world).rows), 4) << "the control";
}

TEST(ReloadedLoader, GoesBack) {
  World world = World::single(c10::kCPU);
  ReloadedLoader loader = reloaded(world, 2);
  const Step very_first = take(loader, world);
  loader.seek({.epoch = 3});
  const Step first = take(loader, world);
  take(loader, world);
  const LoaderPosition inside = loader.position();
  EXPECT_EQ(seek_epoch_begin(loader), inside);
  EXPECT_EQ(take(loader, world), first);
  loader.seek({});
  EXPECT_EQ(take(loader, world), very_first) << "of an earlier loader";
}

TEST(ReloadedLoader, MayReloadCombinedLoaders) {
  World world = World::single(c10::kCPU);
  const auto make = [&](std::int64_t epoch) {
    std::vector<std::shared_ptr<BatchSource>> both{loader_of(epoch, world), loader_of(epoch + 1, world)};
    return std::make_unique<CombinedLoader>(std::move(both), CombineMode::max_size_cycle);
  };
  ReloadedLoader straight(make, world, 2);
  EXPECT_TRUE(straight.is_combined()) << "a prediction keeps the loaders apart";
  std::vector<LoaderPosition> positions;
  std::vector<Step> steps;
  for (int i = 0; i < 20; ++i) {
    positions.push_back(straight.position());
    steps.push_back(take(straight, world));
  }
  for (std::size_t start = 0; start < steps.size(); ++start) {
    ReloadedLoader resumed(make, world, 2);
    resumed.seek(positions[start]);
    for (std::size_t i = start; i < std::min(steps.size(), start + 6); ++i) {
      ASSERT_EQ(take(resumed, world), steps[i]) << "from " << start;
    }
  }
}

TEST(ReloadedLoader, TriesAgainAfterAFailureOfTheFunction) {
  World world = World::single(c10::kCPU);
  bool broken = false;
  ReloadedLoader loader(
      [&](std::int64_t epoch) {
        if (broken) {
          throw std::runtime_error("the disk is away");
        }
        return loader_of(epoch, world);
      },
      world);
  while (!take(loader, world).ends_epoch) {
  }
  const LoaderPosition position = loader.position();
  broken = true;
  EXPECT_EQ(message_of<std::runtime_error>([&] { loader.next(); }), "the disk is away");
  EXPECT_EQ(loader.position(), position);
  broken = false;
  const auto alone = loader_of(1, world);
  alone->seek({.epoch = 1});
  EXPECT_EQ(take(loader, world), take(*alone, world));
}

TEST(ReloadedLoader, RefusesWhatItCannotUse) {
  World world = World::single(c10::kCPU);
  const auto make = [&](std::int64_t epoch) { return epoch == 0 ? loader_of(epoch, world) : nullptr; };
  EXPECT_THAT(message_of<DataError>([&] { ReloadedLoader([](std::int64_t) { return nullptr; }, world); }),
              StartsWith("ReloadedLoader: the function returned null for epoch 0"));
  ReloadedLoader loader(make, world);
  EXPECT_THAT(message_of<DataError>([&] { loader.seek({.epoch = 4}); }),
              StartsWith("ReloadedLoader: the function returned null for epoch 4"));
  EXPECT_EQ(loader.position().epoch, 0) << "it is where it was";
  EXPECT_THAT(message_of<ConfigError>([&] { ReloadedLoader(make, world, 0); }),
              HasSubstr("every_epochs is 0, expected 1 or"));
  EXPECT_THAT(message_of<ConfigError>([&] { ReloadedLoader({}, world); }), HasSubstr("the function is missing"));
  EXPECT_THROW(loader.seek({.epoch = -1}), CheckpointError);
  EXPECT_THROW(loader.seek({.consumed = 6, .dataset_size = 99}), CheckpointError) << "of other data";
}

// It may take longer than a step.
TEST(ReloadedLoader, CallsTheFunctionAsACallback) {
  thread_world(2, [](World& world) {
    const ProgressRecord& record = WorldAccess::progress(world);
    std::vector<std::string> during;
    ReloadedLoader loader(
        [&](std::int64_t epoch) {
          EXPECT_EQ(view(record).phase, Phase::callback);
          during.emplace_back(view(record).callback.data());
          return loader_of(epoch, world);
        },
        world);
    while (!take(loader, world).ends_epoch) {
    }
    take(loader, world);
    EXPECT_THAT(during, testing::ElementsAre(HasSubstr("ReloadedLoader"), HasSubstr("ReloadedLoader")));
    EXPECT_NE(view(record).phase, Phase::callback);
  });
}

TEST(ReloadedLoader, KeepsTheGlobalBatchInACombinedLoader) {
  World world = World::single(c10::kCPU);
  const auto shorter = loader_of(0, world, /*batch=*/6);
  ReloadedLoader longer = reloaded(world, 1, /*batch=*/6);
  CombinedLoader saved({borrowed(*shorter), borrowed(longer)}, CombineMode::min_size);
  saved.next();
  const auto shorter_now = loader_of(0, world, /*batch=*/4);
  ReloadedLoader longer_now = reloaded(world, 1, /*batch=*/4);
  CombinedLoader resumed({borrowed(*shorter_now), borrowed(longer_now)}, CombineMode::min_size);
  resumed.seek(saved.position());
  while (!resumed.next()->ends_epoch) {
  }
  EXPECT_EQ(resumed.next()->global_samples, 12);
}

TEST(ReloadedLoader, HasTheFingerprintOfItsFirstLoader) {
  World world = World::single(c10::kCPU);
  ReloadedLoader loader = reloaded(world, 1);
  const std::string fingerprint = loader_of(0, world)->fingerprint();
  EXPECT_EQ(loader.fingerprint(), fingerprint);
  loader.seek({.epoch = 1});
  EXPECT_EQ(loader.fingerprint(), fingerprint);
  EXPECT_NE(loader_of(1, world)->fingerprint(), fingerprint) << "the control";
}

TEST(ReloadedLoader, LetsATrainingResumeBitwise) {
  const auto train = [](int ranks, std::vector<std::int64_t> stops, bool changes) {
    const TempDir dir;
    std::vector<at::Tensor> weights;
    for (const std::int64_t stop : stops) {
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_for(ranks, {.compute_setup = ComputeSetup::cpu,
                                           .max_epochs = 0,
                                           .max_steps = stop,
                                           .batch_size = 4 / ranks,
                                           .run_dir = dir.path() / "run"});
        TinyTask task;
        ReloadedLoader data(
            [&](std::int64_t epoch) -> std::unique_ptr<BatchSource> {
              return std::make_unique<DataLoader>(tiny_data(changes ? 9 + 4 * (epoch % 3) : 9), plan.loader, world);
            },
            world);
        Trainer(plan, world).fit(task, data);
        if (world.is_main()) {
          weights = weights_of(task);
        }
      });
    }
    return weights;
  };
  for (const int ranks : {1, 2}) {
    const auto straight = train(ranks, {14}, true);
    for (const std::int64_t stop : {1, 2, 3, 4, 7, 8, 12}) {  // epochs end after 3, 7 and 12 steps
      EXPECT_EQ(largest_difference(train(ranks, {stop, 14}, true), straight), 0) << ranks << " ranks, stop " << stop;
    }
    EXPECT_GT(largest_difference(train(ranks, {14}, false), straight), 0) << "the control";
  }
}

// The recipe "Larger batches later": a schedule of the accumulation.
class ChangingBatch : public testing::Test {
 protected:
  struct Result {
    std::vector<at::Tensor> weights{};
    std::vector<std::int64_t> samples{};  // of the steps of the last start
    std::vector<double> rates{};
  };

  /// Epochs 0 and 1 have steps of 4 samples, those after them of `later`.
  Result train(int ranks, const std::vector<std::int64_t>& stops, std::int64_t later = 12, OptimConfig optim = {},
               std::int64_t epochs = 0) {
    const TempDir dir;
    Result result;
    optim.lr_batch_size = 4;
    for (const std::int64_t stop : stops) {
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_for(ranks, {.compute_setup = ComputeSetup::cpu,
                                           .precision = Precision::fp64,
                                           .max_epochs = epochs,
                                           .max_steps = stop,
                                           .batch_size = 2,
                                           .run_dir = dir.path() / "run",
                                           .optim = optim});
        TinyTask task(sgd({.lr = 0.01}));
        ReloadedLoader data(
            [&](std::int64_t epoch) -> std::unique_ptr<BatchSource> {
              LoaderPlan of_epoch = plan.loader;
              of_epoch.batch.global_batch_size = epoch < 2 ? 4 : later;
              of_epoch.batch.global_is_given = true;
              return std::make_unique<DataLoader>(tiny_data(26), of_epoch, world);
            },
            world, /*every_epochs=*/2);
        Result mine;
        Trainer trainer(plan, world);
        trainer.on(Stage::step_start, [&](const StageContext& at) {
          mine.samples.push_back(at.batches->global_samples);
          EXPECT_EQ(std::ssize(at.batches->micro), (at.batches->global_samples + 2 * ranks - 1) / (2 * ranks));
        });
        trainer.on(Stage::step_end, [&](const StageContext& at) { mine.rates.push_back(at.step.lr); });
        trainer.fit(task, data);
        if (world.is_main()) {
          mine.weights = weights_of(task);
          result = std::move(mine);
        }
      });
    }
    return result;
  }

  static constexpr std::int64_t kSteps = 20;  // 7 + 7 of 4 samples, 3 + 3 of 12
  static constexpr std::int64_t kSmallSteps = 14;
};

TEST_F(ChangingBatch, IsTheSameTrainingOnAnyNumberOfRanks) {
  const std::vector<std::int64_t> samples{4, 4, 4, 4, 4, 4, 2, 4, 4, 4, 4, 4, 4, 2, 12, 12, 2, 12, 12, 2};
  const Result one = train(1, {kSteps});
  for (const int ranks : {1, 2, 3, 4}) {
    const Result found = train(ranks, {kSteps});
    EXPECT_EQ(found.samples, samples) << ranks << " ranks";
    EXPECT_LE(largest_difference(found.weights, one.weights), 1e-12) << ranks << " ranks";
  }
  EXPECT_GT(largest_difference(train(1, {kSteps}, /*later=*/4).weights, one.weights), 1e-6) << "the control";
}

TEST_F(ChangingBatch, ResumesBitwiseInEpochsOfEachSize) {
  const OptimConfig optim{.lr_scaling = LrScaling::linear, .loss_scaling = LrScaling::linear};
  for (const int ranks : {1, 2, 4}) {
    const Result straight = train(ranks, {kSteps}, 12, optim);
    for (const std::int64_t stop : {1, 7, 13, 14, 15, 18}) {  // within epochs, at their ends, and around the change
      const Result resumed = train(ranks, {stop, kSteps}, 12, optim);
      EXPECT_EQ(largest_difference(resumed.weights, straight.weights), 0) << ranks << " ranks, stop " << stop;
      EXPECT_EQ(resumed.samples, std::vector(straight.samples.begin() + stop, straight.samples.end()));
      EXPECT_EQ(resumed.rates, std::vector(straight.rates.begin() + stop, straight.rates.end()));
    }
  }
}

// 4 epochs of 7, 7, 3 and 3 steps. A schedule looks ahead with the length of the present epoch.
TEST_F(ChangingBatch, IsFollowedByTheSchedule) {
  const auto rates = [&](const char* schedule, const std::vector<std::int64_t>& stops) {
    return train(2, stops, 12, {.schedule = schedule}, /*epochs=*/4).rates;
  };
  const auto cosine = [](double step, double steps) { return 0.01 * 0.5 * (1 + std::cos(M_PI * step / steps)); };
  const std::vector<double> whole = rates("cosine", {0});
  ASSERT_EQ(std::ssize(whole), kSteps);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const double steps = step < kSmallSteps ? 28 : kSteps;
    EXPECT_NEAR(whole.at(static_cast<std::size_t>(step)), cosine(static_cast<double>(step), steps), 1e-15) << step;
  }
  const std::vector<double> by_epochs = rates("step:3ep", {0});
  EXPECT_EQ(std::ranges::count(by_epochs, 0.01), 7 + 7 + 3);
  for (const std::int64_t stop : {1, 7, 13, 14, 15, 17, 18}) {
    EXPECT_EQ(rates("cosine", {stop, 0}), std::vector(whole.begin() + stop, whole.end())) << stop;
    EXPECT_EQ(rates("step:3ep", {stop, 0}), std::vector(by_epochs.begin() + stop, by_epochs.end())) << stop;
  }
}

TEST_F(ChangingBatch, IsFollowedByTheScalingOfRatesAndLosses) {
  const Result by_rate = train(2, {kSteps}, 12, {.lr_scaling = LrScaling::linear});
  for (std::int64_t step = 0; step < kSteps; ++step) {
    EXPECT_DOUBLE_EQ(by_rate.rates.at(static_cast<std::size_t>(step)), step < kSmallSteps ? 0.01 : 0.03) << step;
  }
  // SGD cannot tell a scaled loss from a scaled learning rate.
  const Result by_loss = train(2, {kSteps}, 12, {.loss_scaling = LrScaling::linear});
  EXPECT_LE(largest_difference(by_loss.weights, by_rate.weights), 1e-12);
  EXPECT_GT(largest_difference(by_loss.weights, train(2, {kSteps}).weights), 1e-6) << "the control";
}

TEST_F(ChangingBatch, IsTold) {
  CapturedStderr captured;
  train(1, {kSteps});
  EXPECT_THAT(captured.text(), HasSubstr("the global batch is 12; it was 4 before"));
}

// Else two validations could not be compared.
TEST(ReloadedLoader, StaysAtItsFirstLoaderInValidationsAndPredictions) {
  class Echo final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override { return {{"x", batch.input}}; }
  };
  Session session = Session::single(in_memory({.max_epochs = 3, .batch_size = 4}));
  Echo task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  std::vector<std::int64_t> made;
  ReloadedLoader validation(
      [&](std::int64_t epoch) -> std::unique_ptr<BatchSource> {
        made.push_back(epoch);
        return std::make_unique<DataLoader>(tiny_data(8), session.plan.eval_loader, session.world);
      },
      session.world);
  int validations = 0;
  Trainer trainer(session);
  trainer.on(Stage::validation_end, [&](const StageContext&) { ++validations; });
  trainer.fit(task, data, &validation);
  EXPECT_EQ(validations, 3);
  const TempDir dir;
  for (int times = 0; times < 2; ++times) {  // the second one finds the first
    trainer.predict(task, validation, dir.path() / "out");
  }
  EXPECT_THAT(made, testing::ElementsAre(0));
}

}  // namespace
}  // namespace lockstep
