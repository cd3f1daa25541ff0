// What a task may do in a step, and what it may return.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>
#include <lockstep/metrics/classification.h>
#include <lockstep/optim/optimizers.h>

#include "base/mapped.h"
#include "support/at_stage.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

static_assert(!std::is_copy_constructible_v<OptimizerStep> && !std::is_move_constructible_v<OptimizerStep>,
              "a copy would count its own forwards and losses");

/// Trains the task on one rank, in steps of two micro-batches of 4 samples.
FitResult fit_alone(Task& task, TrainConfig config = {}) {
  config.max_epochs = 1;
  config.batch_size = 4;
  config.accumulation = 2;
  Session session = Session::single(in_memory(config));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  return Trainer(session).fit(task, data);
}

/// What a fit with a task of its own for each rank throws.
template <class AnyTask>
std::string refusal_of(int ranks, std::int64_t samples = 32) {
  return message_of([&] {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4, .accumulation = 2}));
      AnyTask task;
      DataLoader data(tiny_data(samples), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
  });
}

/// A step that works with copies of the batches, as one that mixes samples does.
class Copying final : public TinyTask {
 public:
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    optimizer.zero_grad();
    for (Batch batch : step.batches()) {  // NOLINT(performance-for-range-copy)
      const auto out = optimizer.forward(batch, [this](const Batch& b) { return training_step(b); });
      optimizer.backward(out);
      step.add(out);
    }
    optimizer.update();
  }
};

TEST(Step, TakesCopiesOfItsBatches) {
  for (const int ranks : {1, 2}) {
    std::vector<std::vector<at::Tensor>> copied(static_cast<std::size_t>(ranks));
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4, .accumulation = 2}));
      Copying task;
      TinyTask reference;
      for (Task* each : std::vector<Task*>{&task, &reference}) {
        DataLoader data(tiny_data(32), plan.loader, world);
        Trainer(plan, world).fit(*each, data);
      }
      EXPECT_TRUE(are_equal(weights_of(task), weights_of(reference))) << ranks;
      copied[static_cast<std::size_t>(world.rank())] = weights_of(task);
    });
    EXPECT_TRUE(are_equal(copied.front(), copied.back()));
  }
}

class OneLossForTwo final : public Task {
 public:
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec a(sgd({.lr = 0.1}));
    a.module = first_.get();
    OptimizerSpec b(sgd({.lr = 0.1}));
    b.module = second_.get();
    return {a, b};
  }
  void optimize(Step& step) override {
    step.optimizer(0).zero_grad();
    step.optimizer(1).zero_grad();
    for (const Batch& batch : step.batches()) {
      const auto out = step.optimizer(0).forward(
          batch, [&](const Batch& b) -> StepOutput { return at::mse_loss(net_->forward(b.input), b.target); });
      step.optimizer(0).backward(out);
    }
    step.optimizer(0).update();
    step.optimizer(1).update();
  }

 private:
  torch::nn::Linear first_{4, 4};
  torch::nn::Linear second_{4, 1};
  torch::nn::Sequential net_{first_, second_};
};

class LeavesOutIdleBatches final : public TinyTask {
 public:
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    optimizer.zero_grad();
    for (const Batch& batch : step.batches()) {
      if (batch.samples > 0) {
        optimizer.backward(optimizer.forward(batch, [this](const Batch& b) { return training_step(b); }));
      }
    }
    optimizer.update();
  }
};

class LeavesOutABackward final : public TinyTask {
 public:
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    optimizer.zero_grad();
    StepOutput last;
    for (const Batch& batch : step.batches()) {
      if (last.loss.defined()) {
        optimizer.backward(last);
      }
      last = optimizer.forward(batch, [this](const Batch& b) { return training_step(b); });
    }
    optimizer.update();
  }
};

TEST(Step, RefusesAnUpdateWithoutTheGradientsOfAllBatches) {
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(refusal_of<OneLossForTwo>(ranks),
                AllOf(HasSubstr("Step::optimizer(1) updates after the forward of 0 of 2 batches"),
                      HasSubstr("one loss cannot train two optimizers")));
    EXPECT_THAT(refusal_of<LeavesOutABackward>(ranks),
                HasSubstr("Step::optimizer(0) updates after the forward of 2 of 2 batches, and without the backward"));
  }
  EXPECT_THAT(refusal_of<LeavesOutIdleBatches>(2, /*samples=*/17),
              AllOf(HasSubstr("the forward of 0 of 1 batches"), HasSubstr("also for one without samples")));
}

