// Means of losses and metrics over the micro-batches of a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <lockstep/fwd.h>
#include <lockstep/trainer/step_output.h>

namespace lockstep {

/// A rank's outputs of several micro-batches. Means are weighted by count and stay on the device; no call waits for it.
class MicroBatches {
 public:
  using Value = std::function<at::Tensor(const StepOutput&)>;

  /// Ignores an output with neither a loss nor metrics.
  void add(const StepOutput& output, std::int64_t samples);
  /// The memory is kept.
  void clear() noexcept { parts_.clear(); }
  bool empty() const noexcept { return parts_.empty(); }
  /// The outputs, without their graphs, and their samples.
  const std::vector<std::pair<StepOutput, std::int64_t>>& parts() const noexcept { return parts_; }
  std::int64_t samples() const;
  /// Mean of the defined values of this rank; 0 if their count is 0; undefined: there are none.
  at::Tensor mean(const Value& value) const;
  /// Sum of the counts of the losses; undefined: they have none.
  at::Tensor count() const;
  /// Means of loss and metrics, and the sum of the counts.
  StepOutput output() const;
  /// Collective. The mean loss over all ranks: 0-dim float64.
  at::Tensor mean_over_ranks(World& world) const;

 private:
  struct Sum {
    at::Tensor values{};
    at::Tensor count{};  // undefined: only samples were counted
    double samples = 0;
  };
  Sum sum(const Value& value) const;

  std::vector<std::pair<StepOutput, std::int64_t>> parts_{};
};

}  // namespace lockstep
