#include "parallel/without_peers.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/world/world.h>

#include "parallel/optimizer_shards.h"

namespace lockstep {
namespace {

using torch::autograd::variable_list;

/// Its gradients take the memory that those of DdpOptimizer take: the backward that reduces puts each one into a bucket
/// as soon as it is there, and earlier micro-batches add up theirs beside the buckets.
class OptimizerWithoutPeers final : public SingleDeviceOptimizer {
 public:
  OptimizerWithoutPeers(const OptimizerSpec& spec, SingleDevice& strategy, World& peers, bool is_sharded)
      : SingleDeviceOptimizer(spec, strategy) {
    for (const auto& [name, parameter] : parameters_) {
      auto accumulates = torch::autograd::impl::grad_accumulator(parameter);
      const std::uintptr_t key = accumulates->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, parameter = parameter, bucket = at::empty_like(parameter)](const variable_list& outputs,
                                                                            const variable_list&) {
            move_gradient(parameter, bucket);
            return outputs;
          }));
      hooks_.emplace_back(std::move(accumulates), key);
    }
    if (is_sharded) {
      check_that_it_can_be_sharded(spec_, built_);
      NamedTensors all = parameters_;
      all.insert(all.end(), built_.frozen.begin(), built_.frozen.end());
      shards_.emplace(all, peers);
    }
  }
  ~OptimizerWithoutPeers() override {
    for (const auto& [accumulates, key] : hooks_) {  // a loss that the task keeps may outlive this object
      accumulates->del_post_hook(key);
    }
  }

  void begin_forward(Gradients gradients) override {
    reduces_ = gradients == Gradients::reduce;
    SingleDeviceOptimizer::begin_forward(gradients);
  }

  void step() override {
    std::optional<OptimizerShards::OwnGradients> own;
    if (shards_) {
      own.emplace(*shards_, parameters_);
    }
    SingleDeviceOptimizer::step();
  }

 private:
  void move_gradient(const at::Tensor& parameter, at::Tensor bucket) const {
    if (reduces_ && parameter.grad().defined() && parameter.grad().layout() == at::kStrided) {
      const at::NoGradGuard no_grad;
      bucket.copy_(parameter.grad());
      parameter.mutable_grad() = std::move(bucket);
    }
  }

  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_{};
  bool reduces_ = true;
  std::optional<OptimizerShards> shards_{};
};

}  // namespace

WithoutPeers::WithoutPeers(const TrainConfig& config, World& peers, World& alone)
    : SingleDevice(config.optim, config.dist, alone, config.precision, config.seed), peers_(peers) {}

std::unique_ptr<SingleDeviceOptimizer> WithoutPeers::make_optimizer(const OptimizerSpec& spec) {
  if (peers_.size() == 1) {
    return SingleDevice::make_optimizer(spec);
  }
  return std::make_unique<OptimizerWithoutPeers>(spec, *this, peers_, dist_.shard_optimizer);
}

}  // namespace lockstep