/// When a step of ActorCritic calls its backwards and updates.
enum class Order { critic_first, interleaved, frozen, actor_first };

/// The loss of the actor goes through the critic. Both updates come last, so both gradients are of the same weights.
class ActorCritic final : public Task {
 public:
  explicit ActorCritic(Order order) : order_(order) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : net_->parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec critic(sgd({.lr = 0.1}));
    critic.module = critic_.get();
    OptimizerSpec actor(sgd({.lr = 0.1}));
    actor.module = actor_.get();
    return {critic, actor};
  }
  void optimize(Step& step) override {
    const std::size_t first = order_ == Order::actor_first ? 1 : 0;
    if (order_ == Order::interleaved) {
      step.optimizer(0).zero_grad();
      step.optimizer(1).zero_grad();
      for (const Batch& batch : step.batches()) {
        add_gradients(step, 0, batch);
        add_gradients(step, 1, batch);
      }
    } else {
      for (const std::size_t number : {first, 1 - first}) {
        step.optimizer(number).zero_grad();  // drops what the actor's backward has added to the critic
        for (const Batch& batch : step.batches()) {
          add_gradients(step, number, batch);
        }
      }
    }
    step.optimizer(0).update();
    step.optimizer(1).update();
  }

 private:
  void add_gradients(Step& step, std::size_t number, const Batch& batch) {
    const auto set_frozen = [&](bool frozen) {
      for (at::Tensor& parameter : critic_->parameters()) {
        parameter.set_requires_grad(!frozen);
      }
    };
    OptimizerStep& optimizer = step.optimizer(number);
    set_frozen(number == 1 && order_ == Order::frozen);
    const StepOutput out = optimizer.forward(batch, [&](const Batch& b) -> StepOutput {
      return number == 0 ? at::mse_loss(critic_(b.input), b.target) : critic_(actor_(b.input)).square().mean();
    });
    set_frozen(false);
    optimizer.backward(out);
    step.add(out);
  }

  Order order_;
  torch::nn::Linear actor_{4, 4};
  torch::nn::Linear critic_{4, 1};
  torch::nn::Sequential net_{actor_, critic_};
};

/// The same on all ranks.
std::vector<at::Tensor> trained_in(Order order, int ranks) {
  std::vector<std::vector<at::Tensor>> weights(static_cast<std::size_t>(ranks));
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4, .accumulation = 2}));
    ActorCritic task(order);
    DataLoader data(tiny_data(64), plan.loader, world);
    Trainer(plan, world).fit(task, data);
    weights[static_cast<std::size_t>(world.rank())] = weights_of(task);
  });
  EXPECT_TRUE(are_equal(weights.front(), weights.back()));
  return weights.front();
}

TEST(Step, RefusesAnUpdateWithGradientsThatTheBackwardOfAnotherOptimizerChanged) {
  for (const int ranks : {1, 2}) {
    for (const Order order : {Order::critic_first, Order::interleaved}) {
      EXPECT_THAT(message_of([&] { trained_in(order, ranks); }),
                  AllOf(HasSubstr("the backward of Step::optimizer(1) changed the gradients of Step::optimizer(0)"),
                        HasSubstr("call update() of optimizer 0 before the backward of optimizer 1")));
    }
    EXPECT_TRUE(are_equal(trained_in(Order::frozen, ranks), trained_in(Order::actor_first, ranks))) << ranks;
  }
}

/// How the parameters of one module are given to two optimizers.
enum class Division { by_modules, by_groups };

