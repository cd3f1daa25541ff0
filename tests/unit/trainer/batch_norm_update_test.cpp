// The statistics of batch norm for averaged weights. tests/parity compares one rank with PyTorch's update_bn.
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/metrics/aggregation.h>
#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/trainer/callbacks.h>

#include "support/at_stage.h"
#include "support/borrowed.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

/// Batch norm between two layers. Notes the batches that it sees in training mode without gradients.
template <class Norm>
class NormedTask final : public Task {
 public:
  NormedTask() {
    root_.register_module("first", first);
    root_.register_module("norm", norm);
    root_.register_module("second", second);
    const at::NoGradGuard no_grad;
    for (auto& parameter : root_.parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()));
    }
  }
  torch::nn::Module& module() override { return root_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.05})}; }
  std::vector<metrics::NamedMetric> metrics() override { return {{"inputs", inputs_}}; }
  StepOutput training_step(const Batch& batch) override {
    inputs_.update(batch.input);
    if (!at::GradMode::is_enabled() && root_.is_training()) {
      seen.push_back(batch.input.clone());
    }
    return at::mse_loss(second(norm(first(batch.input))), batch.target);
  }
  StepOutput validation_step(const Batch& batch) override { return at::mse_loss(batch.target, batch.target); }

  torch::nn::Linear first{4, 3};
  Norm norm{3};
  torch::nn::Linear second{3, 1};
  std::vector<at::Tensor> seen{};

 private:
  torch::nn::Module root_{};
  metrics::SumMetric inputs_{};
};

struct Statistics {
  at::Tensor mean{};
  at::Tensor variance{};
  std::int64_t batches = 0;
  std::vector<at::Tensor> seen{};
  at::Tensor weight{};  // of the first layer
  at::Tensor bias{};
  LoaderPosition before{};  // of the training source
  LoaderPosition after{};
};

template <class Norm = torch::nn::BatchNorm1d>
std::vector<Statistics> train(int ranks, std::int64_t samples, std::int64_t batch_norm_steps, bool evaluation = false) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 7, .batch_size = 12 / ranks});
  config.sampler.shuffle = false;
  const Plan plan = plan_for(ranks, config);
  std::vector<Statistics> found(static_cast<std::size_t>(ranks));
  thread_world(ranks, [&](World& world) {
    Statistics& mine = found[static_cast<std::size_t>(world.rank())];
    NormedTask<Norm> task;
    if (evaluation) {
      task.norm->eval();
    }
    DataLoader data(tiny_data(samples), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.add(at_stage(Stage::fit_end, [&](const StageContext&) { mine.before = data.position(); }));
    trainer.add(std::make_shared<WeightAverage>(
        WeightAverageOptions{.decay = 0, .at_end = true, .batch_norm_steps = batch_norm_steps}));
    trainer.fit(task, data);
    mine.mean = task.norm->running_mean.clone();
    mine.variance = task.norm->running_var.clone();
    mine.batches = task.norm->num_batches_tracked.template item<std::int64_t>();
    mine.seen = task.seen;
    mine.weight = task.first->weight.detach().clone();
    mine.bias = task.first->bias.detach().clone();
    mine.after = data.position();
    EXPECT_EQ(task.norm->options.momentum(), std::optional<double>(0.1));
  });
  return found;
}

bool equal(const Statistics& a, const Statistics& b, double tolerance) {
  return at::allclose(a.mean, b.mean, tolerance, tolerance) &&
         at::allclose(a.variance, b.variance, tolerance, tolerance);
}

/// update_bn over the batches that the ranks saw.
Statistics expected(const std::vector<Statistics>& ranks) {
  Statistics all{.mean = at::zeros({3}), .variance = at::zeros({3})};
  for (const Statistics& rank : ranks) {
    for (const at::Tensor& batch : rank.seen) {
      const auto [variance, mean] = at::var_mean(at::linear(batch, rank.weight, rank.bias), {0}, /*correction=*/1);
      all.mean += mean;
      all.variance += variance;
      ++all.batches;
    }
  }
  all.mean /= all.batches;
  all.variance /= all.batches;
  return all;
}

