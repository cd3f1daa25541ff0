// --precision and the other settings of numbers, through the Trainer.
#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <lockstep/base/error.h>

#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "support/watched_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

TrainConfig training_in(Precision precision) {
  TrainConfig config = in_memory({.max_epochs = 40, .batch_size = 8});
  config.precision = precision;
  return config;
}

std::vector<double> train(Precision precision, WatchedTask& task) {
  Session session = Session::single(training_in(precision));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
  const auto recorder = std::make_shared<LossRecorder>();
  Trainer(session).add(recorder).fit(task, data, &validation);
  return recorder->losses;
}

TEST(TrainerPrecision, Bf16MixedComputesInBf16AndKeepsFloat) {
  WatchedTask task;
  train(Precision::bf16_mixed, task);
  EXPECT_THAT(task.training_outputs, ElementsAre(at::kBFloat16));
  EXPECT_THAT(task.validation_outputs, ElementsAre(at::kBFloat16));
  EXPECT_THAT(task.losses, ElementsAre(at::kFloat));
  for (const auto& parameter : task.module().parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  }

  WatchedTask plain;
  train(Precision::fp32, plain);
  EXPECT_THAT(plain.training_outputs, ElementsAre(at::kFloat));
  EXPECT_THAT(plain.validation_outputs, ElementsAre(at::kFloat));
}

TEST(TrainerPrecision, Bf16MixedLearnsTheSame) {
  WatchedTask mixed;
  WatchedTask full;
  const auto rounded = train(Precision::bf16_mixed, mixed);
  const auto exact = train(Precision::fp32, full);
  ASSERT_EQ(rounded.size(), 160U);
  ASSERT_EQ(exact.size(), rounded.size());
  EXPECT_NE(rounded.front(), exact.front());  // control: something was rounded
  const double start = exact.front();
  for (std::size_t step = 0; step < exact.size(); ++step) {
    EXPECT_NEAR(rounded[step], exact[step], 0.02 * start) << "step " << step;
  }
  EXPECT_LT(exact.back(), 0.05 * start);
  EXPECT_LT(rounded.back(), 0.05 * start);
}

TEST(TrainerPrecision, EndsWithTheTraining) {
  const auto product_type = [] { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); };
  WatchedTask task;
  train(Precision::bf16_mixed, task);
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));

  class Failing final : public TinyTask {
   public:
    StepOutput training_step(const Batch&) override { throw std::runtime_error("no loss today"); }
  };
  Failing failing;
  Session session = Session::single(training_in(Precision::bf16_mixed));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  EXPECT_THROW(Trainer(session).fit(failing, data), std::runtime_error);
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(TrainerPrecision, Fp16MixedLearnsTheSame) {
  WatchedTask mixed;
  WatchedTask full;
  const auto rounded = train(Precision::fp16_mixed, mixed);
  const auto exact = train(Precision::fp32, full);
  EXPECT_THAT(mixed.training_outputs, ElementsAre(at::kHalf));
  EXPECT_THAT(mixed.losses, ElementsAre(at::kFloat));
  EXPECT_EQ(mixed.module().parameters().front().scalar_type(), at::kFloat);
  EXPECT_NE(rounded.front(), exact.front());  // control: something was rounded
  EXPECT_NEAR(rounded.front(), exact.front(), 0.01 * exact.front());
  // The first steps only find the scale: 65536 times their gradients overflows.
  EXPECT_LT(rounded.back(), 0.05 * exact.front());
}

TEST(TrainerPrecision, TrueDtypesConvertParametersAndInputs) {
  const std::pair<Precision, at::ScalarType> cases[] = {
      {Precision::fp64, at::kDouble}, {Precision::bf16, at::kBFloat16}, {Precision::fp16, at::kHalf}};
  WatchedTask full;
  const auto exact = train(Precision::fp32, full);
  for (const auto& [precision, dtype] : cases) {
    WatchedTask task;
    const auto losses = train(precision, task);
    EXPECT_THAT(task.training_outputs, ElementsAre(dtype));
    EXPECT_THAT(task.validation_outputs, ElementsAre(dtype));
    EXPECT_EQ(task.module().parameters().front().scalar_type(), dtype);
    EXPECT_NEAR(losses[20], exact[20], 0.05 * exact.front()) << c10::toString(dtype);
  }
}

