// lockstep/trainer/step_output.h
//
// What a forward returns, and means of it over micro-batches, steps and ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Result of a forward. A loss converts to it implicitly: `return torch::cross_entropy_loss(...)`.
struct StepOutput {
  at::Tensor loss{};  ///< 0-dim, the mean over `count`; undefined: the batch is not trained on
  /// Number by which the mean was divided, 0-dim on the device; undefined: batch.samples. Example: the number of tokens
  /// of a language model with padding; any split of a global batch over ranks and micro-batches then gives the same
  /// gradient. The count may be 0. The loss may then be NaN, but its backward with an incoming gradient of 0 must give
  /// zeros, as cross_entropy with ignore_index does. If your code divides, divide by count.clamp_min(1). Either all
  /// micro-batches of an optimizer have a count, or none has.
  at::Tensor count{};
  NamedTensors metrics{};  ///< 0-dim means over count; summed on the device, reduced over ranks only at a report
  StepOutput() = default;
  StepOutput(at::Tensor loss_) : loss(std::move(loss_)) {}  // NOLINT(google-explicit-constructor)
  StepOutput(at::Tensor loss_, NamedTensors metrics_) : loss(std::move(loss_)), metrics(std::move(metrics_)) {}
};

/// Sums of losses and metrics, weighted by count. They stay on the device until they are read.
class Meter {
 public:
  void add(const StepOutput& output, std::int64_t samples);
  /// Collective. Means over all ranks since the last take(), "loss" first; {} if no rank added anything. Waits for the
  /// device.
  std::vector<std::pair<std::string, double>> means(World& world);
  /// Collective. Returns the same means and resets the sums.
  std::vector<std::pair<std::string, double>> take(World& world);
  /// Collective. The sums of each rank since the last take(), for a checkpoint; {} if no rank added anything.
  NamedTensors save(World& world);
  /// Continues with the sums of save(), on any number of ranks, if the metrics are still the same. Ignores other
  /// tensors.
  void load(const NamedTensors& sums, const World& world);

 private:
  void agree_on_names(World& world);
  at::Tensor own_sums(const World& world) const;  // [names + 2]: sums, counts, samples
  void continue_restored();

  struct Restored {
    std::vector<std::string> names{};
    std::vector<at::Tensor> sums{};
    at::Tensor counts{};
    double samples = 0;
  };

  std::vector<std::string> names_{};  // "loss", then the task's metrics; agreed over ranks at the first take()
  std::vector<at::Tensor> sums_{};    // same order as names_, weighted by count
  double samples_ = 0;                // weight that is known on the host
  at::Tensor counts_{};               // weight that only the device knows
  bool agreed_ = false;
  Restored restored_{};  // of load(), until the names of the metrics are known
};

/// A rank's outputs of several micro-batches. Means are weighted by count and stay on the device; no call waits for it.
class MicroBatches {
 public:
  using Value = std::function<at::Tensor(const StepOutput&)>;

  /// Ignores an output without a loss.
  void add(const StepOutput& output, std::int64_t samples);
  bool empty() const noexcept { return parts_.empty(); }
  std::int64_t samples() const;
  /// Mean loss of this rank; 0 if the count is 0. Requires !empty().
  at::Tensor mean(const Value& value) const;
  /// Means of loss and metrics, and the sum of the counts. Has no loss if empty().
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
