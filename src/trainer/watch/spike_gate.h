// Decides on the device, before an update, whether the gradient norm or the loss is a spike: spike.policy skip. No step
// waits for the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/config/train_config.h>
#include <lockstep/tensor/named_tensors.h>
#include <lockstep/world/world.h>

namespace lockstep {

inline constexpr std::size_t kFewestForSpikes = 10;   ///< values from which a standard deviation says something
inline constexpr double kLeastSpikeDeviation = 1e-6;  ///< relative to the mean

/// A value that is too large; the same on every rank.
struct Spike {
  std::int64_t step = 0;  ///< as Step::number()
  std::string name{};     ///< "loss" or "grad_norm"; "loss" if both are spikes
  double value = 0;
  double mean = 0;  ///< of the window
  double z_score = 0;
  std::vector<std::int64_t> ids{};  ///< samples of that step, of all ranks; empty for a stream

  std::string text() const;  ///< "the loss of step 12 is 9.1, 7.2 standard deviations above 2.3, the mean of ..."
};

class SpikeGate {
 public:
  explicit SpikeGate(const SpikeConfig& config) : config_(config) {}

  /// `loss` and `grad_norm`: 0-dim, of an optimizer of the task, the same on all ranks. Returns 1 if the update has to
  /// be skipped, else 0: 0-dim float32 on their device. Each optimizer has windows of its own.
  at::Tensor check(std::int64_t step, std::size_t optimizer, const at::Tensor& loss, const at::Tensor& grad_norm);
  /// The steps that were skipped since the last call, without `ids`. Waits for the device.
  std::vector<Spike> take_skipped(const World& world);

  /// The windows, by "<optimizer>.<name>".
  NamedTensors save() const;
  void load(const NamedTensors& state);

 private:
  static constexpr std::array kNames{"loss", "grad_norm"};

  /// One row for each of kNames. As SpikeWatch's: a spike is clipped to the limit before it enters.
  struct Windows {
    at::Tensor values{};  // [2, spike.window], float64, the newest last; unused ones are 0 and first
    at::Tensor counts{};  // [2], float64: those that are used
  };

  Windows& windows_of(std::size_t optimizer);

  SpikeConfig config_;
  std::vector<Windows> windows_{};     // per optimizer
  at::Tensor age_{};                   // [spike.window]: 0 for the newest value
  std::vector<std::int64_t> steps_{};  // of pending_
  std::vector<at::Tensor> pending_{};  // [4, 2]: values, means, z-scores, which of them are spikes
};

}  // namespace lockstep
