#include <algorithm>
#include <cmath>
#include <exception>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/evolution.h>

#include "base/mapped.h"
#include "base/option_check.h"
#include "tensor/shape_text.h"

namespace lockstep {
namespace {

void check_options(const EvolutionOptions& options) {
  OptionCheck("evolution_loss")
      .expect("pairs", options.pairs, options.pairs >= 1, "1 or more")
      .expect("sigma", options.sigma, options.sigma > 0 && std::isfinite(options.sigma), "a number above 0")
      .throw_problems();
}

std::vector<at::Tensor> trained_parameters(torch::nn::Module& module) {
  std::vector<at::Tensor> parameters = module.parameters();
  std::unordered_set<const c10::TensorImpl*> seen;  // a shared parameter is listed several times
  std::erase_if(parameters, [&](const at::Tensor& parameter) {
    return !parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  if (parameters.empty()) {
    throw ConfigError("evolution_loss: no parameter of the module requires gradients", "unfreeze some of them");
  }
  if (std::ranges::any_of(parameters, [](const at::Tensor& parameter) { return parameter.is_complex(); })) {
    throw ConfigError("evolution_loss: found a complex parameter, expected real ones",
                      "register its real and imaginary parts");
  }
  return parameters;
}

/// While it exists, autocast keeps no copies of parameters, which would not follow their changes.
class NoCastCache {
 public:
  NoCastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoCastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool before_;
};

/// While it exists, parameters may have other values; afterwards they have their own again, to the last bit.
class OwnValues {
 public:
  explicit OwnValues(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {
    for (const at::Tensor& parameter : parameters_) {
      values_.push_back(parameter.detach().clone());
    }
  }
  ~OwnValues() {
    try {
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        parameters_[i].copy_(values_[i]);
      }
    } catch (const std::exception&) {  // of a device that has failed: the loss has thrown already
    }
  }
  OwnValues(const OwnValues&) = delete;
  OwnValues& operator=(const OwnValues&) = delete;

  void move_by(const std::vector<at::Tensor>& noise, double factor) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::add_out(parameters_[i], values_[i], noise[i], factor);
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> values_{};
};

at::Tensor evaluate(const std::function<at::Tensor()>& loss) {
  at::Tensor value = loss();
  if (!value.defined() || value.dim() != 0) {
    throw Error(value.defined()
                    ? fmt::format("evolution_loss: the loss has shape {}, expected a scalar", shape_text(value.sizes()))
                    : "evolution_loss: the loss is undefined, expected a scalar",
                "reduce it over the batch, for example with mean()");
  }
  return value.detach();
}

struct Estimate {
  at::Tensor loss{};                    // mean of all evaluations
  std::vector<at::Tensor> gradients{};  // one for each parameter
};

// Nothing waits for the device: losses stay there.
Estimate estimate(const std::vector<at::Tensor>& parameters, const std::function<at::Tensor()>& loss,
                  const EvolutionOptions& options) {
  const at::NoGradGuard no_grad;
  const NoCastCache no_casts;
  OwnValues values(parameters);
  Estimate found;
  for (const at::Tensor& parameter : parameters) {
    found.gradients.push_back(at::zeros_like(parameter));
  }
  for (int pair = 0; pair < options.pairs; ++pair) {
    const auto noise = mapped(parameters, [](const at::Tensor& parameter) { return at::randn_like(parameter); });
    values.move_by(noise, options.sigma);
    const at::Tensor up = evaluate(loss);
    values.move_by(noise, -options.sigma);
    const at::Tensor down = evaluate(loss);
    const at::Tensor slope = (up - down) / (2 * options.sigma * options.pairs);
    const at::Tensor mean = (up + down) / (2 * options.pairs);
    for (std::size_t i = 0; i < noise.size(); ++i) {
      found.gradients[i].add_(noise[i] * slope);
    }
    found.loss = found.loss.defined() ? found.loss + mean : mean;
  }
  return found;
}

}  // namespace

StepOutput evolution_loss(torch::nn::Module& module, const std::function<at::Tensor()>& loss,
                          const EvolutionOptions& options) {
  check_options(options);
  if (!at::GradMode::is_enabled()) {  // a validation wants the loss of the parameters themselves
    return evaluate(loss);
  }
  const std::vector<at::Tensor> parameters = trained_parameters(module);
  const Estimate found = estimate(parameters, loss, options);
  at::Tensor linear;  // its gradient is the estimate
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor part = (parameters[i] * found.gradients[i]).sum();
    linear = linear.defined() ? linear + part : part;
  }
  return found.loss + (linear - linear.detach());
}

}  // namespace lockstep