/// The first batch overflows in half precision.
class Overflowing final : public TinyTask {
 public:
  using TinyTask::TinyTask;
  StepOutput training_step(const Batch& batch) override {
    StepOutput out = TinyTask::training_step(batch);
    out.loss = out.loss * 1e-3;  // so that the first scale fits
    out.loss = overflows(calls++) ? out.loss * 1e38 * 1e38 : out.loss;
    return out;
  }
  std::function<bool(int)> overflows = [](int call) { return call == 3; };
  int calls = 0;
};

TEST(TrainerPrecision, Fp16MixedSkipsStepsOnAllRanksAlike) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      TrainConfig config = training_in(Precision::fp16_mixed);
      config.max_epochs = 2;
      config.batch_size = 8 / world.size();
      config.optim.max_grad_norm = 1;
      config.report.every_steps = 1;
      const Plan plan = plan_for(world.size(), config);
      Overflowing task(adamw({.lr = 0.01}));
      if (world.rank() != world.size() - 1) {
        task.overflows = [](int) { return false; };  // only one rank has it
      }
      std::vector<bool> changed;
      std::vector<double> scales;
      at::Tensor before = task.module().parameters().front().detach().clone();
      DataLoader data(tiny_data(32), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.add(at_stage(Stage::report, [&](const StageContext& context) {
        const at::Tensor now = task.module().parameters().front().detach().clone();
        changed.push_back(!at::equal(now, before));
        before = now;
        const auto scale = std::ranges::find(*context.metrics, std::string("loss_scale"), &Metrics::value_type::first);
        scales.push_back(scale->second);
      }));
      trainer.fit(task, data);
      EXPECT_THAT(changed, ElementsAre(true, true, true, false, true, true, true, true));
      EXPECT_THAT(scales, ElementsAre(65536, 65536, 65536, 32768, 32768, 32768, 32768, 32768));
    });
  }
}

TEST(TrainerPrecision, Fp16MixedEndsIfNoScaleHelps) {
  TrainConfig config = training_in(Precision::fp16_mixed);
  config.report.every_steps = 1;
  Session session = Session::single(config);
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  Overflowing task;
  task.overflows = [](int call) { return call > 3; };
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }),
              testing::HasSubstr("a loss or a gradient of each of the last 25 steps was not finite"));
  EXPECT_EQ(task.calls, 29);
}

TEST(TrainerPrecision, Fp16MixedSavesTheScaleOfEveryOptimizer) {
  TrainConfig config = training_in(Precision::fp16_mixed);
  const Plan plan = plan_for(1, config);
  World world = World::single(c10::kCPU);
  torch::nn::Module both;
  torch::nn::Linear first{2, 1};
  torch::nn::Linear second{2, 1};
  both.register_module("first", first);
  both.register_module("second", second);
  std::vector<OptimizerSpec> specs{sgd(), sgd()};  // with the same name
  specs[0].module = first.get();
  specs[1].module = second.get();
  const auto strategy = make_strategy(plan, world);
  strategy->prepare(both, specs);
  StrategyOptimizer& optimizer = strategy->optimizer(1);
  strategy->begin_step(0);
  optimizer.zero_grad();
  optimizer.begin_forward(Gradients::reduce);
  optimizer.backward(second(at::full({1, 2}, 1e38F)).sum() * 1e3);
  optimizer.finish();
  optimizer.step();
  EXPECT_EQ(optimizer.skipped().item<float>(), 1);
  const NamedTensors state = strategy->optimizer_state();

  const auto other = make_strategy(plan, world);
  other->prepare(both, specs);
  other->load_optimizer_state(state);
  EXPECT_EQ(other->optimizer(0).loss_scale().item<float>(), 65536);
  EXPECT_EQ(other->optimizer(1).loss_scale().item<float>(), 32768);
}

TEST(TrainerPrecision, Fp16MixedReportsTheScaleOfEveryOptimizer) {
  class Two final : public Task {
   public:
    Two() {
      root_.register_module("first", first_);
      root_.register_module("second", second_);
    }
    torch::nn::Module& module() override { return root_; }
    std::vector<OptimizerSpec> optimizers() override {
      std::vector<OptimizerSpec> specs{sgd({.lr = 1e-3}), sgd({.lr = 1e-3})};
      specs[0].module = first_.get();
      specs[1].module = second_.get();
      return specs;
    }
    void optimize(Step& step) override {
      update_with(0, step, [this](const Batch& b) { return at::mse_loss(first_(b.input), b.target) * 1e-3; });
      update_with(1, step, [this](const Batch& b) { return at::mse_loss(second_(b.input), b.target) * 1e38 * 1e38; });
    }

   private:
    torch::nn::Linear first_{4, 1};
    torch::nn::Linear second_{4, 1};
    torch::nn::Module root_{};
  } task;
  TrainConfig config = training_in(Precision::fp16_mixed);
  config.max_epochs = 1;
  config.report.every_steps = 1;
  Session session = Session::single(config);
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  Trainer trainer(session);
  std::vector<double> scales;
  trainer.on(Stage::report, [&](const StageContext& at) {
    if (at.state.step == 3) {
      scales = {metric_of(*at.metrics, "loss_scale"), metric_of(*at.metrics, "loss_scale_1")};
    }
  });
  trainer.fit(task, data);
  EXPECT_THAT(scales, ElementsAre(65536, 65536 / 8));
}

