#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>

#include "optim/param_groups.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/tensors.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

NamedTensors make_parameters() {
  return {{"a.weight", at::arange(6, at::kFloat).view({2, 3})}, {"a.bias", at::ones({3})}, {"late", at::ones({2})}};
}

void train(BuiltOptimizer& built, const NamedTensors& parameters, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (const auto& [name, parameter] : parameters) {
      const bool absent = name == "late" && step < 6;
      parameter.mutable_grad() = absent ? at::Tensor() : at::sin(parameter + step);
    }
    built.optimizer->step();
  }
}

template <class Optimizer, class Options>
OptimizerFactory torch_factory(Options options) {
  return [options](ParamGroups groups) -> OptimizerPtr { return std::make_unique<Optimizer>(groups, options); };
}

struct Case {
  const char* name;
  OptimizerFactory make;
};

class OptimizerState : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    All, OptimizerState,
    testing::Values(
        Case{"fused_adamw", adamw({.lr = 0.1})}, Case{"fused_sgd", sgd({.lr = 0.1, .momentum = 0.9})},
        Case{"plain_sgd", sgd({.lr = 0.1})}, Case{"fused_adam", adam({.lr = 0.1, .amsgrad = true})},
        Case{"rmsprop_rule", rmsprop({.momentum = 0.9, .centered = true})}, Case{"adagrad_rule", adagrad()},
        Case{"adadelta_rule", adadelta()}, Case{"adamax_rule", adamax()}, Case{"nadam_rule", nadam()},
        Case{"radam_rule", radam()}, Case{"asgd_rule", asgd({.t0 = 3})}, Case{"rprop_rule", rprop()},
        Case{"lion_rule", lion()},
        Case{"fused_adamw_without_decay_of_vectors", adamw({.lr = 0.1, .no_decay_vectors = true})},
        Case{"fused_adam_without_decay_of_vectors", adam({.lr = 0.1, .no_decay_vectors = true})},
        Case{"fused_sgd_without_decay_of_vectors", sgd({.lr = 0.1, .momentum = 0.9, .no_decay_vectors = true})},
        Case{"muon_rules_without_decay_of_vectors", muon({.adamw = {.no_decay_vectors = true}})},
        Case{"adafactor_rule", adafactor()}, Case{"muon_rules", muon({.adamw = {.amsgrad = true}})},
        Case{"prodigy_rule", prodigy({.d0 = 0.01})}, Case{"schedule_free_adamw_rule", schedule_free_adamw()},
        Case{"adamw", torch_factory<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1))},
        Case{"adam_amsgrad", torch_factory<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true))},
        Case{"sgd", torch_factory<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))},
        Case{"adagrad", torch_factory<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1))},
        Case{"rmsprop",
             torch_factory<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true))}),
    [](const auto& test) { return test.param.name; });

TEST_P(OptimizerState, ContinuesBitwiseAfterARoundTrip) {
  const NamedTensors straight = make_parameters();
  const NamedTensors resumed = make_parameters();
  BuiltOptimizer first = build_optimizer(GetParam().make, straight);
  train(first, straight, 0, 5);
  const NamedTensors saved = copies(optimizer_state(first));

  BuiltOptimizer second = build_optimizer(GetParam().make, resumed);
  train(second, resumed, 20, 22);  // its states and "late"'s must go
  for (std::size_t i = 0; i < straight.size(); ++i) {
    resumed[i].second.copy_(straight[i].second);
  }
  load_optimizer_state(second, saved);
  EXPECT_EQ(names(optimizer_state(second)), names(saved));
  train(first, straight, 5, 9);
  train(second, resumed, 5, 9);
  for (std::size_t i = 0; i < straight.size(); ++i) {
    EXPECT_TRUE(at::equal(straight[i].second, resumed[i].second)) << straight[i].first;
  }
}

