// Strategy of one rank of several, without the others.
#pragma once

#include <memory>

#include <lockstep/config/train_config.h>

#include "parallel/single_device.h"

namespace lockstep {

/// Needs the memory that Ddp needs on this rank, and sends nothing: the gradients are those of this rank, and each rank
/// updates only the parameters that are its share. For a trial that may fail on one rank.
class WithoutPeers final : public SingleDevice {
 public:
  /// `peers`: the world of the training. `alone`: a world of this rank. Both must outlive this object.
  WithoutPeers(const TrainConfig& config, World& peers, World& alone);

 private:
  std::unique_ptr<SingleDeviceOptimizer> make_optimizer(const OptimizerSpec& spec) override;

  World& peers_;
};

}  // namespace lockstep
