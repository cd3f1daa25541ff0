// Decides before an update whether the inputs, the loss or the gradient norm are a spike: spike.policy skip. On the
// device of the model, so that no step waits for it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/config/train_config.h>
#include <lockstep/tensor/named_tensors.h>
#include <lockstep/world/world.h>

namespace lockstep {

inline constexpr std::size_t kFewestForSpikes = 10;   ///< values from which a standard deviation says something
inline constexpr double kLeastSpikeDeviation = 1e-6;  ///< relative to the mean
inline constexpr double kLargestInput = 1e19;         ///< the square of a larger one may be infinite in float32

/// What can be a spike, in the order in which a step has it: what is large in an input makes the others large.
inline constexpr std::array<std::string_view, 3> kSpikeNames{"inputs", "loss", "grad_norm"};
/// Those that are looked at.
constexpr std::span<const std::string_view> spike_names(const SpikeConfig& config) {
  return std::span(kSpikeNames).subspan(config.inputs ? 0 : 1);
}

/// A value that is too large; the same on every rank.
struct Spike {
  std::int64_t step = 0;  ///< as Step::number()
  std::string name{};     ///< the first of kSpikeNames that is a spike
  double value = 0;
  double mean = 0;  ///< of the window
  double z_score = 0;
  std::vector<std::int64_t> ids{};  ///< samples of that step, of all ranks; empty for a stream
  std::optional<int> rank{};  ///< of several, the only one whose own loss is a spike; nullopt: several, or not known

  std::string text() const;  ///< "the loss of step 12 is 9.1, 7.2 standard deviations above 2.3, the mean of ..."
};

class SpikeGate {
 public:
  explicit SpikeGate(const SpikeConfig& config) : config_(config), names_(spike_names(config)) {}

  /// 0-dim, of an optimizer of the task, the same on all ranks.
  struct Values {
    at::Tensor inputs{};  // mean square; not used without spike.inputs
    at::Tensor loss{};
    at::Tensor grad_norm{};
  };
  /// Returns 1 if the update has to be skipped, else 0: 0-dim float32 on the device of the values. Each optimizer has
  /// windows of its own.
  at::Tensor check(std::int64_t step, std::size_t optimizer, const Values& found);
  /// What check() does if the values are not on the CPU. Flags and windows are the same bit for bit.
  at::Tensor check_by_operations(std::int64_t step, std::size_t optimizer, const Values& found);
  /// The steps that were skipped since the last call, without `ids` and `rank`. Waits for the device.
  std::vector<Spike> take_skipped(const World& world);

  /// The windows, by "<optimizer>.<name>".
  NamedTensors save() const;
  void load(const NamedTensors& state);

 private:
  /// One row for each of names_. As SpikeWatch's: a spike is clipped to the limit before it enters.
  struct Windows {
    at::Tensor values{};  // [names, spike.window], float64, the newest last; unused ones are 0 and first
    at::Tensor counts{};  // [names], float64: those that are used
  };

  Windows& windows_of(std::size_t optimizer);
  /// For small models, operations on tensors cost much more than their arithmetic.
  at::Tensor check_on_host(std::int64_t step, std::size_t optimizer, const Values& found);
  /// From so many values on a standard deviation says something.
  double fewest() const {
    return static_cast<double>(std::min(static_cast<std::int64_t>(kFewestForSpikes), config_.window));
  }

  SpikeConfig config_;
  std::span<const std::string_view> names_;
  std::vector<Windows> windows_{};     // per optimizer
  at::Tensor age_{};                   // [spike.window]: 0 for the newest value
  std::vector<std::int64_t> steps_{};  // of pending_
  std::vector<at::Tensor> pending_{};  // [4, names]: values, means, z-scores, which of them are spikes
};

}  // namespace lockstep
