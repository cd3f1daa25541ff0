// Decides on the device, before an update, whether the gradient norm is a spike: spike.policy skip. No step waits for
// the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/config/train_config.h>
#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

inline constexpr std::size_t kFewestForSpikes = 10;   ///< values from which a standard deviation says something
inline constexpr double kLeastSpikeDeviation = 1e-6;  ///< relative to the mean

class SpikeGate {
 public:
  /// A step that was skipped.
  struct Skipped {
    std::int64_t step = 0;
    double value = 0;
    double mean = 0;  ///< of the window
    double z_score = 0;
  };

  explicit SpikeGate(const SpikeConfig& config) : config_(config) {}

  /// `norm`: 0-dim, of the gradients of an optimizer of the task, the same on all ranks. Returns 1 if the update has to
  /// be skipped, else 0: 0-dim float32 on its device. Each optimizer has a window of its own.
  at::Tensor check(std::int64_t step, std::size_t optimizer, const at::Tensor& norm);
  /// The steps that were skipped since the last call. Waits for the device.
  std::vector<Skipped> take_skipped();

  /// The windows, by "<optimizer>".
  NamedTensors save() const;
  void load(const NamedTensors& state);

 private:
  /// As SpikeWatch's: a spike is clipped to the limit before it enters.
  struct Window {
    at::Tensor values{};  // [spike.window], float64, the newest last; unused ones are 0 and first
    at::Tensor count{};   // 0-dim float64: those that are used
  };

  void begin(Window& window, c10::Device device) const;

  SpikeConfig config_;
  std::vector<Window> windows_{};      // per optimizer
  at::Tensor age_{};                   // [spike.window]: 0 for the newest value
  std::vector<std::int64_t> steps_{};  // of pending_
  std::vector<at::Tensor> pending_{};  // [4]: norm, mean, z-score, skipped
};

}  // namespace lockstep
