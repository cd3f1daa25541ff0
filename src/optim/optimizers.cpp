#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/optimizers.h>

#include "optim/fused_adamw.h"
#include "optim/fused_sgd.h"

namespace lockstep {
namespace {

/// Collects the problems of an optimizer's options.
class OptionCheck {
 public:
  explicit OptionCheck(std::string optimizer) : optimizer_(std::move(optimizer)) {}

  void expect(const char* name, double value, bool good, const char* range) {
    if (!good) {
      problems_.push_back({.what = fmt::format("{}: {} is {}, expected {}", optimizer_, name, value, range)});
    }
  }
  void throw_problems() {
    if (!problems_.empty()) {
      throw ConfigError(std::move(problems_));
    }
  }

 private:
  std::string optimizer_;
  std::vector<Problem> problems_{};
};

/// Divides each group into its matrices and the rest; the rest gets `options` without weight decay.
template <class Options>
ParamGroups without_decay_of_vectors(const ParamGroups& groups, const Options& options) {
  ParamGroups divided;
  for (const auto& group : groups) {
    std::vector<at::Tensor> matrices;
    std::vector<at::Tensor> rest;
    for (const at::Tensor& parameter : group.params()) {
      (parameter.dim() >= 2 ? matrices : rest).push_back(parameter);
    }
    if (!matrices.empty()) {
      divided.emplace_back(std::move(matrices));
    }
    if (!rest.empty()) {
      divided.emplace_back(std::move(rest), std::make_unique<Options>(Options(options).weight_decay(0)));
    }
  }
  return divided;
}

}  // namespace

OptimizerFactory adamw(AdamWOptions options) {
  OptionCheck check("adamw");
  check.expect("lr", options.lr, options.lr >= 0, "0 or more");
  check.expect("weight_decay", options.weight_decay, options.weight_decay >= 0, "0 or more");
  check.expect("beta1", options.beta1, options.beta1 >= 0 && options.beta1 < 1, "0 or more and less than 1");
  check.expect("beta2", options.beta2, options.beta2 >= 0 && options.beta2 < 1, "0 or more and less than 1");
  check.expect("eps", options.eps, options.eps >= 0, "0 or more");
  check.throw_problems();
  return [options](ParamGroups groups) -> OptimizerPtr {
    const auto defaults = torch::optim::AdamWOptions(options.lr)
                              .weight_decay(options.weight_decay)
                              .betas({options.beta1, options.beta2})
                              .eps(options.eps);
    return std::make_unique<FusedAdamW>(
        options.no_decay_vectors ? without_decay_of_vectors(groups, defaults) : std::move(groups), defaults);
  };
}

OptimizerFactory sgd(SgdOptions options) {
  OptionCheck check("sgd");
  check.expect("lr", options.lr, options.lr >= 0, "0 or more");
  check.expect("weight_decay", options.weight_decay, options.weight_decay >= 0, "0 or more");
  check.expect("momentum", options.momentum, options.momentum >= 0, "0 or more");
  check.expect("momentum", options.momentum, !options.nesterov || options.momentum > 0, "more than 0 with nesterov");
  check.throw_problems();
  return [options](ParamGroups groups) -> OptimizerPtr {
    const auto defaults = torch::optim::SGDOptions(options.lr)
                              .weight_decay(options.weight_decay)
                              .momentum(options.momentum)
                              .nesterov(options.nesterov);
    return std::make_unique<FusedSgd>(
        options.no_decay_vectors ? without_decay_of_vectors(groups, defaults) : std::move(groups), defaults);
  };
}

}  // namespace lockstep