TEST(Closures, AreRefusedWithWhatTheyCannotDo) {
  class Closure final : public TinyTask {
   public:
    using TinyTask::TinyTask;
    void optimize(Step& step) override {
      step.add(step.optimizer().minimize([] { return StepOutput(); }));
    }
  };
  TrainConfig spikes = training_in(Precision::fp32);
  spikes.spike = {.z_score = 6, .policy = SpikePolicy::skip};
  TrainConfig non_finite = training_in(Precision::fp32);
  non_finite.optim.non_finite = NonFinitePolicy::skip;
  for (const auto& [config, setting] :
       {std::pair(training_in(Precision::fp16_mixed), "--precision fp16_mixed"),
        std::pair(spikes, "--spike.policy skip"), std::pair(non_finite, "--optim.non_finite skip")}) {
    Session session = Session::single(config);
    DataLoader data(tiny_data(32), session.plan.loader, session.world);
    Closure task;
    EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }),
                testing::HasSubstr(std::string(setting) + ": an optimizer with"));
  }
}

/// Looks at the process-wide settings in each of its steps.
class SeesNumerics final : public TinyTask {
 public:
  explicit SeesNumerics(bool benchmark) : benchmark_(benchmark) {}
  StepOutput training_step(const Batch& batch) override {
    look();
    return TinyTask::training_step(batch);
  }
  NamedTensors predict_step(const Batch& batch) override {
    look();
    return {{"output", net_(batch.input)}};
  }
  int good = 0;
  int bad = 0;

 private:
  void look() {
    const at::Context& context = at::globalContext();
    const bool is_set = context.deterministicAlgorithms() != benchmark_ &&
                        context.deterministicAlgorithmsWarnOnly() != benchmark_ &&
                        context.benchmarkCuDNN() == benchmark_ &&
                        context.float32MatmulPrecision() == at::Float32MatmulPrecision::HIGH &&
                        torch::autograd::AnomalyMode::is_enabled();
    ++(is_set ? good : bad);
  }

  bool benchmark_;  // and not deterministic
};

class Numerics : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Benchmark, Numerics, testing::Bool());

TEST_P(Numerics, AreSetInEveryLoopAndRestored) {
  TrainConfig config = training_in(Precision::fp32);
  config.matmul_precision = MatmulPrecision::high;
  config.benchmark = GetParam();
  config.deterministic = GetParam() ? Determinism::off : Determinism::warn;
  config.detect_anomaly = true;
  Session session = Session::single(config);
  Trainer trainer(session);
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  const std::vector<std::pair<const char*, std::function<void(Task&)>>> loops{
      {"fit", [&](Task& task) { trainer.fit(task, data); }},
      {"validate", [&](Task& task) { trainer.validate(task, data); }},
      {"test", [&](Task& task) { trainer.test(task, data); }},
      {"predict", [&](Task& task) { trainer.predict(task, data); }}};
  for (const auto& [name, loop] : loops) {
    SeesNumerics task(GetParam());
    loop(task);
    EXPECT_GT(task.good, 0) << name;
    EXPECT_EQ(task.bad, 0) << name;
    const at::Context& context = at::globalContext();
    EXPECT_FALSE(context.deterministicAlgorithms()) << name;
    EXPECT_FALSE(context.benchmarkCuDNN()) << name;
    EXPECT_EQ(context.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGHEST) << name;
    EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled()) << name;
  }
}