TEST(BatchNormUpdate, IsTheMeanOverTheBatchesOfAllRanks) {
  for (const int ranks : {1, 2, 3}) {
    const std::vector<Statistics> found = train(ranks, 30, 3);  // 12, 12 and 6 samples
    const Statistics wanted = expected(found);
    EXPECT_EQ(wanted.batches, 3 * ranks);
    EXPECT_FALSE(equal(train(ranks, 30, 0).front(), wanted, 1e-3)) << "control: without the update";
    EXPECT_FALSE(equal(train(ranks, 30, 2).front(), wanted, 1e-3)) << "control: without the last step";
    for (const Statistics& rank : found) {
      EXPECT_TRUE(equal(rank, wanted, 1e-5)) << ranks << " ranks: " << rank.mean << wanted.mean;
      EXPECT_TRUE(equal(rank, found.front(), 0)) << "the ranks differ";
      EXPECT_EQ(rank.batches, wanted.batches);
      EXPECT_EQ(rank.after.epoch, rank.before.epoch);
      EXPECT_EQ(rank.after.consumed, rank.before.consumed);
    }
  }
}

TEST(BatchNormUpdate, BeginsWithTheEpochAndEndsWithIt) {
  const Statistics found = train(1, 30, 100).front();
  EXPECT_EQ(found.before.consumed, 12);  // seven steps, three in an epoch
  ASSERT_EQ(found.seen.size(), 3U);
  EXPECT_TRUE(at::equal(found.seen.front()[0], tiny_data(30)->get(std::vector<std::int64_t>{0}, {}).input[0]));
}

TEST(BatchNormUpdate, IsLeftOutByAStopForWhichNobodyWaits) {
  for (const StopKind kind : {StopKind::program, StopKind::terminate, StopKind::interrupt}) {
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, in_memory({.max_epochs = 0, .max_steps = 7, .batch_size = 12}));
    NormedTask<torch::nn::BatchNorm1d> task;
    DataLoader data(tiny_data(120), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.on(Stage::step_end, [kind](const StageContext& at) {
      if (at.state.step == 3) {
        at.control.request_stop("the test", kind);
      }
    });
    trainer.add(std::make_shared<WeightAverage>(WeightAverageOptions{.at_end = true, .batch_norm_steps = 5}));
    trainer.fit(task, data);
    EXPECT_EQ(task.seen.size(), kind == StopKind::program ? 5U : 0U);
  }
}

TEST(BatchNormUpdate, IsLeftOutWithoutAnAverage) {
  for (const std::int64_t first_step : {8, 7}) {
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, in_memory({.max_epochs = 0, .max_steps = 7, .batch_size = 12}));
    NormedTask<torch::nn::BatchNorm1d> task;
    DataLoader data(tiny_data(120), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.add(std::make_shared<WeightAverage>(
        WeightAverageOptions{.first_step = first_step, .at_end = true, .batch_norm_steps = 5}));
    const CapturedStderr silent;
    trainer.fit(task, data);
    EXPECT_EQ(task.seen.size(), first_step == 7 ? 5U : 0U);
  }
}

TEST(BatchNormUpdate, ALayerWithTwoNamesKeepsItsMomentum) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 0, .max_steps = 3, .batch_size = 12}));
  NormedTask<torch::nn::BatchNorm1d> task;
  task.module().register_module("again", task.norm);
  DataLoader data(tiny_data(30), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<WeightAverage>(WeightAverageOptions{.at_end = true, .batch_norm_steps = 3}));
  trainer.fit(task, data);
  EXPECT_EQ(task.seen.size(), 3U);
  EXPECT_EQ(task.norm->options.momentum(), std::optional<double>(0.1));
}

TEST(BatchNormUpdate, SynchronisedLayersSeeTheWholeBatch) {
  for (const std::int64_t samples : {30, 26}) {  // the last step has two samples: a rank of three has none
    const Statistics one = train<SyncBatchNorm>(1, samples, 3).front();
    for (const int ranks : {2, 3}) {
      for (const Statistics& rank : train<SyncBatchNorm>(ranks, samples, 3)) {
        EXPECT_TRUE(equal(rank, one, 2e-5)) << ranks << " ranks, " << samples << " samples";
        EXPECT_EQ(rank.batches, 3);
      }
    }
    EXPECT_FALSE(equal(train<SyncBatchNorm>(2, samples, 2).front(), one, 1e-3)) << "control";
  }
}

TEST(BatchNormUpdate, LayersInEvaluationModeKeepTheirStatistics) {
  const Statistics found = train(1, 30, 3, /*evaluation=*/true).front();
  EXPECT_TRUE(at::equal(found.mean, at::zeros({3})));
  EXPECT_TRUE(found.seen.empty()) << "there is nothing to calculate";
}

