#include "optim/param_groups.h"

#include <cmath>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/optimizers.h>

#include "base/mapped.h"
#include "optim/option_values.h"
#include "support/message_of.h"
#include "support/tensors.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Names = std::vector<std::string>;

NamedTensors parameters() {
  return {{"embed.weight", at::ones({4, 3})},
          {"fc.weight", at::ones({3, 3})},
          {"fc.bias", at::ones({3})},
          {"scale", at::ones({})}};
}

const torch::optim::AdamWOptions& adamw_options(const BuiltOptimizer& built, std::size_t group) {
  return dynamic_cast<const torch::optim::AdamWOptions&>(built.optimizer->param_groups().at(group).options());
}

std::vector<double> base_rates(const BuiltOptimizer& built) { return mapped(built.rates, &GroupRate::base); }

TEST(BuildOptimizer, DecaysAllParametersAsTorchDoes) {
  for (const OptimizerSpec& spec :
       {OptimizerSpec(adamw({.weight_decay = 0.3})), OptimizerSpec(sgd({.weight_decay = 0.3}))}) {
    const BuiltOptimizer built = build_optimizer(spec, parameters());
    EXPECT_THAT(built.names, ElementsAre(Names{"embed.weight", "fc.weight", "fc.bias", "scale"}));
  }
  EXPECT_EQ(adamw_options(build_optimizer(adamw({.weight_decay = 0.3}), parameters()), 0).weight_decay(), 0.3);
  EXPECT_EQ(adamw_options(build_optimizer(adamw(), parameters()), 0).weight_decay(), 0.01);
}

TEST(BuildOptimizer, DecaysMatricesOnlyWhenAsked) {
  const BuiltOptimizer built = build_optimizer(adamw({.weight_decay = 0.3, .no_decay_vectors = true}), parameters());
  EXPECT_THAT(built.names, ElementsAre(Names{"embed.weight", "fc.weight"}, Names{"fc.bias", "scale"}));
  ASSERT_EQ(built.optimizer->param_groups().size(), 2U);
  EXPECT_EQ(built.optimizer->param_groups()[0].params().size(), 2U);
  EXPECT_EQ(built.optimizer->param_groups()[1].params()[0].dim(), 1);
  EXPECT_EQ(adamw_options(built, 0).weight_decay(), 0.3);
  EXPECT_EQ(adamw_options(built, 1).weight_decay(), 0);
}

TEST(BuildOptimizer, DividesGivenGroupsToo) {
  OptimizerSpec spec = sgd({.lr = 0.1, .weight_decay = 0.3, .no_decay_vectors = true});
  spec.groups = {{.select = [](std::string_view name, const at::Tensor&) { return name == "scale"; },
                  .lr_scale = 0.5,
                  .weight_decay = 0.7},
                 {.lr_scale = 2}};
  const BuiltOptimizer built = build_optimizer(spec, parameters());
  EXPECT_THAT(built.names, ElementsAre(Names{"scale"}, Names{"embed.weight", "fc.weight"}, Names{"fc.bias"}));
  EXPECT_THAT(base_rates(built), ElementsAre(0.05, 0.2, 0.2));
  std::vector<double> decays;
  for (const auto& group : built.optimizer->param_groups()) {
    decays.push_back(static_cast<const torch::optim::SGDOptions&>(group.options()).weight_decay());
  }
  EXPECT_THAT(decays, ElementsAre(0.7, 0.3, 0));
}

TEST(BuildOptimizer, NeedsOneGroupWhenAllParametersAreAlike) {
  const OptimizerFactory factory = adamw({.no_decay_vectors = true});
  const BuiltOptimizer vectors = build_optimizer(factory, {{"bias", at::ones({3})}});
  ASSERT_EQ(vectors.names.size(), 1U);
  EXPECT_EQ(adamw_options(vectors, 0).weight_decay(), 0);
  const BuiltOptimizer matrices = build_optimizer(factory, {{"weight", at::ones({3, 1})}});
  ASSERT_EQ(matrices.names.size(), 1U);
  EXPECT_EQ(adamw_options(matrices, 0).weight_decay(), 0.01);
}