TEST(NumericsScope, LeavesPrecisionsThatTheProgramSetsPerBackend) {
  at::Context& context = at::globalContext();
  const auto set = [&] {
    context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL, at::Float32Precision::TF32);
  };
  const auto fit_with = [](TrainConfig config, const std::function<void()>& at_start) {
    config.max_epochs = 1;
    config.batch_size = 8;
    Session session = Session::single(in_memory(config));
    DataLoader data(tiny_data(32), session.plan.loader, session.world);
    TinyTask task;
    Trainer(session).on(Stage::fit_start, [&](const StageContext&) { at_start(); }).fit(task, data);
  };
  const TrainConfig deterministic{.deterministic = Determinism::warn};
  fit_with(deterministic, set);  // in a callback
  EXPECT_ANY_THROW(context.float32MatmulPrecision());
  fit_with(deterministic, [] {});  // before a fit
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_EQ(context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL), at::Float32Precision::TF32);
  const TrainConfig high{.matmul_precision = MatmulPrecision::high};
  EXPECT_THAT(message_of<ConfigError>([&] { fit_with(high, [] {}); }),
              testing::HasSubstr("setFloat32Precision(): lockstep could not restore both"));
  context.setFloat32MatmulPrecision("highest");
  fit_with(high, [&] {  // the end of the fit calls no getter that throws
    context.setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, at::Float32Precision::BF16);
    EXPECT_ANY_THROW(context.float32MatmulPrecision());
  });
  EXPECT_EQ(context.float32MatmulPrecision(), at::Float32MatmulPrecision::HIGHEST);
}

TEST(LrScaling, FollowsTheGlobalBatch) {
  const auto rate = [](LrScaling scaling, std::int64_t batch, std::int64_t reference) {
    double lr = 0;
    thread_world(2, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 1});
      config.global_batch_size = batch;
      config.optim.lr_scaling = scaling;
      config.optim.lr_batch_size = reference;
      const Plan plan = plan_for(world.size(), config);
      DataLoader data(tiny_data(32), plan.loader, world);
      TinyTask task(sgd({.lr = 0.01}));
      Trainer trainer(plan, world);
      trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
        if (world.is_main()) {
          lr = context.step.lr;
        }
      }));
      trainer.fit(task, data);
    });
    return lr;
  };
  EXPECT_DOUBLE_EQ(rate(LrScaling::none, 16, 4), 0.01);
  EXPECT_DOUBLE_EQ(rate(LrScaling::linear, 16, 4), 0.04);
  EXPECT_DOUBLE_EQ(rate(LrScaling::sqrt, 16, 4), 0.02);
  EXPECT_DOUBLE_EQ(rate(LrScaling::sqrt, 16, 1), 0.04);
}

/// Its outputs have a count, as those of a language model with padding.
class CountingTask final : public TinyTask {
 public:
  using TinyTask::TinyTask;
  StepOutput training_step(const Batch& batch) override {
    StepOutput out(at::mse_loss(net_(batch.input), batch.target));
    out.count = at::full({}, batch.samples);
    return out;
  }
};

// SGD cannot tell a scaled loss from a scaled learning rate.
TEST(LossScaling, ScalesGradientsAndNotTheReportedLoss) {
  struct Trained {
    at::Tensor weights{};
    double loss = 0;
  };
  const auto train = [](int ranks, LrScaling lr, LrScaling loss, bool counts) {
    Trained found;
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 1});
      config.batch_size = 1;
      config.global_batch_size = 16;
      config.optim.lr_scaling = lr;
      config.optim.loss_scaling = loss;
      config.optim.lr_batch_size = 4;
      const Plan plan = plan_for(world.size(), config);
      DataLoader data(tiny_data(32), plan.loader, world);
      TinyTask plain(sgd({.lr = 0.01}));
      CountingTask counting(sgd({.lr = 0.01}));
      TinyTask& task = counts ? counting : plain;
      const FitResult result = Trainer(plan, world).fit(task, data);
      if (world.is_main()) {
        found = {task.module().parameters().front().detach().clone(), result.metrics.front().second};
      }
    });
    return found;
  };
  for (const int ranks : {1, 2}) {
    for (const bool counts : {false, true}) {
      const Trained plain = train(ranks, LrScaling::none, LrScaling::none, counts);
      for (const LrScaling scaling : {LrScaling::linear, LrScaling::sqrt}) {
        const Trained by_rate = train(ranks, scaling, LrScaling::none, counts);
        const Trained by_loss = train(ranks, LrScaling::none, scaling, counts);
        EXPECT_TRUE(at::allclose(by_loss.weights, by_rate.weights, 1e-5, 1e-7)) << ranks << counts;
        EXPECT_NEAR(by_loss.loss, by_rate.loss, 1e-5);
        EXPECT_FALSE(at::allclose(by_loss.weights, plain.weights, 1e-5, 1e-7)) << "the control";
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
