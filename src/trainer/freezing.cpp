#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/world/world.h>

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
    std::vector<std::string> names;
    for (const auto& item : module.named_parameters()) {
      names.push_back(item.key());
    }
    constexpr std::size_t kShown = 10;
    const bool more = names.size() > kShown;
    names.resize(std::min(names.size(), kShown));
    throw ConfigError(
        fmt::format("'{}' selects no parameter", pattern),
        fmt::format("the parameters are {}{}; * stands for any characters", join(names, ", "), more ? ", ..." : ""));
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

FreezeUntil::FreezeUntil(std::string pattern, std::int64_t epoch)
    : pattern_(std::move(pattern)), epoch_(epoch), name_(fmt::format("freeze_until:{}", pattern_)) {
  if (epoch_ < 2) {
    throw ConfigError(fmt::format("FreezeUntil: epoch is {}, expected 2 or more", epoch_),
                      "epochs count from 1; without this callback the parameters are trained from the start");
  }
}

// At fit_start the epoch of a resumed run is known.
void FreezeUntil::on(const StageContext& context) {
  const std::int64_t next = context.state.epoch + 1;
  if (context.stage == Stage::fit_start && next < epoch_) {
    freeze(context.module, pattern_);
  } else if (next == epoch_ || context.stage == Stage::fit_start) {
    const std::size_t count = unfreeze(context.module, pattern_);
    if (context.stage == Stage::epoch_end && context.world.is_main()) {
      log_info(fmt::format("epoch {} begins to train {} parameters ({})", epoch_, count, pattern_));
    }
  }
}

}  // namespace lockstep