TEST(BuildOptimizer, GivesParametersToTheFirstGroupThatSelectsThem) {
  OptimizerSpec spec = adamw({.lr = 0.1, .weight_decay = 0.3});
  spec.groups = {{.select = [](std::string_view name, const at::Tensor&) { return name.starts_with("fc"); },
                  .lr_scale = 0.5,
                  .weight_decay = 0.7},
                 {.select = [](std::string_view name, const at::Tensor&) { return name.ends_with("weight"); }},
                 {.lr_scale = 2}};
  const BuiltOptimizer built = build_optimizer(spec, parameters());
  EXPECT_THAT(built.names, ElementsAre(Names{"fc.weight", "fc.bias"}, Names{"embed.weight"}, Names{"scale"}));
  EXPECT_THAT(base_rates(built), ElementsAre(0.05, 0.1, 0.2));
  EXPECT_EQ(adamw_options(built, 0).weight_decay(), 0.7);
  EXPECT_EQ(adamw_options(built, 1).weight_decay(), 0.3);
  EXPECT_EQ(adamw_options(built, 0).lr(), 0.05);
}

TEST(BuildOptimizer, PrefersTheGivenLearningRate) {
  BuiltOptimizer built = build_optimizer(adamw({.lr = 0.1, .no_decay_vectors = true}), parameters(), {.lr = 0.4});
  EXPECT_THAT(base_rates(built), ElementsAre(0.4, 0.4));
}

TEST(BuildOptimizer, GivesMuonTheMatricesAndAdamWTheRest) {
  OptimizerSpec spec = muon({.lr = 0.1, .weight_decay = 0.3, .adamw = {.lr = 0.01, .weight_decay = 0.2}});
  BuiltOptimizer built = build_optimizer(spec, parameters());
  EXPECT_THAT(built.names, ElementsAre(Names{"embed.weight", "fc.weight"}, Names{"fc.bias", "scale"}));
  EXPECT_THAT(base_rates(built), ElementsAre(0.1, 0.01));

  spec.groups = {{.select = named("embed.*"), .muon = false}, {.lr_scale = 0.5}};
  const NamedTensors trained = parameters();
  built = build_optimizer(spec, trained);
  EXPECT_THAT(built.names, ElementsAre(Names{"embed.weight"}, Names{"fc.weight"}, Names{"fc.bias", "scale"}));
  EXPECT_THAT(base_rates(built), ElementsAre(0.01, 0.05, 0.005));
  for (const auto& [name, parameter] : trained) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  built.optimizer->step();
  EXPECT_THAT(names(optimizer_state(built)),
              testing::IsSupersetOf({"embed.weight.exp_avg", "fc.weight.momentum_buffer", "scale.exp_avg_sq"}));

  spec.make = lion();
  EXPECT_THAT([&] { build_optimizer(spec, parameters()); },
              ThrowsMessage<ConfigError>(HasSubstr("group 0 sets muon to false, which only muon() supports")));
}

TEST(BuildOptimizer, KeepsTheRatioOfAGroupToAGivenLearningRate) {
  const BuiltOptimizer built =
      build_optimizer(muon({.lr = 0.1, .adamw = {.lr = 0.01, .no_decay_vectors = true}}), parameters(), {.lr = 0.4});
  EXPECT_THAT(base_rates(built), ElementsAre(0.4, testing::DoubleEq(0.04)));
}

TEST(BuildOptimizer, RefusesOptionsOfMuonAndProdigy) {
  EXPECT_THAT([] { muon({.momentum = 1, .ns_steps = 0}); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("muon: momentum is 1, expected 0 or more and less than 1"),
                                               HasSubstr("muon: ns_steps is 0, expected 1 to 99"))));
  EXPECT_THAT([] { muon({.adamw = {.beta1 = 2}}); }, ThrowsMessage<ConfigError>(HasSubstr("muon: adamw: beta1 is 2")));
  EXPECT_THAT([] { prodigy({.d0 = 0, .growth_rate = 1}); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("prodigy: d0 is 0, expected more than 0"),
                                               HasSubstr("prodigy: growth_rate is 1, expected more than 1"))));
}

TEST(LayerwiseGroups, LetLayersNearTheInputLearnMoreSlowly) {
  OptimizerSpec spec = adamw({.lr = 0.1});
  spec.groups = layerwise_groups({"embed.*", "scale", "fc.weight"}, 0.5);
  spec.groups.push_back({});  // the rest
  const BuiltOptimizer built = build_optimizer(spec, parameters());
  EXPECT_THAT(built.names, ElementsAre(Names{"embed.weight"}, Names{"scale"}, Names{"fc.weight"}, Names{"fc.bias"}));
  EXPECT_THAT(base_rates(built), ElementsAre(0.025, 0.05, 0.1, 0.1));
  EXPECT_THAT([] { layerwise_groups({}, 1.5); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("decay is 1.5, expected more than 0 and at most 1"),
                                               HasSubstr("number of patterns is 0, expected 1 or more"))));
}