// As a rollback after the first step: the states that it made are gone, and the gradients are the same tensors as
// before.
TEST_P(OptimizerState, ContinuesBitwiseAfterItsFirstStepIsTakenBack) {
  const NamedTensors straight = make_parameters();
  const NamedTensors rolled_back = make_parameters();
  BuiltOptimizer first = build_optimizer(GetParam().make, straight);
  BuiltOptimizer second = build_optimizer(GetParam().make, rolled_back);
  const NamedTensors before = copies(optimizer_state(second));
  train(second, rolled_back, 0, 1);
  for (std::size_t i = 0; i < straight.size(); ++i) {
    rolled_back[i].second.copy_(straight[i].second);
  }
  load_optimizer_state(second, before);
  train(first, straight, 0, 5);
  train(second, rolled_back, 0, 5);
  EXPECT_TRUE(are_equal(straight, rolled_back));
  EXPECT_TRUE(are_equal(optimizer_state(first), optimizer_state(second)));
}

// Such as the temperature of a softmax.
TEST_P(OptimizerState, IsOfParametersWithoutADimensionToo) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const NamedTensors scalars = {{"scale", at::full({}, 0.5, dtype)}};
    const NamedTensors vectors = {{"scale", at::full({1}, 0.5, dtype)}};
    BuiltOptimizer first = build_optimizer(GetParam().make, scalars);
    BuiltOptimizer second = build_optimizer(GetParam().make, vectors);
    train(first, scalars, 0, 3);
    train(second, vectors, 0, 3);
    EXPECT_TRUE(at::equal(scalars[0].second.view({1}), vectors[0].second)) << dtype;
    if (dtype != at::kBFloat16) {  // small changes are lost in it
      EXPECT_FALSE(at::equal(scalars[0].second, at::full({}, 0.5, dtype))) << dtype;
    }
    EXPECT_EQ(names(optimizer_state(first)), names(optimizer_state(second))) << dtype;
  }
}

// As a training in which all parameters are frozen, and one that is resumed then, before they train again.
TEST_P(OptimizerState, ContinuesBitwiseAfterAllParametersWereFrozen) {
  const NamedTensors straight = make_parameters();
  const NamedTensors resumed = make_parameters();
  BuiltOptimizer first = build_optimizer(GetParam().make, straight);
  train(first, straight, 0, 7);
  for (std::size_t i = 0; i < straight.size(); ++i) {
    resumed[i].second.copy_(straight[i].second);
  }
  BuiltOptimizer frozen = build_optimizer(GetParam().make, {}, {}, straight);
  take_over(frozen, first);
  set_rates(frozen, {});
  frozen.optimizer->step();
  EXPECT_TRUE(are_equal(straight, resumed));
  BuiltOptimizer loaded = build_optimizer(GetParam().make, {}, {}, resumed);
  load_optimizer_state(loaded, copies(optimizer_state(frozen)));

  BuiltOptimizer again = build_optimizer(GetParam().make, straight);
  take_over(again, frozen);
  BuiltOptimizer resumed_again = build_optimizer(GetParam().make, resumed);
  take_over(resumed_again, loaded);
  train(again, straight, 7, 12);
  train(resumed_again, resumed, 7, 12);
  EXPECT_TRUE(are_equal(straight, resumed));
}

// Their numbers of steps are the same in the end, and the learning rates of these steps are not.
TEST(RuleOptimizer, TrainsParametersThatWereFrozenInTurnAsIfEachWereAlone) {
  for (const auto& [name, make] : {Case{"asgd", asgd({.lambd = 0.1})}, Case{"nadam", nadam()},
                                   Case{"schedule_free_adamw", schedule_free_adamw()}}) {
    const auto train_both = [](const NamedTensors& parameters, const std::vector<BuiltOptimizer*>& optimizers) {
      for (int step = 0; step < 30; ++step) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const bool is_frozen = step < 20 && (step < 10) != (i == 0);
          const at::Tensor& parameter = parameters[i].second;
          parameter.mutable_grad() = is_frozen ? at::Tensor() : at::sin(parameter + step);
        }
        for (BuiltOptimizer* built : optimizers) {
          built->optimizer->param_groups().front().options().set_lr(0.1 / (1 + step));
          built->optimizer->step();
        }
      }
    };
    const NamedTensors together = {{"a", at::ones({3})}, {"b", at::arange(4, at::kFloat)}};
    const NamedTensors alone = copies(together);
    BuiltOptimizer both = build_optimizer(make, together);
    BuiltOptimizer a = build_optimizer(make, {alone[0]});
    BuiltOptimizer b = build_optimizer(make, {alone[1]});
    train_both(together, {&both});
    train_both(alone, {&a, &b});
    EXPECT_TRUE(are_equal(together, alone)) << name;
  }
}

