// Training without derivatives.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/evolution.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The part of wrong signs, which has no derivative, and by request the squares, which have one.
class StepwiseTask final : public TinyTask {
 public:
  explicit StepwiseTask(bool smooth = false, int pairs = 16)
      : TinyTask(adamw({.lr = 0.05})), smooth_(smooth), pairs_(pairs) {}
  StepOutput training_step(const Batch& batch) override {
    const auto loss = [&] {
      EXPECT_FALSE(at::GradMode::is_enabled());
      const at::Tensor found = net_(batch.input);
      return smooth_ ? at::mse_loss(found, batch.target) : (found.gt(0) != batch.target.gt(0)).to(at::kFloat).mean();
    };
    return evolution_loss(*net_, loss, {.pairs = pairs_, .sigma = smooth_ ? 0.01 : 0.3});
  }

 private:
  bool smooth_;
  int pairs_;
};

struct Trained {
  double first_loss = 0;
  double loss = 0;
  std::vector<at::Tensor> parameters{};
};

Trained train(int ranks, TrainConfig config) {
  config.global_batch_size = 16;
  config.report.every_steps = 10;
  Trained found;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(world.size(), config);
    StepwiseTask task;
    DataLoader data(tiny_data(64), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.on(Stage::report, [&](const StageContext& at) {
      if (world.is_main()) {
        found.loss = at.metrics->front().second;
        found.first_loss = found.first_loss == 0 ? found.loss : found.first_loss;
      }
    });
    trainer.fit(task, data);
    if (world.is_main()) {
      for (const at::Tensor& parameter : task.module().parameters()) {
        found.parameters.push_back(parameter.detach().clone());
      }
    }
  });
  return found;
}

TEST(EvolutionLoss, TrainsWhatHasNoDerivativeOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    TrainConfig config = in_memory({.max_epochs = 15});
    config.batch_size = 2;  // several micro-batches
    const Trained found = train(ranks, config);
    EXPECT_GT(found.first_loss, 0.2);
    EXPECT_LT(found.loss, 0.5 * found.first_loss) << ranks << " ranks";
  }
}

// The mean over many pairs approaches the derivative; a control of few pairs does not.
TEST(EvolutionLoss, EstimatesTheGradientAndKeepsTheParameters) {
  at::manual_seed(1);
  const auto data = tiny_data(8);
  Batch batch;
  batch.input = at::sin(at::arange(32, at::kFloat) * 0.37).view({8, 4});
  batch.target = batch.input.sum(1, true);
  batch.samples = 8;
  const auto error_with = [&](int pairs) {
    StepwiseTask task(/*smooth=*/true, pairs);
    const auto parameters = task.module().parameters();
    const at::Tensor before = at::cat({parameters[0].detach().flatten(), parameters[1].detach()}).clone();
    const StepOutput output = task.training_step(batch);
    EXPECT_TRUE(at::equal(at::cat({parameters[0].detach().flatten(), parameters[1].detach()}), before));
    output.loss.backward();
    const at::Tensor estimate = at::cat({parameters[0].grad().flatten(), parameters[1].grad()}).clone();
    for (at::Tensor parameter : parameters) {
      parameter.mutable_grad().reset();
    }
    const at::Tensor exact_loss = static_cast<TinyTask&>(task).TinyTask::training_step(batch).loss;
    EXPECT_NEAR(output.loss.item<double>(), exact_loss.item<double>(), 1e-2);
    exact_loss.backward();
    const at::Tensor exact = at::cat({parameters[0].grad().flatten(), parameters[1].grad()});
    return ((estimate - exact).norm() / exact.norm()).item<double>();
  };
  EXPECT_LT(error_with(4000), 0.1);
  EXPECT_GT(error_with(2), 0.2);
}

// Task::validation_step calls training_step by default.
TEST(EvolutionLoss, IsTheLossOfTheParametersThemselvesInAValidation) {
  StepwiseTask task(/*smooth=*/true);
  Batch batch;
  batch.input = at::sin(at::arange(32, at::kFloat) * 0.37).view({8, 4});
  batch.target = batch.input.sum(1, true);
  batch.samples = 8;
  const at::NoGradGuard no_grad;
  const at::Tensor exact = static_cast<TinyTask&>(task).TinyTask::training_step(batch).loss;
  EXPECT_EQ(task.validation_step(batch).loss.item<float>(), exact.item<float>());
}

// Autocast must not use the copies of the weights that it has made for another point.
TEST(EvolutionLoss, SeesEachPointUnderAutocast) {
  World world = World::single(c10::kCPU);
  for (const Precision precision : {Precision::bf16_mixed, Precision::bf16}) {
    TrainConfig config = in_memory({.max_epochs = 1});
    config.precision = precision;
    config.global_batch_size = 16;
    const Plan plan = plan_for(1, config);
    StepwiseTask task(/*smooth=*/true);
    DataLoader data(tiny_data(16), plan.loader, world);
    Trainer trainer(plan, world);
    bool moved = false;
    trainer.on(Stage::backward_end, [&](const StageContext& at) {
      moved = at.module.parameters().front().grad().abs().max().item<double>() > 0;
    });
    trainer.fit(task, data);
    EXPECT_TRUE(moved) << static_cast<int>(precision);
  }
}

TEST(EvolutionLoss, ResumesWithTheBytesOfTheUndisturbedRun) {
  const TempDir dir;  // one rank: ranks that are threads share a random generator
  const Trained straight = train(1, in_memory({.max_epochs = 3}));
  TrainConfig config = in_memory({.max_epochs = 3});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  for (const std::int64_t steps : {5, 0}) {
    config.max_steps = steps;
    const Trained found = train(1, config);
    for (std::size_t i = 0; i < straight.parameters.size(); ++i) {
      EXPECT_EQ(at::equal(found.parameters[i], straight.parameters[i]), steps == 0);
    }
  }
}

TEST(EvolutionLoss, LeavesFrozenParametersAlone) {
  StepwiseTask task(/*smooth=*/true);
  freeze(task.module(), "bias");
  const at::Tensor bias = task.module().parameters()[1];
  std::vector<double> seen;
  evolution_loss(task.module(), [&] {
    seen.push_back(bias.item<double>());
    return at::zeros({});
  });
  EXPECT_THAT(seen, testing::Each(bias.item<double>()));
}

TEST(EvolutionLoss, RefusesWhatItCannotUse) {
  StepwiseTask task;
  const auto scalar = [] { return at::zeros({}); };
  EXPECT_THAT(message_of<ConfigError>([&] { evolution_loss(task.module(), scalar, {.pairs = 0, .sigma = -1}); }),
              AllOf(HasSubstr("pairs is 0, expected 1 or more"), HasSubstr("sigma is -1, expected a number above 0")));
  EXPECT_THAT(message_of([&] { evolution_loss(task.module(), [] { return at::zeros({3}); }); }),
              HasSubstr("the loss has shape [3], expected a scalar"));
  torch::nn::Module complex;
  complex.register_parameter("rotation", at::zeros({2}, at::kComplexFloat));
  EXPECT_THAT(message_of<ConfigError>([&] { evolution_loss(complex, scalar); }),
              HasSubstr("found a complex parameter"));
  freeze(task.module(), "*");
  EXPECT_THAT(message_of<ConfigError>([&] { evolution_loss(task.module(), scalar); }),
              HasSubstr("no parameter of the module requires gradients"));
}

}  // namespace
}  // namespace lockstep