TEST(SetRates, FollowsTheScheduleOfEachGroup) {
  OptimizerSpec spec(adamw({.lr = 0.1}), "constant:factor=0.5");
  spec.groups = {{.select = [](std::string_view name, const at::Tensor&) { return name == "scale"; },
                  .schedule = "step:2,factor=0.1"},
                 {.lr_scale = 2}};
  BuiltOptimizer built = build_optimizer(spec, parameters());
  const auto rates = [&](std::int64_t step) {
    set_rates(built, {.step = step});
    return std::vector<double>{adamw_options(built, 0).lr(), adamw_options(built, 1).lr()};
  };
  EXPECT_THAT(rates(0), ElementsAre(0.1, 0.1));
  EXPECT_THAT(rates(2), ElementsAre(0.1 * 0.1, 0.1));
  // What a callback writes becomes the base of the schedule.
  built.optimizer->param_groups()[0].options().set_lr(0.05);
  EXPECT_THAT(rates(2), ElementsAre(testing::DoubleEq(0.05), 0.1));
  EXPECT_THAT(rates(4), ElementsAre(testing::DoubleEq(0.005), 0.1));
  // The configuration replaces the schedule of the optimizer; a group keeps its own.
  built = build_optimizer(spec, parameters(), {.schedule = "constant:factor=0.25"});
  EXPECT_THAT(rates(2), ElementsAre(0.1 * 0.1, 0.05));
}

// A loop by hand has forgotten the length of an epoch. Such a rate would make all weights NaN.
TEST(SetRates, RefuseAFactorThatIsNegativeOrNotFinite) {
  BuiltOptimizer built = build_optimizer({adamw({.lr = 0.1}), "step:1ep"}, parameters());
  EXPECT_THAT(message_of([&] { set_rates(built, {}); }),
              AllOf(HasSubstr("schedule step:1ep: its factor at step 0 is "),
                    HasSubstr(", expected a finite number, 0 or more | give set_lr()")));
  set_rates(built, {.step = 3, .steps_per_epoch = 2});
  EXPECT_THAT(adamw_options(built, 0).lr(), testing::DoubleEq(0.01));

  const LrSchedule falling("falling", [](const ScheduleStep& at) { return 1 - 0.5 * static_cast<double>(at.step); });
  built = build_optimizer({adamw({.lr = 0.1}), falling}, parameters());
  set_rates(built, {.step = 2});
  EXPECT_EQ(adamw_options(built, 0).lr(), 0);
  EXPECT_THAT(message_of([&] { set_rates(built, {.step = 3}); }),
              HasSubstr("schedule falling: its factor at step 3 is -0.5, expected a finite number, 0 or more"));
}

// A callback halved all rates, then parameters were unfrozen: the factory makes a group that was not there before.
TEST(TakeOver, GivesANewGroupTheChangeOfItsRate) {
  OptimizerSpec spec = muon({.lr = 0.1, .adamw = {.lr = 0.01}});
  spec.groups = {{.select = named("embed.*"), .muon = false}, {.lr_scale = 0.5}};
  const NamedTensors all = parameters();
  BuiltOptimizer before = build_optimizer(spec, {all[0], all[1]}, {}, {all[2], all[3]});
  EXPECT_THAT(base_rates(before), ElementsAre(0.01, 0.05));
  set_rates(before, {});
  for (auto& group : before.optimizer->param_groups()) {
    group.options().set_lr(group.options().get_lr() / 2);
  }
  BuiltOptimizer built = build_optimizer(spec, all);
  take_over(built, before);
  set_rates(built, {});
  EXPECT_THAT(base_rates(built), ElementsAre(0.005, 0.025, testing::DoubleEq(0.0025)));

  BuiltOptimizer again = build_optimizer(spec, {all[0], all[2]}, {}, {all[1], all[3]});
  take_over(again, built);
  EXPECT_THAT(base_rates(again), ElementsAre(0.005, testing::DoubleEq(0.0025)));
}

TEST(BuildOptimizer, RefusesSchedulesBeforeATraining) {
  std::vector<OptimizerSpec> specs{{adamw(), "cosin"}, {adamw(), "cosine"}};
  specs[1].name = "critic";
  specs[1].groups = {{.schedule = "step:2ep"}, {.schedule = "step:2ep"}};
  EXPECT_EQ(schedules_of(specs, {}).size(), 3U);
  const auto refused = [&](const std::optional<ScheduleStep>& run) {
    return message_of<ConfigError>([&] { check_schedules(schedules_of(specs, {}), run); });
  };
  EXPECT_THAT(refused({}), HasSubstr("schedule cosin of optimizer 'main': unknown curve"));
  EXPECT_THAT(refused({}), testing::Not(HasSubstr("critic")));
  const std::string all = refused(ScheduleStep{});
  EXPECT_THAT(all, HasSubstr("schedule cosine of optimizer 'critic': the length of the run is not known"));
  EXPECT_THAT(all, HasSubstr("schedule step:2ep of optimizer 'critic': the number of steps per epoch is not known"));

  specs = {OptimizerSpec(adamw())};
  specs[0].groups = {{.schedule = LrSchedule("", [](const ScheduleStep&) { return 0.5; })}};
  EXPECT_THAT(refused({}),
              HasSubstr("schedule without a name of optimizer 'main': a schedule of your own has no name"));
}

