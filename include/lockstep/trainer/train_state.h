// lockstep/trainer/train_state.h
//
// What a run counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/control.h>

namespace [[gnu::visibility("default")]] lockstep {

struct TrainState {
  std::int64_t step = 0;     ///< optimizer updates done
  std::int64_t epoch = 0;    ///< epochs completed
  std::int64_t samples = 0;  ///< seen over all ranks
};

/// One step's results as device tensors, never read by the library: `loss.item()` in a callback is its author's own
/// wait.
struct StepResult {
  at::Tensor loss{};       ///< 0-dim; this rank's mean over the step; undefined when the rank had no samples
  at::Tensor grad_norm{};  ///< 0-dim, before clipping; undefined without optim.max_grad_norm
  double lr = 0;
};

/// The checkpoint with the best value of checkpoint.monitor.
struct BestCheckpoint {
  std::int64_t step = 0;
  double value = 0;
  std::string path{};  ///< its folder
};

struct FitResult {
  TrainState state{};
  StopKind stop = StopKind::none;                         ///< none: the limits were reached
  std::string why{};                                      ///< one line: where the run ended and why
  std::vector<std::pair<std::string, double>> metrics{};  ///< the last value of every reported metric, "val_..." too
  std::optional<BestCheckpoint> best{};                   ///< by checkpoint.monitor; nullopt: none
  double seconds = 0;                                     ///< of this fit
};

}  // namespace lockstep
