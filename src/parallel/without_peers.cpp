#include "parallel/without_peers.h"

#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/world/world.h>

#include "parallel/optimizer_shards.h"

namespace lockstep {
namespace {

class OptimizerWithoutPeers final : public SingleDeviceOptimizer {
 public:
  OptimizerWithoutPeers(const OptimizerSpec& spec, SingleDevice& strategy, World& peers, bool is_sharded)
      : SingleDeviceOptimizer(spec, strategy) {
    for (const auto& [name, parameter] : parameters_) {
      buckets_.push_back(at::empty_like(parameter));
    }
    if (is_sharded) {
      check_that_it_can_be_sharded(spec_, built_);
      NamedTensors all = parameters_;
      all.insert(all.end(), built_.frozen.begin(), built_.frozen.end());
      shards_.emplace(all, peers);
    }
  }

  void step() override {
    std::optional<OptimizerShards::OwnGradients> own;
    if (shards_) {
      own.emplace(*shards_, parameters_);
    }
    SingleDeviceOptimizer::step();
  }

 private:
  std::vector<at::Tensor> buckets_{};  // not used: the reducer's take as much memory
  std::optional<OptimizerShards> shards_{};
};

}  // namespace

WithoutPeers::WithoutPeers(const TrainConfig& config, World& peers, World& alone)
    : SingleDevice(config.optim, config.dist, alone, config.precision), peers_(peers) {}

std::unique_ptr<SingleDeviceOptimizer> WithoutPeers::make_optimizer(const OptimizerSpec& spec) {
  if (peers_.size() == 1) {
    return SingleDevice::make_optimizer(spec);
  }
  return std::make_unique<OptimizerWithoutPeers>(spec, *this, peers_, options_.shard_optimizer);
}

}  // namespace lockstep
