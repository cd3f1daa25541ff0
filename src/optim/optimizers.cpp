#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/optimizers.h>

#include "base/option_check.h"
#include "optim/fused_adamw.h"
#include "optim/fused_sgd.h"
#include "optim/update_rules.h"

namespace lockstep {
namespace {

/// Divides each group into the parameters that stay in it and the rest, which gets `options`. A group without
/// parameters stays: they may all be frozen.
ParamGroups divided(const ParamGroups& groups, bool (*stays)(const at::Tensor&),
                    const torch::optim::OptimizerOptions& options) {
  ParamGroups result;
  for (const auto& group : groups) {
    std::vector<at::Tensor> staying;
    std::vector<at::Tensor> rest;
    for (const at::Tensor& parameter : group.params()) {
      (stays(parameter) ? staying : rest).push_back(parameter);
    }
    if (!staying.empty() || rest.empty()) {
      result.emplace_back(std::move(staying), group.has_options() ? group.options().clone() : nullptr);
    }
    if (!rest.empty()) {
      result.emplace_back(std::move(rest), options.clone());
    }
  }
  return result;
}

bool is_no_vector(const at::Tensor& parameter) { return parameter.dim() >= 2; }
bool is_real_matrix(const at::Tensor& parameter) { return parameter.dim() == 2 && !parameter.is_complex(); }

/// The vectors get `options` without weight decay.
template <class Options>
ParamGroups without_decay_of_vectors(const ParamGroups& groups, const Options& options) {
  return divided(groups, is_no_vector, Options(options).weight_decay(0));
}

template <class Options>
OptionCheck check_rates(const char* optimizer, const Options& options) {
  OptionCheck check(optimizer);
  check.expect("lr", options.lr, options.lr >= 0, "0 or more");
  if constexpr (requires { options.weight_decay; }) {
    check.expect("weight_decay", options.weight_decay, options.weight_decay >= 0, "0 or more");
  }
  if constexpr (requires { options.eps; }) {
    check.expect("eps", options.eps, options.eps >= 0, "0 or more");
  }
  return check;
}

template <class Options>
OptionCheck check_rates_and_betas(const char* optimizer, const Options& options) {
  return check_rates(optimizer, options).expect_share("beta1", options.beta1).expect_share("beta2", options.beta2);
}

/// adamw() and adam() differ only in the weight decay.
template <class Options>
OptimizerFactory fused_adam(const char* name, const Options& options, WeightDecay weight_decay) {
  check_rates_and_betas(name, options).throw_problems();
  return [options, weight_decay](ParamGroups groups) -> OptimizerPtr {
    const auto defaults = torch::optim::AdamWOptions(options.lr)
                              .weight_decay(options.weight_decay)
                              .betas({options.beta1, options.beta2})
                              .eps(options.eps)
                              .amsgrad(options.amsgrad);
    return std::make_unique<FusedAdamW>(
        options.no_decay_vectors ? without_decay_of_vectors(groups, defaults) : std::move(groups), defaults,
        weight_decay);
  };
}

/// Options of a rule with the learning rate and, if they have one, the weight decay and the momentum of `options`.
template <class Options>
RuleOptions rule_options(const Options& options, std::shared_ptr<const UpdateRule> rule) {
  RuleOptions found(options.lr, std::nullopt, std::move(rule));
  if constexpr (requires { options.weight_decay; }) {
    found.weight_decay = options.weight_decay;
  }
  if constexpr (requires { options.momentum; }) {
    found.momentum = options.momentum;
  } else if constexpr (requires { options.beta1; }) {
    found.momentum = options.beta1;
  }
  return found;
}

/// `term` is what a rule adds to denominators, `value` its value. A rule calculates in the dtype of the parameters, as
/// torch.optim does: in half precision the squares of small gradients are 0, and nothing else keeps it from 0 / 0.
void refuse_zero_in_half(const char* optimizer, const char* term, double value, const ParamGroups& groups) {
  const auto is_half = [](const at::Tensor& parameter) {
    return c10::toRealValueType(parameter.scalar_type()) == at::kHalf;
  };
  const auto has_half = [&](const auto& group) { return std::ranges::any_of(group.params(), is_half); };
  if (c10::Half(static_cast<float>(value)) == 0 && std::ranges::any_of(groups, has_half)) {
    throw ConfigError(
        fmt::format("{}: {} is {}, which is 0 in fp16, the dtype of its parameters", optimizer, term, value),
        "use --precision bf16_mixed or fp16_mixed, or a larger eps");
  }
}

template <class Options>
OptimizerFactory by_rule(const char* name, const Options& options, std::shared_ptr<const UpdateRule> rule) {
  return [=, defaults = rule_options(options, std::move(rule))](const ParamGroups& groups) -> OptimizerPtr {
    if constexpr (requires { options.d0; }) {
      refuse_zero_in_half(name, "eps x d0", options.eps * options.d0, groups);
    } else if constexpr (requires { options.eps; }) {
      refuse_zero_in_half(name, "eps", options.eps, groups);
    }
    return std::make_unique<RuleOptimizer>(groups, defaults);
  };
}

}  // namespace

OptimizerFactory adamw(AdamWOptions options) { return fused_adam("adamw", options, WeightDecay::decoupled); }

OptimizerFactory adam(AdamOptions options) { return fused_adam("adam", options, WeightDecay::in_gradient); }

OptimizerFactory sgd(SgdOptions options) {
  check_rates("sgd", options)
      .expect("momentum", options.momentum, options.momentum >= 0, "0 or more")
      .expect("momentum", options.momentum, !options.nesterov || options.momentum > 0, "more than 0 with nesterov")
      .expect("dampening", options.dampening, !options.nesterov || options.dampening == 0, "0 with nesterov")
      .throw_problems();
  return [options](ParamGroups groups) -> OptimizerPtr {
    const auto defaults = torch::optim::SGDOptions(options.lr)
                              .weight_decay(options.weight_decay)
                              .momentum(options.momentum)
                              .dampening(options.dampening)
                              .nesterov(options.nesterov);
    return std::make_unique<FusedSgd>(
        options.no_decay_vectors ? without_decay_of_vectors(groups, defaults) : std::move(groups), defaults);
  };
}

OptimizerFactory rmsprop(RmspropOptions options) {
  check_rates("rmsprop", options)
      .expect("alpha", options.alpha, options.alpha >= 0 && options.alpha <= 1, "0 to 1")
      .expect("momentum", options.momentum, options.momentum >= 0, "0 or more")
      .throw_problems();
  return by_rule("rmsprop", options, rmsprop_rule(options));
}

OptimizerFactory adagrad(AdagradOptions options) {
  check_rates("adagrad", options)
      .expect("lr_decay", options.lr_decay, options.lr_decay >= 0, "0 or more")
      .expect("initial_accumulator", options.initial_accumulator, options.initial_accumulator >= 0, "0 or more")
      .throw_problems();
  return by_rule("adagrad", options, adagrad_rule(options));
}

OptimizerFactory adadelta(AdadeltaOptions options) {
  check_rates("adadelta", options)
      .expect("rho", options.rho, options.rho >= 0 && options.rho <= 1, "0 to 1")
      .throw_problems();
  return by_rule("adadelta", options, adadelta_rule(options));
}

OptimizerFactory adamax(AdamaxOptions options) {
  check_rates_and_betas("adamax", options).throw_problems();
  return by_rule("adamax", options, adamax_rule(options));
}

OptimizerFactory nadam(NadamOptions options) {
  check_rates_and_betas("nadam", options)
      .expect("momentum_decay", options.momentum_decay, options.momentum_decay >= 0, "0 or more")
      .throw_problems();
  return by_rule("nadam", options, nadam_rule(options));
}

OptimizerFactory radam(RadamOptions options) {
  check_rates_and_betas("radam", options).throw_problems();
  return by_rule("radam", options, radam_rule(options));
}

OptimizerFactory asgd(AsgdOptions options) {
  check_rates("asgd", options).throw_problems();
  return by_rule("asgd", options, asgd_rule(options));
}

OptimizerFactory rprop(RpropOptions options) {
  check_rates("rprop", options)
      .expect("eta_minus", options.eta_minus, options.eta_minus > 0 && options.eta_minus < 1,
              "more than 0, less than 1")
      .expect("eta_plus", options.eta_plus, options.eta_plus > 1, "more than 1")
      .expect("max_step", options.max_step, options.max_step >= options.min_step, "min_step or more")
      .throw_problems();
  return by_rule("rprop", options, rprop_rule(options));
}

OptimizerFactory lion(LionOptions options) {
  check_rates_and_betas("lion", options).throw_problems();
  return by_rule("lion", options, lion_rule(options));
}

OptimizerFactory adafactor(AdafactorOptions options) {
  check_rates("adafactor", options)
      .expect("beta2_decay", options.beta2_decay, options.beta2_decay <= 0, "0 or less")
      .expect("eps1", options.eps1, options.eps1 >= 0, "0 or more")
      .expect("eps2", options.eps2, options.eps2 >= 0, "0 or more")
      .expect("d", options.d, options.d >= 1, "1 or more")
      .throw_problems();
  return [options, make = by_rule("adafactor", options, adafactor_rule(options))](ParamGroups groups) {
    for (const auto& group : groups) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameter.is_complex()) {
          throw ConfigError("adafactor: found a complex parameter, expected real ones", "use adamw()");
        }
      }
    }
    return make(std::move(groups));
  };
}