/// Two layers, each with an optimizer and a loss of its own.
class TwoLayers final : public Task {
 public:
  TwoLayers(Division division, bool updates_last) : division_(division), updates_last_(updates_last) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : net_->parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec first(sgd({.lr = 0.1, .momentum = 0.9}));
    OptimizerSpec second(adamw({.lr = 0.1}));
    if (division_ == Division::by_modules) {
      first.module = layers_[0].get();
      second.module = layers_[1].get();
    } else {
      first.groups = {{.select = named("0.*")}};
      second.groups = {{.select = named("1.*")}};
    }
    return {first, second};
  }
  void optimize(Step& step) override {
    for (std::size_t i = 0; i < 2; ++i) {
      OptimizerStep& optimizer = step.optimizer(i);
      optimizer.zero_grad();
      for (const Batch& batch : step.batches()) {
        const StepOutput out = optimizer.forward(
            batch, [&](const Batch& b) -> StepOutput { return at::mse_loss(layers_[i](b.input), b.target); });
        optimizer.backward(out);
        step.add(out);
      }
      if (!updates_last_) {
        optimizer.update();
      }
    }
    for (std::size_t i = 0; updates_last_ && i < 2; ++i) {
      step.optimizer(i).update();
    }
  }

 private:
  Division division_;
  bool updates_last_;
  std::vector<torch::nn::Linear> layers_{torch::nn::Linear(4, 1), torch::nn::Linear(4, 1)};
  torch::nn::Sequential net_{layers_[0], layers_[1]};
};

/// The same on all ranks. Each entry of `stops`: a start that ends after this step; 0: at the end of the training. The
/// last step of an epoch has one sample.
std::vector<at::Tensor> layers_trained_in(TrainConfig config, Division division, bool updates_last,
                                          const std::vector<std::int64_t>& stops = {0}) {
  const TempDir dir;
  std::vector<std::vector<at::Tensor>> weights(static_cast<std::size_t>(config.nprocs));
  config = in_memory(config);
  config.max_epochs = 2;
  config.batch_size = 4;
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = stops.size() > 1;
  for (const std::int64_t stop : stops) {
    config.max_steps = stop;
    thread_world(config.nprocs, [&](World& world) {
      const Plan plan = plan_for(config.nprocs, config);
      TwoLayers task(division, updates_last);
      DataLoader data(tiny_data(33), plan.loader, world);
      Trainer(plan, world).fit(task, data);
      weights[static_cast<std::size_t>(world.rank())] = weights_of(task);
    });
  }
  EXPECT_TRUE(are_equal(weights.front(), weights.back()));
  return weights.front();
}

TEST(Step, TrainsTwoOptimizersThatGroupsDivide) {
  const std::vector<at::Tensor> before = [] {
    TwoLayers task(Division::by_groups, false);
    return weights_of(task);
  }();
  for (const int ranks : {1, 2, 3}) {
    for (TrainConfig config : {TrainConfig{}, TrainConfig{.accumulation = 2, .optim = {.max_grad_norm = 0.5}},
                               TrainConfig{.optim = {.non_finite = NonFinitePolicy::skip}},
                               TrainConfig{.dist = {.shard_optimizer = true}}}) {
      config.nprocs = ranks;
      const std::vector<at::Tensor> expected = layers_trained_in(config, Division::by_modules, false);
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_FALSE(at::equal(before[i], expected[i])) << "the control: all are trained";
      }
      EXPECT_TRUE(are_equal(layers_trained_in(config, Division::by_modules, true), expected)) << ranks;
      EXPECT_TRUE(are_equal(layers_trained_in(config, Division::by_groups, false), expected)) << ranks;
      EXPECT_TRUE(are_equal(layers_trained_in(config, Division::by_groups, true), expected)) << ranks;
      EXPECT_TRUE(are_equal(layers_trained_in(config, Division::by_groups, true, {3, 0}), expected)) << ranks;
    }
  }
}

/// What the fit of a task with these groups, one optimizer for each, writes to standard error.
std::string told_about(const std::vector<std::string>& patterns) {
  class Divided final : public TinyTask {
   public:
    explicit Divided(const std::vector<std::string>& patterns) : patterns_(patterns) {}
    std::vector<OptimizerSpec> optimizers() override {
      return mapped(patterns_, [](const std::string& pattern) {
        OptimizerSpec spec(sgd());
        spec.groups = {{.select = named(pattern)}};
        return spec;
      });
    }
    void optimize(Step& step) override {
      for (std::size_t i = 0; i < step.optimizer_count(); ++i) {
        update_with(i, step, [this](const Batch& batch) { return training_step(batch); });
      }
    }

   private:
    const std::vector<std::string>& patterns_;
  } task(patterns);
  CapturedStderr captured;
  fit_alone(task);
  return captured.text();
}