TEST(BuildOptimizer, KnowsTheGroupsWhoseParametersAreAllFrozen) {
  OptimizerSpec spec(adamw({.lr = 0.1, .no_decay_vectors = true}));
  spec.groups = {{.select = named("a.*"), .lr_scale = 2},
                 {.select = named("b.*"), .lr_scale = 3},
                 {.select = named("c.*"), .lr_scale = 4}};
  const NamedTensors trained{{"b.weight", at::ones({2, 2})}, {"b.bias", at::ones({2})}};
  const BuiltOptimizer built =
      build_optimizer(spec, trained, {}, {{"a.bias", at::ones({2})}, {"c.weight", at::ones({2, 2})}});
  EXPECT_THAT(built.given, testing::ElementsAre(0, 1, 1, 2));
  std::vector<double> rates;
  for (const auto& group : built.optimizer->param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  EXPECT_THAT(rates, testing::ElementsAre(testing::DoubleEq(0.2), testing::DoubleEq(0.3), testing::DoubleEq(0.3),
                                          testing::DoubleEq(0.4)));
}

TEST(BuildOptimizer, RefusesAFactoryWithoutGroups) {
  const OptimizerSpec spec([](ParamGroups) -> OptimizerPtr {
    return std::make_unique<torch::optim::SGD>(std::vector<torch::optim::OptimizerParamGroup>{},
                                               torch::optim::SGDOptions(0.1));
  });
  EXPECT_THAT(([&] {
                build_optimizer(spec, {}, {}, {{"weight", at::ones({2})}});
              }),
              testing::ThrowsMessage<ConfigError>(testing::HasSubstr("its factory made no parameter group")));
}

TEST(BuildOptimizer, TakesTorchOptimizers) {
  OptimizerSpec spec = OptimizerFactory([](ParamGroups groups) {
    return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1).weight_decay(0.2));
  });
  const BuiltOptimizer built = build_optimizer(spec, parameters());
  EXPECT_EQ(built.names.size(), 1U);
  EXPECT_EQ(static_cast<const torch::optim::SGDOptions&>(built.optimizer->param_groups()[0].options()).weight_decay(),
            0.2);
}

TEST(BuildOptimizer, RejectsSpecsThatCannotTrain) {
  const auto build = [](const OptimizerSpec& spec) { return [spec] { build_optimizer(spec, parameters()); }; };
  OptimizerSpec spec;
  spec.name = "critic";
  EXPECT_THAT(build(spec), ThrowsMessage<ConfigError>(HasSubstr("optimizer 'critic': the factory is missing")));

  spec.make = adamw();
  EXPECT_THAT([&] { build_optimizer(spec, {}); },
              ThrowsMessage<ConfigError>(HasSubstr("optimizer 'critic': no parameter requires gradients")));

  spec.groups = {{}, {}};
  EXPECT_THAT(build(spec), ThrowsMessage<ConfigError>(HasSubstr("group 1 selects no parameter")));

  for (const double bad : {-0.5, std::nan("")}) {
    spec.groups = {{.lr_scale = bad, .weight_decay = bad, .max_grad_norm = bad}};
    EXPECT_THAT(build(spec), ThrowsMessage<ConfigError>(AllOf(HasSubstr("group 0 has lr_scale"),
                                                              HasSubstr("group 0 has weight_decay"),
                                                              HasSubstr("group 0 has max_grad_norm"))));
  }

  spec.groups = {};
  spec.make = [](ParamGroups) { return OptimizerPtr(); };
  EXPECT_THAT(build(spec), ThrowsMessage<ConfigError>(HasSubstr("its factory returned nullptr")));

  spec.make = [](ParamGroups) -> OptimizerPtr {
    return std::make_unique<torch::optim::SGD>(std::vector{at::ones({2})}, torch::optim::SGDOptions(0.1));
  };
  EXPECT_THAT(build(spec),
              ThrowsMessage<ConfigError>(HasSubstr("its factory joined parameter groups or left out parameters")));

  spec.make = [](ParamGroups groups) -> OptimizerPtr {
    std::vector<at::Tensor> all = groups[0].params();
    all.push_back(groups[1].params().front());
    return std::make_unique<torch::optim::SGD>(std::move(all), torch::optim::SGDOptions(0.1));
  };
  spec.groups = {{.select = [](std::string_view name, const at::Tensor&) { return name != "scale"; }}, {}};
  EXPECT_THAT(build(spec),
              ThrowsMessage<ConfigError>(HasSubstr("its factory joined parameter groups or left out parameters")))
      << "two groups became one";
  spec.groups = {};

  spec.make = [](ParamGroups groups) -> OptimizerPtr {
    return std::make_unique<torch::optim::LBFGS>(groups.front().params());
  };
  spec.groups = {{.weight_decay = 0.5}};
  EXPECT_THAT(build(spec), ThrowsMessage<ConfigError>(HasSubstr("group 0 sets weight decay 0.5")));

  spec.make = [](ParamGroups groups) -> OptimizerPtr {
    return std::make_unique<torch::optim::LBFGS>(std::move(groups));
  };
  spec.groups = {{.select = named("scale")}, {}};
  EXPECT_THAT(message_of(build(spec)),
              AllOf(testing::StartsWith("optimizer 'critic': its factory failed with 2 groups: LBFGS doesn't support"),
                    HasSubstr(" | LBFGS takes one group: leave out OptimizerSpec::groups")));
}