OptimizerFactory muon(MuonOptions options) {
  check_rates("muon", options)
      .expect_share("momentum", options.momentum)
      .expect("ns_steps", options.ns_steps, options.ns_steps >= 1 && options.ns_steps < 100, "1 to 99")
      .throw_problems();
  check_rates_and_betas("muon: adamw", options.adamw).throw_problems();
  RuleOptions defaults = rule_options(options, muon_rule(options));
  defaults.other = std::make_shared<RuleOptions>(rule_options(options.adamw, adamw_rule(options.adamw)));
  return [=](const ParamGroups& given) -> OptimizerPtr {
    refuse_zero_in_half("muon", "adamw.eps", options.adamw.eps, given);
    ParamGroups groups = divided(given, is_real_matrix, *defaults.other);
    if (options.adamw.no_decay_vectors) {
      RuleOptions vectors = *defaults.other;
      vectors.weight_decay = 0;
      groups = divided(groups, is_no_vector, vectors);
    }
    return std::make_unique<RuleOptimizer>(groups, defaults);
  };
}

OptimizerFactory prodigy(ProdigyOptions options) {
  check_rates_and_betas("prodigy", options)
      .expect("d0", options.d0, options.d0 > 0, "more than 0")
      .expect("d_coef", options.d_coef, options.d_coef > 0, "more than 0")
      .expect("growth_rate", options.growth_rate, options.growth_rate > 1, "more than 1")
      .throw_problems();
  return by_rule("prodigy", options, prodigy_rule(options));
}

OptimizerFactory schedule_free_adamw(ScheduleFreeAdamWOptions options) {
  check_rates("schedule_free_adamw", options)
      .expect("beta1", options.beta1, options.beta1 > 0 && options.beta1 < 1, "more than 0 and less than 1")
      .expect_share("beta2", options.beta2)
      .expect("r", options.r, options.r >= 0, "0 or more")
      .expect("weight_lr_power", options.weight_lr_power, options.weight_lr_power >= 0, "0 or more")
      .throw_problems();
  return by_rule("schedule_free_adamw", options, schedule_free_adamw_rule(options));
}

}  // namespace lockstep
