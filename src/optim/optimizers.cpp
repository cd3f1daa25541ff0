#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/optim/optimizers.h>

#include "optim/fused_adamw.h"
#include "optim/fused_sgd.h"
#include "optim/option_check.h"
#include "optim/update_rules.h"

namespace lockstep {
namespace {

/// Divides each group into the parameters that stay in it and the rest, which gets `options`.
ParamGroups divided(const ParamGroups& groups, bool (*stays)(const at::Tensor&),
                    const torch::optim::OptimizerOptions& options) {
  ParamGroups result;
  for (const auto& group : groups) {
    std::vector<at::Tensor> staying;
    std::vector<at::Tensor> rest;
    for (const at::Tensor& parameter : group.params()) {
      (stays(parameter) ? staying : rest).push_back(parameter);
    }
    if (!staying.empty()) {
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

/// adamw() and adam() differ only in the weight decay.
template <class Options>
OptimizerFactory fused_adam(const char* name, const Options& options, WeightDecay weight_decay) {
  OptionCheck check(name);
  check.expect_rates(options);
  check.expect_betas(options);
  check.throw_problems();
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

OptimizerFactory by_rule(double lr, std::optional<double> weight_decay, std::shared_ptr<const UpdateRule> rule) {
  return [options = RuleOptions(lr, weight_decay, std::move(rule))](const ParamGroups& groups) -> OptimizerPtr {
    return std::make_unique<RuleOptimizer>(groups, options);
  };
}

}  // namespace

OptimizerFactory adamw(AdamWOptions options) { return fused_adam("adamw", options, WeightDecay::decoupled); }

OptimizerFactory adam(AdamOptions options) { return fused_adam("adam", options, WeightDecay::in_gradient); }

OptimizerFactory sgd(SgdOptions options) {
  OptionCheck check("sgd");
  check.expect_rates(options);
  check.expect("momentum", options.momentum, options.momentum >= 0, "0 or more");
  check.expect("momentum", options.momentum, !options.nesterov || options.momentum > 0, "more than 0 with nesterov");
  check.expect("dampening", options.dampening, !options.nesterov || options.dampening == 0, "0 with nesterov");
  check.throw_problems();
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
  OptionCheck check("rmsprop");
  check.expect_rates(options);
  check.expect("alpha", options.alpha, options.alpha >= 0 && options.alpha <= 1, "0 to 1");
  check.expect("momentum", options.momentum, options.momentum >= 0, "0 or more");
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, rmsprop_rule(options));
}

OptimizerFactory adagrad(AdagradOptions options) {
  OptionCheck check("adagrad");
  check.expect_rates(options);
  check.expect("lr_decay", options.lr_decay, options.lr_decay >= 0, "0 or more");
  check.expect("initial_accumulator", options.initial_accumulator, options.initial_accumulator >= 0, "0 or more");
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, adagrad_rule(options));
}

OptimizerFactory adadelta(AdadeltaOptions options) {
  OptionCheck check("adadelta");
  check.expect_rates(options);
  check.expect("rho", options.rho, options.rho >= 0 && options.rho <= 1, "0 to 1");
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, adadelta_rule(options));
}

OptimizerFactory adamax(AdamaxOptions options) {
  OptionCheck check("adamax");
  check.expect_rates(options);
  check.expect_betas(options);
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, adamax_rule(options));
}

OptimizerFactory nadam(NadamOptions options) {
  OptionCheck check("nadam");
  check.expect_rates(options);
  check.expect_betas(options);
  check.expect("momentum_decay", options.momentum_decay, options.momentum_decay >= 0, "0 or more");
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, nadam_rule(options));
}

OptimizerFactory radam(RadamOptions options) {
  OptionCheck check("radam");
  check.expect_rates(options);
  check.expect_betas(options);
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, radam_rule(options));
}

OptimizerFactory asgd(AsgdOptions options) {
  OptionCheck check("asgd");
  check.expect_rates(options);
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, asgd_rule(options));
}

OptimizerFactory rprop(RpropOptions options) {
  OptionCheck check("rprop");
  check.expect_rates(options);
  check.expect("eta_minus", options.eta_minus, options.eta_minus > 0 && options.eta_minus < 1,
               "more than 0, less than 1");
  check.expect("eta_plus", options.eta_plus, options.eta_plus > 1, "more than 1");
  check.expect("max_step", options.max_step, options.max_step >= options.min_step, "min_step or more");
  check.throw_problems();
  return by_rule(options.lr, /*weight_decay=*/std::nullopt, rprop_rule(options));
}

OptimizerFactory lion(LionOptions options) {
  OptionCheck check("lion");
  check.expect_rates(options);
  check.expect_betas(options);
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, lion_rule(options));
}

OptimizerFactory adafactor(AdafactorOptions options) {
  OptionCheck check("adafactor");
  check.expect_rates(options);
  check.expect("beta2_decay", options.beta2_decay, options.beta2_decay <= 0, "0 or less");
  check.expect("eps1", options.eps1, options.eps1 >= 0, "0 or more");
  check.expect("eps2", options.eps2, options.eps2 >= 0, "0 or more");
  check.expect("d", options.d, options.d >= 1, "1 or more");
  check.throw_problems();
  return [options, make = by_rule(options.lr, options.weight_decay, adafactor_rule(options))](ParamGroups groups) {
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
  OptionCheck check("muon");
  check.expect_rates(options);
  check.expect_share("momentum", options.momentum);
  check.expect("ns_steps", options.ns_steps, options.ns_steps >= 1 && options.ns_steps < 100, "1 to 99");
  check.throw_problems();
  OptionCheck check_adamw("muon: adamw");
  check_adamw.expect_rates(options.adamw);
  check_adamw.expect_betas(options.adamw);
  check_adamw.throw_problems();
  RuleOptions defaults(options.lr, options.weight_decay, muon_rule(options));
  defaults.other =
      std::make_shared<RuleOptions>(options.adamw.lr, options.adamw.weight_decay, adamw_rule(options.adamw));
  return [=](const ParamGroups& given) -> OptimizerPtr {
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
  OptionCheck check("prodigy");
  check.expect_rates(options);
  check.expect_betas(options);
  check.expect("d0", options.d0, options.d0 > 0, "more than 0");
  check.expect("d_coef", options.d_coef, options.d_coef > 0, "more than 0");
  check.expect("growth_rate", options.growth_rate, options.growth_rate > 1, "more than 1");
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, prodigy_rule(options));
}

OptimizerFactory schedule_free_adamw(ScheduleFreeAdamWOptions options) {
  OptionCheck check("schedule_free_adamw");
  check.expect_rates(options);
  check.expect("beta1", options.beta1, options.beta1 > 0 && options.beta1 < 1, "more than 0 and less than 1");
  check.expect_share("beta2", options.beta2);
  check.expect("r", options.r, options.r >= 0, "0 or more");
  check.expect("weight_lr_power", options.weight_lr_power, options.weight_lr_power >= 0, "0 or more");
  check.throw_problems();
  return by_rule(options.lr, options.weight_decay, schedule_free_adamw_rule(options));
}

}  // namespace lockstep