TEST(OptionValues, HaveTheMomentumOrTheFirstBetaOfEachFactory) {
  const auto momentum_of = [](const OptimizerFactory& make, std::size_t group = 0) {
    const BuiltOptimizer built = build_optimizer(make, parameters());
    return option_values(built.optimizer->param_groups().at(group).options()).momentum;
  };
  EXPECT_EQ(momentum_of(sgd({.momentum = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(rmsprop({.momentum = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(rmsprop()), 0);
  EXPECT_EQ(momentum_of(muon({.momentum = 0.75})), 0.75) << "matrices";
  EXPECT_EQ(momentum_of(muon({.adamw = {.beta1 = 0.75}}), 1), 0.75) << "the rest";
  EXPECT_EQ(momentum_of(adam({.beta1 = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(adamw({.beta1 = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(adamax({.beta1 = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(nadam({.beta1 = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(radam({.beta1 = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(lion({.beta1 = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(prodigy({.beta1 = 0.75})), 0.75);
  EXPECT_EQ(momentum_of(schedule_free_adamw({.beta1 = 0.75})), 0.75);
  for (const OptimizerFactory& without : {adagrad(), adadelta(), asgd(), rprop(), adafactor()}) {
    EXPECT_EQ(momentum_of(without), std::nullopt);
  }
}

TEST(Factories, RefuseHalfParametersWhereTheirEpsIsZero) {
  const NamedTensors half{{"weight", at::ones({3, 3}, at::kHalf)}};
  const auto build = [&](const OptimizerFactory& make) { return [&half, make] { build_optimizer(make, half); }; };
  EXPECT_EQ(message_of(build(rmsprop())),
            "rmsprop: eps is 1e-08, which is 0 in fp16, the dtype of its parameters | use --precision bf16_mixed or "
            "fp16_mixed, or a larger eps");
  EXPECT_THAT(message_of(build(muon())), HasSubstr("muon: adamw.eps is 1e-08, which is 0 in fp16"));
  EXPECT_THAT(message_of(build(prodigy({.eps = 0.01}))), HasSubstr("prodigy: eps x d0 is 1e-08, which is 0 in fp16"));
  EXPECT_EQ(message_of(build(rmsprop({.eps = 1e-7}))), "no error") << "it is a subnormal number there";
  EXPECT_EQ(message_of([] { build_optimizer(rmsprop(), {{"weight", at::ones({3, 3}, at::kBFloat16)}}); }), "no error");
  EXPECT_THAT(message_of([] {
                build_optimizer(rmsprop(), {{"weight", at::ones({3}, at::kComplexHalf)}});
              }),
              HasSubstr("rmsprop: eps is 1e-08"));
}

TEST(Factories, NameEveryOptionThatIsOutOfRange) {
  EXPECT_THAT([] { adamw({.lr = -1, .beta2 = 1}); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("adamw: lr is -1, expected 0 or more"),
                                               HasSubstr("adamw: beta2 is 1, expected 0 or more and less than 1"))));
  EXPECT_THAT([] { sgd({.nesterov = true}); },
              ThrowsMessage<ConfigError>(HasSubstr("sgd: momentum is 0, expected more than 0 with nesterov")));
}

}  // namespace
}  // namespace lockstep