TEST(LoadOptimizerState, KnowsTheRuleOfAFrozenParameter) {
  const NamedTensors parameters = make_parameters();
  BuiltOptimizer trained = build_optimizer(muon(), parameters);
  train(trained, parameters, 0, 3);
  const NamedTensors saved = copies(optimizer_state(trained));
  BuiltOptimizer resumed = build_optimizer(muon(), {parameters[2]}, {}, {parameters[0], parameters[1]});
  load_optimizer_state(resumed, saved);
  expect_equal(optimizer_state(resumed), saved);
}

TEST(OptimizerStateNames, AreParameterAndField) {
  const NamedTensors parameters = make_parameters();
  BuiltOptimizer built = build_optimizer(adamw(), parameters);
  EXPECT_TRUE(optimizer_state(built).empty());
  train(built, parameters, 0, 3);
  const NamedTensors state = optimizer_state(built);
  EXPECT_THAT(names(state), ElementsAre("a.weight.step", "a.weight.exp_avg", "a.weight.exp_avg_sq", "a.bias.step",
                                        "a.bias.exp_avg", "a.bias.exp_avg_sq"));
  EXPECT_EQ(state[0].second.scalar_type(), at::kLong);
  EXPECT_EQ(state[0].second.dim(), 0);
  EXPECT_EQ(state[0].second.item<std::int64_t>(), 3);
}

TEST(OptimizerStateNames, AreThoseOfTorchAdamW) {
  const NamedTensors parameters = make_parameters();
  BuiltOptimizer theirs = build_optimizer(torch_factory<torch::optim::AdamW>(torch::optim::AdamWOptions()), parameters);
  train(theirs, parameters, 0, 3);
  BuiltOptimizer ours = build_optimizer(adamw(), parameters);
  load_optimizer_state(ours, copies(optimizer_state(theirs)));
  const NamedTensors a = optimizer_state(ours);
  const NamedTensors b = optimizer_state(theirs);
  ASSERT_EQ(names(a), names(b));
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].second, b[i].second)) << a[i].first;
  }
}

TEST(LoadOptimizerState, ReportsMismatchesAndChangesNothing) {
  const NamedTensors parameters = make_parameters();
  BuiltOptimizer built = build_optimizer(adamw(), parameters);
  train(built, parameters, 0, 2);
  const NamedTensors before = copies(optimizer_state(built));
  NamedTensors wrong = copies(before);
  wrong[0].second = at::full({}, 17, at::kLong);
  wrong[1].second = at::zeros({3, 2});
  wrong[2].first = "a.weight.exp_avg_squared";
  wrong[3].second = at::ones({2}, at::kLong);
  EXPECT_THAT([&] { load_optimizer_state(built, wrong); },
              ThrowsMessage<CheckpointError>(AllOf(HasSubstr("1 missing (a.weight.exp_avg_sq)"),
                                                   HasSubstr("1 unexpected (a.weight.exp_avg_squared)"),
                                                   HasSubstr("a.weight.exp_avg is Float [3, 2], expected Float [2, 3]"),
                                                   HasSubstr("a.bias.step is Long [2], expected Long []"))));
  const NamedTensors after = optimizer_state(built);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(at::equal(before[i].second, after[i].second)) << before[i].first;
  }
}

TEST(LoadOptimizerState, ShortensLongLists) {
  BuiltOptimizer built = build_optimizer(sgd(), {{"w", at::ones({1})}});
  NamedTensors extra;
  for (int i = 0; i < 13; ++i) {
    extra.emplace_back("x" + std::to_string(i), at::ones({1}));
  }
  EXPECT_THAT(
      [&] { load_optimizer_state(built, extra); },
      ThrowsMessage<CheckpointError>(HasSubstr("13 unexpected (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, and 3 more)")));
}