TEST(BatchNormUpdate, OfATaskWithoutTrainingStepIsRefusedBeforeTheTraining) {
  class OnlyOptimize final : public Task {
   public:
    explicit OnlyOptimize(bool with_norm) {
      root_.register_module("layer", layer_);
      if (with_norm) {
        root_.register_module("norm", norm_);
      }
    }
    torch::nn::Module& module() override { return root_; }
    std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.05})}; }
    void optimize(Step& step) override {
      ++steps;
      update_with(0, step, [&](const Batch& batch) { return at::mse_loss(layer_(batch.input), batch.target); });
    }
    int steps = 0;

   private:
    torch::nn::Linear layer_{4, 1};
    torch::nn::BatchNorm1d norm_{1};
    torch::nn::Module root_{};
  };
  const auto fit = [](OnlyOptimize& task) {
    Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 4}));
    DataLoader data(tiny_data(8), session.plan.loader, session.world);
    Trainer trainer(session);
    trainer.add(
        std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0, .at_end = true, .batch_norm_steps = 2}));
    trainer.fit(task, data);
  };
  OnlyOptimize refused(/*with_norm=*/true);
  EXPECT_THAT(message_of<ConfigError>([&] { fit(refused); }),
              testing::StartsWith("WeightAverage: batch_norm_steps needs training_step(): "));
  EXPECT_EQ(refused.steps, 0);
  OnlyOptimize without_norm(/*with_norm=*/false);
  fit(without_norm);  // it has no statistics to update
  EXPECT_EQ(without_norm.steps, 2);
}

TEST(BatchNormUpdate, TriesTheForwardWithoutATrace) {
  for (const int ranks : {1, 2}) {
    const Statistics with = train(ranks, 30, 3).front();
    const Statistics without = train(ranks, 30, 0).front();
    EXPECT_TRUE(at::equal(with.weight, without.weight)) << "the same samples in the same order";
  }
}

TEST(BatchNormUpdate, LeavesTheMetricsOfTheTrainingAsTheyAre) {
  const auto reports = [](std::int64_t batch_norm_steps) {
    World world = World::single(c10::kCPU);
    TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 4, .batch_size = 12});
    config.report.every_steps = 2;
    const Plan plan = plan_for(1, config);
    NormedTask<torch::nn::BatchNorm1d> task;
    DataLoader data(tiny_data(30), plan.loader, world);
    Trainer trainer(plan, world);
    std::vector<double> inputs;
    trainer.on(Stage::report, [&](const StageContext& at) { inputs.push_back(metric_of(*at.metrics, "inputs")); });
    trainer.add(std::make_shared<WeightAverage>(
        WeightAverageOptions{.decay = 0, .at_end = true, .batch_norm_steps = batch_norm_steps}));
    trainer.fit(task, data);
    inputs.push_back(task.metrics().front().metric.value(world).item<double>());  // after the update at the end
    return inputs;
  };
  EXPECT_EQ(reports(/*batch_norm_steps=*/2), reports(/*batch_norm_steps=*/0));
}

// Of a global batch of one sample, rank 1 has an empty micro-batch, before that of the other loader.
TEST(BatchNormUpdate, TriesAMicroBatchWithSamples) {
  // Several values per channel, so that one sample is enough for training.
  class Wide final : public Task {
   public:
    Wide() {
      root_.register_module("norm", norm_);
      root_.register_module("layer", layer_);
    }
    torch::nn::Module& module() override { return root_; }
    std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.05})}; }
    StepOutput training_step(const Batch& batch) override {
      return at::mse_loss(layer_(norm_(batch.input.unsqueeze(1)).squeeze(1)), batch.target);
    }

   private:
    torch::nn::BatchNorm1d norm_{1};
    torch::nn::Linear layer_{4, 1};
    torch::nn::Module root_{};
  };
  thread_world(2, [](World& world) {
    const Plan plan = plan_for(2, in_memory({.max_epochs = 0, .max_steps = 2, .batch_size = 2}));
    DataLoader one(tiny_data(8), {.batch = {.batch_size = 2, .global_batch_size = 1}}, world);
    DataLoader four(tiny_data(8), {.batch = {.batch_size = 2, .global_batch_size = 4}}, world);
    CombinedLoader both({borrowed(one), borrowed(four)}, CombineMode::min_size);
    Wide task;
    Trainer trainer(plan, world);
    trainer.add(
        std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0, .at_end = true, .batch_norm_steps = 1}));
    EXPECT_EQ(trainer.fit(task, both).state.step, 2);
  });
}

TEST(BatchNormUpdate, NeedsTheAverageAtTheEnd) {
  EXPECT_THAT(message_of([] { WeightAverage({.batch_norm_steps = 3}); }),
              testing::HasSubstr("batch_norm_steps is 3, expected 0 without at_end"));
  EXPECT_THAT(message_of([] { WeightAverage({.at_end = true, .batch_norm_steps = -1}); }),
              testing::HasSubstr("batch_norm_steps is -1, expected 0 or more"));
}

}  // namespace
}  // namespace lockstep
