// Distributed data parallel over c10d::Reducer.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/config/train_config.h>

#include "parallel/control_lane.h"
#include "parallel/single_device.h"
#include "parallel/sync_statistics.h"

namespace lockstep {

/// Throws: ConfigError if `backend` cannot send sparse gradients and any parameters are named in `sparse`.
void check_sparse_backend(std::span<const std::string> sparse, std::string_view backend);

class DdpOptimizer;

class [[gnu::visibility("hidden")]] Ddp;  // as its field SyncStatistics

class Ddp final : public SingleDevice {
 public:
  Ddp(const OptimConfig& optim, const DistConfig& dist, World& world, Precision precision = Precision::fp32,
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

  const GradientHook hook_;  // empty: the reducer's own reduction, or dist.compression
  bool buffers_due_ = true;  // true once per step, before its first forward

  std::optional<ControlLane> lane_{};             // once prepared
  std::shared_ptr<SyncStatistics> statistics_{};  // nullptr without SyncBatchNorm
};

}  // namespace lockstep
