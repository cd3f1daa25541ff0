#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/world/world.h>

#include "parallel/ddp.h"
#include "parallel/single_device.h"

namespace lockstep {

Strategy::~Strategy() = default;
StrategyOptimizer::~StrategyOptimizer() = default;

void StrategyOptimizer::backward(const at::Tensor& loss, double weight) {
  if (!weight_.defined() || weight_value_ != weight || weight_.dtype() != loss.dtype() ||
      weight_.device() != loss.device()) {
    weight_ = at::full({}, weight, loss.options().requires_grad(false));
    weight_value_ = weight;
  }
  backward(loss, weight_);
}

std::unique_ptr<Strategy> make_strategy(const Plan& plan, World& world, GradientHook hook) {
  const TrainConfig& config = plan.config;
  if (hook && config.dist.compression != GradCompression::none) {
    throw ConfigError("found both dist.compression and a gradient hook, expected one of them",
                      "the hook decides in which format gradients are sent: use --dist.compression none");
  }
  if (world.size() == 1) {
    return std::make_unique<SingleDevice>(config.optim, config.dist, world, config.precision, config.seed);
  }
  return std::make_unique<Ddp>(config.optim, config.dist, world, config.precision, config.seed, std::move(hook));
}

}  // namespace lockstep
