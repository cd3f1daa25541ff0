// Values that are not finite or far too large, and what follows: optim.non_finite and spike.policy. Each consequence is
// an event.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/config/train_config.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/trainer/train_state.h>
#include <lockstep/world/world.h>

#include "trainer/output/run_files.h"
#include "trainer/watch/finite_watch.h"
#include "trainer/watch/kept_buffers.h"
#include "trainer/watch/replaced_samples.h"
#include "trainer/watch/run_snapshot.h"
#include "trainer/watch/spike_watch.h"

namespace lockstep {

/// When act() is called. A straight run and a resumed one have the same reports by steps, and other reports by time.
enum class Occasion { report_by_steps, other_report, save };

class Anomalies {
 public:
  Anomalies(const TrainConfig& config, World& world, RunFiles& files)
      : config_(config), world_(world), files_(files), spikes_(config.spike) {}

  /// Collective with a policy rollback. Before the first step.
  void begin(const RunSnapshot::Parts& run, std::int64_t step) {
    spikes_.begin(run.strategy.optimizer_count());
    if (can_leave_out()) {
      buffers_.emplace(run.module, world_.device());
    }
    take_snapshot(run, step);
  }
  /// Records the results of a step. Does not wait for the device.
  void add(std::int64_t step, const StepResult& result, const StepBatches& batches);
  /// Collective. Looks at the steps since the last call and at the parameters, after `step` steps. Tells which samples
  /// were replaced and which steps were skipped; act() does the rest, perhaps after several calls. Waits for the
  /// device.
  void look(const torch::nn::Module& module, std::int64_t step);
  /// A policy is rollback.
  bool can_roll_back() const noexcept;
  /// act() will put the weights of before back.
  bool will_roll_back() const noexcept;
  /// Collective. Warns of what look() has found, or puts the weights of before back; not at another report, after which
  /// the next occasion does it. Learning rates are lowered only at a report by steps. Returns whether weights were put
  /// back. Throws: Error (exit 65) if the run must end.
  bool act(const RunSnapshot::Parts& run, std::int64_t step, Occasion occasion);
  /// The weights after this step are those of an earlier one.
  bool has_rolled_back(std::int64_t step) const noexcept { return rolled_back_at_ == step; }
  /// Of the last look().
  bool parameters_finite() const noexcept { return parameters_finite_; }

  SpikeWatch& spikes() noexcept { return spikes_; }
  /// nullptr: no step can be left out.
  KeptBuffers* buffers() noexcept { return buffers_ ? &*buffers_ : nullptr; }

 private:
  /// The update of a step may be left out; with fp16_mixed that of one whose gradients are too large.
  bool can_leave_out() noexcept {
    return config_.optim.non_finite == NonFinitePolicy::skip || spikes_.gate() != nullptr ||
           config_.precision == Precision::fp16_mixed;
  }
  void tell_replaced();
  void tell_skipped(std::int64_t step);
  void tell_spike(const Spike& spike, bool skipped);
  void tell_non_finite(const NonFinite& found, std::int64_t step);
  void lower_rates(const Spike& why, Strategy& strategy, std::int64_t step);
  /// Both return whether weights were put back.
  bool act_on(const NonFinite& found, const RunSnapshot::Parts& run, std::int64_t step);
  bool act_on(const Spike& spike, const RunSnapshot::Parts& run, std::int64_t step);
  void roll_back(const std::string& why, std::optional<int> rank, const RunSnapshot::Parts& run, std::int64_t step);
  void take_snapshot(const RunSnapshot::Parts& run, std::int64_t step);

  const TrainConfig& config_;
  World& world_;
  RunFiles& files_;
  FiniteWatch finite_{};
  SpikeWatch spikes_;
  std::optional<NonFinite> non_finite_{};  // the first one since act(); there may be several look() before it
  std::optional<Spike> spike_{};           // the same
  std::optional<KeptBuffers> buffers_{};
  ReplacedSamples replaced_{};
  RunSnapshot snapshot_{};
  // Samples of this rank since the copy or the last rollback, the first million.
  std::vector<std::int64_t> to_leave_out_{};
  int rollbacks_in_a_row_ = 0;
  std::int64_t rolled_back_at_ = -1;  // the step after which that was done the last time
  bool parameters_finite_ = true;
  bool told_non_finite_ = false;
};

}  // namespace lockstep