TEST(Step, TellsOfParametersThatNoOptimizerTrains) {
  EXPECT_THAT(told_about({"weight", "bias"}), Not(HasSubstr("no optimizer trains")));
  EXPECT_THAT(told_about({"weight"}), AllOf(HasSubstr("no optimizer trains 1 of 2 parameters: bias; select them"),
                                            Not(HasSubstr("got no gradient"))));
  EXPECT_THAT(message_of<ConfigError>([] {
                told_about({"weight", "*"});
              }),
              AllOf(HasSubstr("optimizer 0 ('main') and optimizer 1 ('main') both have the parameter weight"),
                    HasSubstr("by OptimizerSpec::module or groups")));
}

/// Clears the gradients of the module before the update.
class ClearsGradients final : public TinyTask {
 public:
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    optimizer.zero_grad();
    for (const Batch& batch : step.batches()) {
      optimizer.backward(optimizer.forward(batch, [this](const Batch& b) { return training_step(b); }));
    }
    module().zero_grad();
    optimizer.update();
  }
};

TEST(Step, RefusesAFirstUpdateWithoutAnyGradient) {
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(refusal_of<ClearsGradients>(ranks),
                AllOf(HasSubstr("2 of 2 parameters got no gradient on rank"),
                      HasSubstr("they are all that optimizer 'main' trains"),
                      HasSubstr("nothing may clear gradients between the backward and the update")));
  }
}

class WithoutZeroGrad : public TinyTask {
 public:
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    for (const Batch& batch : step.batches()) {
      const auto out = optimizer.forward(batch, [this](const Batch& b) { return training_step(b); });
      optimizer.backward(out);
      step.add(out);
    }
    if (ends_update(step)) {
      optimizer.update();
    }
  }

 protected:
  virtual bool ends_update(const Step&) { return true; }
};

/// Adds up the gradients of two steps.
class EverySecondStep final : public WithoutZeroGrad {
 public:
  void optimize(Step& step) override {
    if (step.number() % 2 == 0) {
      step.optimizer().zero_grad();
    }
    WithoutZeroGrad::optimize(step);
  }

 private:
  bool ends_update(const Step& step) override { return step.number() % 2 == 1; }
};

/// Its closure adds to the gradients of the one before.
class ClosureWithoutZeroGrad final : public TinyTask {
 public:
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    const auto closure = [&] {
      StepOutput last;
      for (const Batch& batch : step.batches()) {
        last = optimizer.forward(batch, [this](const Batch& b) { return training_step(b); });
        optimizer.backward(last);
      }
      return last;
    };
    step.add(optimizer.minimize(closure));
  }
};

TEST(Step, RefusesAnUpdateWithTheGradientsOfTheUpdateBefore) {
  for (const int ranks : {1, 2}) {
    for (const std::string& refusal :
         {refusal_of<WithoutZeroGrad>(ranks, 64), refusal_of<ClosureWithoutZeroGrad>(ranks, 64)}) {
      EXPECT_THAT(refusal, AllOf(HasSubstr("Step::optimizer(0) updates with gradients of its last update"),
                                 HasSubstr("call OptimizerStep::zero_grad()")));
    }
    EXPECT_EQ(refusal_of<EverySecondStep>(ranks, 64), "no error");
  }
}

/// Its loss is a mean over a number that it is given, with a gradient of 1 for each weight.
class Counting final : public Task {
 public:
  explicit Counting(double count) : count_(count) {
    const at::NoGradGuard no_grad;
    net_->weight.fill_(1);
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 1})}; }
  StepOutput training_step(const Batch& batch) override {
    StepOutput out(net_->weight.sum() + 0 * batch.input.sum());
    out.count = at::full({}, count_, at::kFloat);
    return out;
  }
  double gradient() const { return net_->weight.grad().to(at::kDouble).mean().item<double>(); }

 private:
  double count_;
  torch::nn::Linear net_{torch::nn::LinearOptions(4, 1).bias(false)};
};

