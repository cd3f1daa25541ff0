#include <string>

#include <fmt/format.h>

#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/nn/freezing.h>
#include <lockstep/optim/optimizers.h>

#include "base/mapped.h"
#include "base/text.h"

namespace lockstep {
namespace {

std::size_t set_requires_grad(torch::nn::Module& module, const std::string& pattern, bool requires_grad) {
  const auto selects = named(pattern);
  std::size_t count = 0;
  for (const auto& item : module.named_parameters()) {
    if (selects(item.key(), item.value())) {
      at::Tensor(item.value()).requires_grad_(requires_grad);
      ++count;
    }
  }
  if (count == 0) {
    const auto names = mapped(module.named_parameters(), [](const auto& item) { return item.key(); });
    throw ConfigError(fmt::format("'{}' selects no parameter", pattern),
                      fmt::format("the parameters are {}; * stands for any characters", join_first(names, 10)));
  }
  return count;
}

}  // namespace

std::size_t freeze(torch::nn::Module& module, const std::string& pattern) {
  return set_requires_grad(module, pattern, false);
}

std::size_t unfreeze(torch::nn::Module& module, const std::string& pattern) {
  return set_requires_grad(module, pattern, true);
}

}  // namespace lockstep
