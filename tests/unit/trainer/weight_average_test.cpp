#include <memory>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/trainer/callbacks.h>

#include "base/mapped.h"
#include "support/at_stage.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

/// Notes the weight of every validation.
class Watching : public TinyTask {
 public:
  using TinyTask::TinyTask;
  StepOutput validation_step(const Batch& batch) override {
    if (fails) {
      throw std::runtime_error("no validation today");
    }
    seen.push_back(net_->weight.detach().clone());
    return TinyTask::validation_step(batch);
  }
  at::Tensor weight() const { return net_->weight.detach().clone(); }

  std::vector<at::Tensor> seen{};
  bool fails = false;
};

struct Training {
  Watching task{};
  std::shared_ptr<WeightAverage> average{};
  std::vector<at::Tensor> weights{};  // after each step

  void train(World& world, TrainConfig config, WeightAverageOptions options) {
    config.batch_size = 8 / world.size();
    const Plan plan = plan_for(world.size(), config);
    DataLoader data(tiny_data(32), plan.loader, world);
    DataLoader validation(tiny_data(8), plan.eval_loader, world);
    average = std::make_shared<WeightAverage>(options);
    Trainer trainer(plan, world);
    trainer.add(average);
    trainer.add(at_stage(Stage::step_end, [&](const StageContext&) { weights.push_back(task.weight()); }));
    trainer.fit(task, data, &validation);
  }
  const at::Tensor& averaged() const { return average->average().front().second; }
};

TEST(WeightAverage, IsTheMovingAverage) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      Training run;
      run.train(world, in_memory({.max_epochs = 2}), {.decay = 0.75});
      at::Tensor expected = run.weights.front();
      for (std::size_t i = 1; i < run.weights.size(); ++i) {
        expected = expected * 0.75 + run.weights[i] * 0.25;
      }
      ASSERT_EQ(run.weights.size(), 8U);
      EXPECT_EQ(run.average->average().front().first, "weight");
      EXPECT_TRUE(at::allclose(run.averaged(), expected, 0, 1e-6));
      EXPECT_FALSE(at::allclose(run.averaged(), run.weights.back(), 0, 1e-6));  // control
    });
  }
}

TEST(WeightAverage, WithoutDecayIsTheMean) {
  World world = World::single(c10::kCPU);
  Training run;
  run.train(world, in_memory({.max_epochs = 3}), {.decay = 0, .every_steps = 2, .first_epoch = 2});
  EXPECT_TRUE(
      at::allclose(run.averaged(), (run.weights[4] + run.weights[6] + run.weights[8] + run.weights[10]) / 4, 0, 1e-6));
}

TEST(WeightAverage, IsUsedInValidationsOnly) {
  World world = World::single(c10::kCPU);
  Training run;
  run.train(world, in_memory({.max_epochs = 2}), {.decay = 0.75});
  ASSERT_EQ(run.task.seen.size(), 2U);
  EXPECT_TRUE(at::equal(run.task.seen.back(), run.averaged()));
  EXPECT_TRUE(at::equal(run.task.weight(), run.weights.back()));

  Training without;
  without.train(world, in_memory({.max_epochs = 2}), {.decay = 0.75, .in_validation = false});
  EXPECT_TRUE(at::equal(without.task.seen.back(), without.weights.back()));
  EXPECT_TRUE(at::equal(without.weights.back(), run.weights.back()));  // it changes nothing
}

TEST(WeightAverage, IsUsedAfterTheFitUntilTheProgramChangesTheWeights) {
  Session session = Session::single(in_memory({.max_epochs = 2, .batch_size = 8}));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  Watching task;
  const auto average = std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.75});
  Trainer trainer(session);
  trainer.add(average);
  trainer.fit(task, data);
  for (int i = 0; i < 2; ++i) {
    trainer.test(task, data);
    EXPECT_TRUE(at::equal(task.seen.back(), average->average().front().second));
  }
  const at::Tensor other = at::full({1, 4}, 0.5);
  load_module(task.module(), {{"weight", other}, {"bias", at::zeros({1})}});
  trainer.test(task, data);
  EXPECT_TRUE(at::equal(task.seen.back(), other));
  task.module().parameters().front().set_data(at::ones({1, 4}));  // as torch::load does
  trainer.validate(task, data);
  EXPECT_TRUE(at::equal(task.seen.back(), at::ones({1, 4})));
}

TEST(WeightAverage, OfACheckpointReplacesItsModel) {
  const CheckpointContents checkpoint{
      .tensors = {{"model", {{"weight", at::zeros({2}, at::kBFloat16)}, {"frozen", at::ones({1})}}},
                  {"callbacks", {{"ema.weight", at::ones({2})}, {"ema.:updates", at::scalar_tensor(3, at::kLong)}}}}};
  const NamedTensors model = averaged_model(checkpoint, "ema");
  ASSERT_EQ(model.size(), 2U);
  EXPECT_TRUE(at::equal(model[0].second, at::ones({2}, at::kBFloat16)));
  EXPECT_TRUE(at::equal(model[1].second, at::ones({1})));
  EXPECT_TRUE(at::equal(checkpoint.tensors.at("model")[0].second, at::zeros({2}, at::kBFloat16)));
  EXPECT_EQ(
      message_of<CheckpointError>([&] { averaged_model(checkpoint); }),
      "the checkpoint has no average of a callback 'weight_average' | train with WeightAverage, and give the name "
      "of its options");
}

TEST(WeightAverage, CanBecomeTheWeightsAtTheEnd) {
  World world = World::single(c10::kCPU);
  Training run;
  run.train(world, in_memory({.max_epochs = 2}), {.decay = 0.75, .at_end = true});
  EXPECT_TRUE(at::equal(run.task.weight(), run.averaged()));
}