// A callback may write a rate before the first step, and all steps may be skipped.
TEST(LoadOptimizerState, OfProdigyWithoutAStepKeepsARateThatWasWritten) {
  const NamedTensors parameters = make_parameters();
  BuiltOptimizer built = build_optimizer(prodigy(), parameters);
  built.optimizer->param_groups().front().options().set_lr(0.5);
  const NamedTensors saved = copies(optimizer_state(built));
  BuiltOptimizer other = build_optimizer(prodigy(), parameters);
  train(other, parameters, 0, 2);  // its states must go
  load_optimizer_state(other, saved);
  EXPECT_EQ(names(optimizer_state(other)), names(saved));
  EXPECT_EQ(current_rate(other, 0).base, 0.5);
}

TEST(LoadOptimizerState, RefusesAnEmptyStateForAdagrad) {
  BuiltOptimizer built =
      build_optimizer(torch_factory<torch::optim::Adagrad>(torch::optim::AdagradOptions()), {{"w", at::ones({1})}});
  EXPECT_THAT([&] { load_optimizer_state(built, {}); },
              ThrowsMessage<CheckpointError>(HasSubstr("2 missing (w.step, w.sum)")));
}

/// One step on the same samples each time; the state has a memory from the second iteration on.
void train_lbfgs(BuiltOptimizer& built, const NamedTensors& parameters, int steps) {
  for (int step = 0; step < steps; ++step) {
    built.optimizer->step([&] {
      at::Tensor loss = at::zeros({}, at::kDouble);
      for (const auto& [name, parameter] : parameters) {
        const at::Tensor distance = parameter - 0.5;
        parameter.mutable_grad() = 4 * distance.pow(3) + 0.2 * distance;
        loss = loss + (distance.pow(4) + 0.1 * distance.pow(2)).sum().to(at::kDouble);
      }
      return loss;
    });
  }
}

class LbfgsState : public testing::TestWithParam<torch::optim::LBFGSOptions> {
 protected:
  BuiltOptimizer built_for(const NamedTensors& parameters) const {
    return build_optimizer(torch_factory<torch::optim::LBFGS>(GetParam()), parameters);
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, LbfgsState,
    testing::Values(torch::optim::LBFGSOptions(0.2).max_iter(1),  // the memory begins after the first step
                    torch::optim::LBFGSOptions(0.1).max_iter(3).history_size(2),
                    torch::optim::LBFGSOptions(1).max_iter(2).line_search_fn("strong_wolfe")));

TEST_P(LbfgsState, ContinuesBitwiseAfterARoundTripAtEveryStep) {
  for (const int saved_at : {0, 1, 2, 3, 5}) {
    SCOPED_TRACE(saved_at);
    const NamedTensors straight = make_parameters();
    const NamedTensors resumed = make_parameters();
    const NamedTensors without_state = make_parameters();
    BuiltOptimizer first = built_for(straight);
    train_lbfgs(first, straight, saved_at);
    const NamedTensors saved = copies(optimizer_state(first));

    BuiltOptimizer second = built_for(resumed);
    train_lbfgs(second, resumed, 4);  // its state must go
    BuiltOptimizer other = built_for(without_state);
    for (std::size_t i = 0; i < straight.size(); ++i) {
      resumed[i].second.copy_(straight[i].second);
      without_state[i].second.copy_(straight[i].second);
    }
    load_optimizer_state(second, saved);
    expect_equal(optimizer_state(second), saved);
    train_lbfgs(first, straight, 3);
    train_lbfgs(second, resumed, 3);
    train_lbfgs(other, without_state, 3);
    EXPECT_TRUE(are_equal(straight, resumed));
    EXPECT_EQ(are_equal(straight, without_state), saved_at == 0) << "the control: the state matters";
    expect_equal(optimizer_state(second), optimizer_state(first));
  }
}

TEST(LbfgsStateNames, BelongToTheOptimizer) {
  const NamedTensors parameters = make_parameters();
  BuiltOptimizer built =
      build_optimizer(torch_factory<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(2)), parameters);
  EXPECT_TRUE(optimizer_state(built).empty());
  train_lbfgs(built, parameters, 2);
  EXPECT_THAT(names(optimizer_state(built)),
              ElementsAre("optimizer:0.func_evals", "optimizer:0.n_iter", "optimizer:0.t", "optimizer:0.prev_loss",
                          "optimizer:0.d", "optimizer:0.H_diag", "optimizer:0.prev_flat_grad", "optimizer:0.old_dirs:0",
                          "optimizer:0.old_stps:0", "optimizer:0.ro:0"));
}