TEST(Counts, GiveExactMeansInEveryPrecision) {
  for (const auto& [precision, rounding] : {std::pair(Precision::fp32, 1e-7), std::pair(Precision::fp64, 1e-15),
                                            std::pair(Precision::bf16, 0.0), std::pair(Precision::fp16, 0.0)}) {
    for (const double count : {3.0, 257.0, 65536.0}) {
      for (const int ranks : {1, 2}) {
        thread_world(ranks, [&, precision = precision, rounding = rounding](World& world) {
          const Plan plan = plan_for(ranks, in_memory({.precision = precision, .max_epochs = 1, .batch_size = 4}));
          Counting task(count);
          double gradient = 0;
          DataLoader data(tiny_data(4 * ranks), plan.loader, world);
          Trainer trainer(plan, world);
          trainer.add(at_stage(Stage::step_end, [&](const StageContext&) { gradient = task.gradient(); }));
          trainer.fit(task, data);
          EXPECT_NEAR(gradient, 1, rounding) << "precision " << static_cast<int>(precision) << ", count " << count;
        });
      }
    }
  }
}

TEST(Loss, TimesSamplesMayExceedTheRangeOfHalfPrecision) {
  class Large final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override { return net_(batch.input).sum() * 0 + 30000; }
  };
  Large task;
  const FitResult result = fit_alone(task, {.precision = Precision::fp16, .report = {.every_steps = 1}});
  EXPECT_EQ(result.metrics.front(), std::pair(std::string("loss"), 30000.0));
}

/// Counts what it validates, and has no loss for it.
class WithoutLoss final : public TinyTask {
 public:
  explicit WithoutLoss(bool has_metric = false) : has_metric_(has_metric) {}
  StepOutput validation_step(const Batch& batch) override {
    accuracy_.update((net_(batch.input) > 0).to(at::kLong), (batch.target > 0).to(at::kLong));
    StepOutput out;
    if (has_metric_) {
      out.metrics = {{"mean", batch.target.mean()}};
    }
    return out;
  }
  std::vector<metrics::NamedMetric> metrics() override { return {{"accuracy", accuracy_}}; }

 private:
  bool has_metric_;
  metrics::Accuracy accuracy_{{.task = metrics::Classification::binary}};
};

TEST(Validation, NeedsNoLoss) {
  for (const int ranks : {1, 2}) {
    for (const bool has_metric : {false, true}) {
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4}));
        WithoutLoss task(has_metric);
        DataLoader data(tiny_data(16), plan.loader, world);
        DataLoader val(tiny_data(9), plan.eval_loader, world);
        const Metrics found = Trainer(plan, world).validate(task, val);
        ASSERT_EQ(found.size(), has_metric ? 2U : 1U);
        EXPECT_EQ(found.back().first, "accuracy");
        if (has_metric) {
          EXPECT_EQ(found.front().first, "mean");
          EXPECT_NEAR(
              found.front().second,
              tiny_data(9)->get(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8}, {}).target.mean().item<double>(),
              1e-6);
        }
        Trainer(plan, world).fit(task, data, &val);
      });
    }
  }
}

TEST(StepOutput, IsCheckedWhereItIsReturned) {
  class Returns : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      StepOutput out = TinyTask::training_step(batch);
      change(out);
      return out;
    }
    virtual void change(StepOutput& out) = 0;
  };
  class RowOfCounts final : public Returns {
    void change(StepOutput& out) override { out.count = at::ones({1}); }
  };
  class UndefinedMetric final : public Returns {
    void change(StepOutput& out) override { out.metrics = {{"extra", at::Tensor()}}; }
  };
  class ComplexMetric final : public Returns {
    void change(StepOutput& out) override { out.metrics = {{"phase", at::ones({}, at::kComplexFloat)}}; }
  };
  class ComplexLoss final : public Returns {
    void change(StepOutput& out) override { out.loss = at::complex(out.loss, out.loss); }
  };
  class InfiniteCount final : public Returns {
    void change(StepOutput& out) override { out.count = at::full({}, INFINITY); }
  };
  class Detached final : public Returns {
    void change(StepOutput& out) override { out.loss = out.loss.detach(); }
  };
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(refusal_of<RowOfCounts>(ranks), HasSubstr("StepOutput::count has shape [1], expected a scalar"));
    EXPECT_THAT(refusal_of<UndefinedMetric>(ranks), HasSubstr("metric extra is an undefined tensor"));
    EXPECT_THAT(refusal_of<ComplexMetric>(ranks), HasSubstr("metric phase is complex, expected a real number"));
    EXPECT_THAT(refusal_of<ComplexLoss>(ranks), HasSubstr("the loss is complex, expected a real number"));
    EXPECT_THAT(refusal_of<InfiniteCount>(ranks), HasSubstr("StepOutput::count is inf, expected a finite number"));
    EXPECT_THAT(refusal_of<Detached>(ranks),
                HasSubstr("the loss does not depend on a parameter that requires gradients"));
  }
}