TEST(WeightAverage, SaysThatItNeverBegan) {
  World world = World::single(c10::kCPU);
  const auto warnings = [&](std::int64_t first_epoch) {
    Training run;
    CapturedStderr captured;
    run.train(world, in_memory({.max_epochs = 2}), {.first_epoch = first_epoch});
    return captured.text();
  };
  EXPECT_THAT(warnings(3), HasSubstr("weight_average: the training ended at step 8 and averaged none (first_step 1, "
                                     "first_epoch 3, every_steps 1)"));
  EXPECT_THAT(warnings(2), testing::Not(HasSubstr("averaged none")));
}

TEST(WeightAverage, PutsTheWeightsBackAfterAFailedValidation) {
  World world = World::single(c10::kCPU);
  Training run;
  run.task.fails = true;
  EXPECT_THROW(run.train(world, in_memory({.max_epochs = 2}), {.decay = 0.75}), std::runtime_error);
  EXPECT_TRUE(at::equal(run.task.weight(), run.weights.back()));
}

TEST(WeightAverage, AveragesHalfPrecisionInFloat) {
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 2});
  config.precision = Precision::bf16;
  Training run;
  run.train(world, config, {.decay = 0.99});
  EXPECT_EQ(run.averaged().scalar_type(), at::kFloat);
  EXPECT_EQ(run.task.seen.back().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(run.task.seen.back(), run.averaged().to(at::kBFloat16)));
}

/// A linear layer behind a batch norm.
class Normed final : public Task {
 public:
  Normed() {
    root_.register_module("norm", norm);
    root_.register_module("out", out);
  }
  torch::nn::Module& module() override { return root_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.01})}; }
  StepOutput training_step(const Batch& batch) override { return at::mse_loss(out(norm(batch.input)), batch.target); }
  torch::nn::BatchNorm1d norm{4};
  torch::nn::Linear out{4, 1};

 private:
  torch::nn::Module root_{};
};

TEST(WeightAverage, AveragesBuffersAndUnfrozenParameters) {
  for (const bool buffers : {false, true}) {
    Session session = Session::single(in_memory({.max_epochs = 2, .batch_size = 8}));
    DataLoader data(tiny_data(32), session.plan.loader, session.world);
    Normed task;
    const auto average = std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.5, .buffers = buffers});
    std::vector<at::Tensor> means;
    Trainer trainer(session);
    trainer.add(average);
    trainer.add(std::make_shared<FreezeUntil>("norm.*", 2));
    trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
      means.push_back(task.norm->running_mean.clone());
      const bool has_norm = std::ranges::any_of(average->average(), [](auto& v) { return v.first == "norm.weight"; });
      EXPECT_EQ(has_norm, context.state.step > 4) << context.state.step;
    }));
    trainer.fit(task, data);
    const auto names = mapped(average->average(), &NamedTensors::value_type::first);
    std::vector<std::string> expected{"norm.weight", "norm.bias", "out.weight", "out.bias"};
    if (buffers) {
      expected.insert(expected.end(), {"norm.running_mean", "norm.running_var"});
      at::Tensor mean = means.front();
      for (const at::Tensor& now : means) {
        mean = mean * 0.5 + now * 0.5;
      }
      EXPECT_TRUE(at::allclose(average->average()[4].second, mean, 0, 1e-6));
    }
    EXPECT_EQ(names, expected);
  }
}

TEST(WeightAverage, OfBuffersIsUsedInEveryEvaluationAfterTheFit) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 2, .batch_size = 8 / ranks}));
      DataLoader data(tiny_data(32), plan.loader, world);
      Normed task;
      Trainer trainer(plan, world);
      trainer.add(std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.9, .buffers = true}));
      trainer.fit(task, data);
      const Metrics first = trainer.validate(task, data);
      EXPECT_EQ(trainer.validate(task, data), first);
      EXPECT_EQ(trainer.test(task, data), first);
    });
  }
}

/// Has the name of the average, and saves something else.
class OtherAverage final : public Callback {
 public:
  std::string name() const override { return "weight_average"; }
  std::uint32_t stages() const override { return 0; }
  void on(const StageContext&) override {}
  NamedTensors save() const override { return {{"weight", at::ones({2, 2})}, {"other", at::ones({1})}}; }
};

TEST(WeightAverage, RefusesAnAverageOfAnotherModel) {
  const TempDir dir;
  const auto train = [&](std::int64_t epochs, std::shared_ptr<Callback> callback) {
    TrainConfig config = in_memory({.max_epochs = epochs, .batch_size = 8});
    config.run_dir = (dir.path() / "run").string();
    config.checkpoint.enabled = true;
    Session session = Session::single(config);
    DataLoader data(tiny_data(8), session.plan.loader, session.world);
    TinyTask task;
    Trainer(session).add(std::move(callback)).fit(task, data);
  };
  train(1, std::make_shared<OtherAverage>());
  EXPECT_THAT(message_of([&] { train(2, std::make_shared<WeightAverage>()); }),
              testing::AllOf(HasSubstr("the averaged weights do not match the module"), HasSubstr("other"),
                             HasSubstr("weight is Float [2, 2], expected Float [1, 4]")));
}

TEST(WeightAverage, RefusesWrongOptions) {
  EXPECT_THAT(message_of([] { WeightAverage({.decay = 1}); }), HasSubstr("decay is 1, expected 0 or more and less"));
  EXPECT_THAT(message_of([] { WeightAverage({.every_steps = 0, .first_step = 0}); }),
              testing::AllOf(HasSubstr("every_steps is 0"), HasSubstr("first_step is 0")));
}

}  // namespace
}  // namespace lockstep