TEST(LoadLbfgsState, BeginsAnewWithOtherParametersAndRefusesALongerMemory) {
  const NamedTensors parameters = make_parameters();
  BuiltOptimizer built =
      build_optimizer(torch_factory<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(4)), parameters);
  train_lbfgs(built, parameters, 1);
  const NamedTensors saved = copies(optimizer_state(built));
  BuiltOptimizer smaller = build_optimizer(torch_factory<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1)),
                                           {parameters[0], parameters[1]});
  train_lbfgs(smaller, {parameters[0], parameters[1]}, 1);  // its state must go
  CapturedStderr captured;
  load_optimizer_state(smaller, saved);
  EXPECT_THAT(captured.text(), HasSubstr("LBFGS begins with an empty memory"));
  EXPECT_TRUE(optimizer_state(smaller).empty());
  BuiltOptimizer shorter =
      build_optimizer(torch_factory<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).history_size(2)), parameters);
  EXPECT_THAT([&] { load_optimizer_state(shorter, saved); },
              ThrowsMessage<CheckpointError>(HasSubstr("optimizer:0.ro:2")));
}

/// An optimizer of a program, whose state nobody knows.
class OwnOptimizer final : public torch::optim::Optimizer {
 public:
  explicit OwnOptimizer(ParamGroups groups)
      : Optimizer(std::move(groups), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(OptimizerStateOfSparseGradients, IsRefusedByName) {
  const NamedTensors parameters = {{"embedding", at::ones({4, 2})}};
  BuiltOptimizer built =
      build_optimizer(torch_factory<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9)), parameters);
  parameters[0].second.mutable_grad() = at::ones({4, 2}).to_sparse();
  built.optimizer->step();
  EXPECT_THAT([&] { optimizer_state(built); },
              ThrowsMessage<Error>(
                  "optimizer state embedding.momentum_buffer: it is sparse, and checkpoints hold dense tensors"));
}

TEST(OptimizerStateKinds, RejectOtherOptimizers) {
  OptimizerSpec spec = OptimizerFactory(
      [](ParamGroups groups) -> OptimizerPtr { return std::make_unique<OwnOptimizer>(std::move(groups)); });
  BuiltOptimizer built = build_optimizer(spec, make_parameters());
  EXPECT_THAT([&] { optimizer_state(built); },
              ThrowsMessage<CheckpointError>(HasSubstr("OwnOptimizer is not supported")));
  EXPECT_THAT([&] { load_optimizer_state(built, {}); }, ThrowsMessage<CheckpointError>(HasSubstr("OwnOptimizer")));
}

/// Derived from an optimizer of torch, and with more state than that.
template <class Base, class Options>
class Derived final : public Base {
 public:
  explicit Derived(ParamGroups groups) : Base(std::move(groups), Options(0.1)) {}
};

template <class Base, class Options>
std::string refusal_of_derived() {
  OptimizerSpec spec = OptimizerFactory(
      [](ParamGroups groups) -> OptimizerPtr { return std::make_unique<Derived<Base, Options>>(std::move(groups)); });
  BuiltOptimizer built = build_optimizer(spec, make_parameters());
  return message_of<CheckpointError>([&] { optimizer_state(built); });
}

// Its state would be read as that of the base class, or saved only in part.
TEST(OptimizerStateKinds, RejectClassesDerivedFromAKnownOne) {
  namespace optim = torch::optim;
  for (const std::string& text :
       {refusal_of_derived<optim::SGD, optim::SGDOptions>(), refusal_of_derived<optim::AdamW, optim::AdamWOptions>(),
        refusal_of_derived<optim::Adam, optim::AdamOptions>(),
        refusal_of_derived<optim::LBFGS, optim::LBFGSOptions>()}) {
    EXPECT_THAT(text, HasSubstr("Derived"));
    EXPECT_THAT(text, HasSubstr("and no class derived from it"));
  }
}

}  // namespace
}  // namespace lockstep