TEST(StepOutput, HasTheMetricsOfItsForward) {
  class OfItsState final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      calls_ += 1;
      return {at::mse_loss(net_(batch.input), batch.target),
              {{"bias", net_->bias}, {"view", net_->bias.squeeze()}, {"calls", calls_}}};
    }

   private:
    at::Tensor calls_ = at::zeros({});
  };
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 2, .accumulation = 2}));
      OfItsState task;
      DataLoader data(tiny_data(4 * ranks), plan.loader, world);
      const float before = weights_of(task).back().item<float>();
      const FitResult result = Trainer(plan, world).fit(task, data);
      EXPECT_EQ(result.state.step, 1);
      EXPECT_NE(weights_of(task).back().item<float>(), before);
      for (const auto& [name, expected] : {std::pair{"bias", before}, {"view", before}, {"calls", 1.5F}}) {
        EXPECT_THAT(result.metrics, testing::Contains(testing::Pair(name, testing::DoubleNear(expected, 1e-6))));
      }
    });
  }
}

TEST(Fit, TrainsUnderANoGradGuardAndNotInInferenceMode) {
  TinyTask task;
  TinyTask reference;
  fit_alone(reference);
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 4, .accumulation = 2}));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  {
    const at::NoGradGuard no_grad;
    Trainer(session).fit(task, data);
    EXPECT_FALSE(at::GradMode::is_enabled());
  }
  EXPECT_TRUE(are_equal(weights_of(task), weights_of(reference)));
  const c10::InferenceMode inference;
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }), HasSubstr("inference mode"));
}

TEST(Fit, TrainsTheSameAfterALoopInInferenceMode) {
  class Predicting final : public TinyTask {
    NamedTensors predict_step(const Batch& batch) override { return {{"output", net_(batch.input)}}; }
  };
  using Loop = std::function<void(Trainer&, Task&, BatchSource&)>;
  const std::vector<std::pair<const char*, Loop>> loops{
      {"validate", [](Trainer& trainer, Task& task, BatchSource& data) { trainer.validate(task, data); }},
      {"test", [](Trainer& trainer, Task& task, BatchSource& data) { trainer.test(task, data); }},
      {"predict", [](Trainer& trainer, Task& task, BatchSource& data) { trainer.predict(task, data); }}};
  for (const Precision precision : {Precision::fp32, Precision::fp64, Precision::bf16}) {
    TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 4});
    config.precision = precision;
    TinyTask reference;
    fit_alone(reference, config);
    Session session = Session::single(config);
    DataLoader data(tiny_data(8), session.plan.eval_loader, session.world);
    for (const auto& [name, loop] : loops) {
      Predicting task;
      Trainer trainer(session);
      {
        const c10::InferenceMode inference;
        loop(trainer, task, data);
      }
      fit_alone(task, config);
      EXPECT_TRUE(are_equal(weights_of(task), weights_of(reference)))
          << name << " with precision " << static_cast<int>(precision);
    }
  }
}

