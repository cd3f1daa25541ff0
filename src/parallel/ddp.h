// Distributed data parallel over c10d::Reducer. The only includer of reducer.hpp is ddp.cpp.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/config/train_config.h>

#include "parallel/lane_sums.h"
#include "parallel/single_device.h"
#include "parallel/sync_statistics.h"

namespace lockstep {

/// Throws: ConfigError if `backend` cannot send sparse gradients and any parameters are named in `sparse`.
void check_sparse_backend(std::span<const std::string> sparse, std::string_view backend);

class DdpOptimizer;

class Ddp final : public SingleDevice {
 public:
  Ddp(const OptimConfig& config, const DistConfig& options, World& world, Precision precision = Precision::fp32,
      std::uint64_t seed = 0, GradientHook hook = {});

  void prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) override;
  void prepare_again() override;
  void begin_step(std::int64_t number, StepRequests mine) override;
  StepRequests agreed() override;
  void end_forward(bool ran) override;

 private:
  friend class DdpOptimizer;

  std::unique_ptr<SingleDeviceOptimizer> make_optimizer(const OptimizerSpec& spec) override;
  void compare_hooks();
  void make_reducers();
  void send_buffers();
  void write_requests(StepRequests mine);
  void write_count(const at::Tensor& count);
  void write_loss(const at::Tensor& loss);

  const std::uint64_t seed_;  // of random rounding
  const GradientHook hook_;   // empty: the reducer's own reduction, or dist.compression
  std::int64_t step_ = 0;     // number of the current step
  bool buffers_due_ = true;   // true once per step, before its first forward

  // Note [Control lane]: requests such as stop or save, the token count and the loss are the gradient of a small
  // additional parameter of the reducer that is not part of the module. backward() starts from the loss and from this
  // lane, with the rank's values as its gradient. So they are averaged with the first bucket at no measurable cost, and
  // every rank reads the same numbers after the same step. A request is sent in one reduction and read in one step. On
  // a GPU no step waits for the copy to the host: it is read one step later. Counts and losses stay on the device.
  enum LaneSlot : std::int64_t { kRequests = 0, kCount = StepRequests::kAll.size(), kCounted, kLoss, kLaneSize };
  at::Tensor lane_values_{};  // [kLaneSize] on the device: values of this rank
  bool lane_has_count_ = false;
  bool lane_has_loss_ = false;
  StepRequests requests_in_lane_{};
  std::optional<LaneSums> sums_{};
  std::shared_ptr<SyncStatistics> statistics_{};  // nullptr without SyncBatchNorm
};

}  // namespace lockstep
