// Finds inputs, losses and gradient norms that are far above those of the steps before. It does not make a step wait
// for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/config/train_config.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/tensor/named_tensors.h>
#include <lockstep/trainer/train_state.h>
#include <lockstep/world/world.h>

#include "trainer/watch/spike_gate.h"

namespace lockstep {

class SpikeWatch {
 public:
  explicit SpikeWatch(const SpikeConfig& config) : config_(config) {
    if (config.z_score > 0 && config.policy == SpikePolicy::skip) {
      gate_.emplace(config);
    }
  }

  /// Before the first step. `optimizers`: of the task.
  void begin(std::size_t optimizers) noexcept { has_one_optimizer_ = optimizers == 1; }
  /// Records the results of a step. Steps must be consecutive. Does nothing without spike.z_score.
  void add(std::int64_t step, const StepResult& result, const StepBatches& batches);
  /// Collective. Checks the steps since the last call. Waits for the device.
  std::optional<Spike> look(World& world);
  /// The steps that spike.policy skip has skipped between the last two calls of look(); the same on every rank.
  const std::vector<Spike>& skipped() const noexcept { return skipped_; }
  /// For spike.policy lower_lr: remembered until a report that lowers the learning rates, also in checkpoints.
  void request_lr_reduction(const Spike& why) {
    if (!lowers_) {
      lowers_ = why;
    }
  }
  /// The first spike that asked for it; nullopt: none has.
  std::optional<Spike> take_lr_reduction() { return std::exchange(lowers_, std::nullopt); }
  /// nullptr without spike.policy skip.
  SpikeGate* gate() noexcept { return gate_ ? &*gate_ : nullptr; }

  /// Of the steps before the last look().
  NamedTensors save() const;
  void load(const NamedTensors& state);

 private:
  /// The values of one kind. A spike is clipped to the limit before it enters, so that the window follows a loss that
  /// stays high.
  class Window {
   public:
    /// The number of standard deviations above the mean, if that is too many.
    std::optional<double> add(double value, const SpikeConfig& config);
    double mean() const;

    std::deque<double> values{};
  };

  /// Collective. Checks the pending values.
  std::optional<Spike> first_spike(World& world);
  /// This rank's own loss in that step is a spike.
  bool is_above_limit(const Spike& spike) const;
  /// Collective. Adds the rank to each spike of the loss.
  void name_ranks(const std::vector<Spike*>& spikes, World& world) const;
  /// Collective. Adds the samples of all ranks to each.
  void name_samples(const std::vector<Spike*>& spikes, World& world) const;

  SpikeConfig config_;
  std::optional<SpikeGate> gate_{};  // looks at the values before the update instead
  bool has_one_optimizer_ = true;
  std::vector<Spike> skipped_{};
  std::optional<Spike> lowers_{};         // why the next report lowers the learning rates
  std::int64_t begin_ = 0;                // step of the first pending value
  std::vector<at::Tensor> own_losses_{};  // 0-dim, this rank's means; undefined: none
  // Without gate_, else empty.
  std::vector<at::Tensor> losses_{};  // 0-dim, this rank's sum over its counts or samples; undefined: none
  std::vector<at::Tensor> counts_{};  // 0-dim, of this rank; undefined: samples are counted
  std::vector<at::Tensor> norms_{};   // 0-dim; undefined: not computed, as in a step without an update
  std::vector<double> samples_{};     // of this rank; 0: it has a count instead
  // With spike.inputs, else empty.
  std::vector<at::Tensor> inputs_{};   // 0-dim, this rank's mean square x its samples; undefined: none
  std::vector<double> all_samples_{};  // of all ranks
  std::vector<std::vector<std::int64_t>> ids_{};
  std::map<std::string_view, Window> windows_{};  // by kSpikeNames
};

}  // namespace lockstep