/// Two losses of one step with names of their own, and a metric of every second step.
class Sometimes final : public TinyTask {
 public:
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    optimizer.zero_grad();
    for (const Batch& batch : step.batches()) {
      const auto out = optimizer.forward(batch, [this](const Batch& b) { return training_step(b); });
      optimizer.backward(out);
      step.add(out);
      StepOutput other;  // as the loss of another optimizer
      other.metrics = {{"other", at::full({}, 5.0)}};
      step.add(other);
      if (step.number() % 2 == 1) {
        step.add(StepOutput({}, {{"odd", at::full({}, static_cast<double>(step.number()))}}));
      }
    }
    optimizer.update();
  }
};

TEST(Step, MayHaveOtherMetricsThanOthers) {
  TinyTask reference;
  for (const int ranks : {1, 2}) {
    std::map<std::string, double> found;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4, .report = {.every_steps = 4}}));
      Sometimes task;
      DataLoader data(tiny_data(16 * ranks), plan.loader, world);
      const FitResult result = Trainer(plan, world).fit(task, data);
      TinyTask same;
      DataLoader again(tiny_data(16 * ranks), plan.loader, world);
      const FitResult expected = Trainer(plan, world).fit(same, again);
      if (world.is_main()) {
        found = {result.metrics.begin(), result.metrics.end()};
        EXPECT_EQ(found.at("loss"), expected.metrics.front().second) << "it has no part of the others";
      }
    });
    EXPECT_EQ(found.at("other"), 5);
    EXPECT_EQ(found.at("odd"), 2) << "the mean of the steps 1 and 3";
  }
}

TEST(Step, KnowsTheProgressOfTheRun) {
  class Watching final : public TinyTask {
   public:
    void optimize(Step& step) override {
      seen.push_back({step.state().step, step.state().epoch, step.state().samples});
      TinyTask::optimize(step);
    }
    std::vector<std::vector<std::int64_t>> seen{};
  };
  const TempDir dir;
  TrainConfig config = in_memory({.max_epochs = 2, .batch_size = 4, .run_dir = dir.path() / "run"});
  config.checkpoint.enabled = true;
  Watching task;
  for (const std::int64_t steps : {3, 0}) {
    config.max_steps = steps;
    Session session = Session::single(config);
    DataLoader data(tiny_data(8), session.plan.loader, session.world);
    Trainer(session).fit(task, data);
  }
  EXPECT_THAT(task.seen,
              ElementsAre(ElementsAre(0, 0, 0), ElementsAre(1, 0, 4), ElementsAre(2, 1, 8), ElementsAre(3, 1, 12)));
}

/// What each rank begins in one of the steps 4 to 15: reductions of gradients, and messages through World.
double collectives_per_step(int ranks, TrainConfig config) {
  config.batch_size = 2;
  config.max_steps = 15;
  const Plan plan = plan_for(ranks, in_memory(config));
  std::atomic<std::uint64_t> sum = 0;
  thread_world(ranks, [&](World& world) {
    std::uint64_t before = 0;
    TinyTask task(adamw({.lr = 0.01}));
    DataLoader data(tiny_data(1024), plan.loader, world);
    Trainer trainer(plan, world);
    const auto count = [&](const StageContext& at) {
      const std::uint64_t now = view(WorldAccess::progress(world)).collectives;
      if (at.state.step == 3) {
        before = now;
      } else if (at.state.step == 15) {
        sum += now - before;
      }
    };
    trainer.on(Stage::step_end, count, {.is_light = true});
    trainer.fit(task, data);
  });
  return static_cast<double>(sum) / (12.0 * ranks);
}

TEST(Step, CommunicatesNothingButItsGradients) {
  for (const int ranks : {2, 3}) {
    EXPECT_EQ(collectives_per_step(ranks, {.report = {.every_steps = 0}}), 1);
    EXPECT_EQ(collectives_per_step(ranks, {.accumulation = 3, .report = {.every_steps = 0}}), 1);
    EXPECT_EQ(collectives_per_step(ranks, {.max_time_s = 1e6,
                                           .optim = {.max_grad_norm = 1, .non_finite = NonFinitePolicy::skip},
                                           .validate = {.every_s = 1e6},
                                           .report = {.every_steps = 0, .every_s = 1e6}}),
              1);
    EXPECT_GT(collectives_per_step(ranks, {.report = {.every_steps = 4}}), 1) << "the control: three reports";
  }
}

}  // namespace
}  // namespace lockstep
