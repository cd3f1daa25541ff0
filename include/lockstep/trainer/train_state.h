// lockstep/trainer/train_state.h
//
// Progress and results of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/control.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Names and values of metrics, in the order of the report.
using Metrics = std::vector<std::pair<std::string, double>>;
/// The value of the metric. Throws: Error listing the names, if there is no such metric.
double metric_of(const Metrics& metrics, std::string_view name);

/// How far a training is.
struct TrainState {
  std::int64_t step = 0;     ///< completed optimizer updates
  std::int64_t epoch = 0;    ///< epochs completed
  std::int64_t samples = 0;  ///< used by all ranks together
};

/// Results of one step as device tensors. The library never reads them, but `loss.item()` in a callback synchronizes
/// with the device.
struct StepResult {
  at::Tensor loss{};   ///< 0-dim; this rank's mean over the step; undefined if the rank had no samples
  at::Tensor count{};  ///< 0-dim; the number by which it is a mean (StepOutput::count); undefined: the samples
  /// 0-dim, of all parameters that were updated, before clipping; undefined without optim.max_grad_norm,
  /// optim.max_grad_value and spike.policy skip.
  at::Tensor grad_norm{};
  std::vector<at::Tensor> grad_norms{};  ///< of each of several optimizers; undefined: not updated. Empty with one
  at::Tensor inputs{};  ///< 0-dim; mean square of this rank's inputs; undefined if no spikes of it are looked for, or
                        ///< without any
  /// 0-dim: 1 if an update was left out because a gradient was not finite, or a loss; undefined without fp16_mixed and
  /// optim.non_finite skip.
  at::Tensor skipped{};
  at::Tensor spike{};  ///< 0-dim: 1 if an update was left out because of spike.policy skip; undefined without it
  double lr = 0;
};

/// The checkpoint with the best value of checkpoint.monitor.
struct BestCheckpoint {
  std::int64_t step = 0;
  double value = 0;
  std::string path{};  ///< its directory
};

/// How a fit ended, and its last values.
struct FitResult {
  TrainState state{};
  StopKind stop = StopKind::none;  ///< none: the limits were reached
  std::string why{};               ///< one line: the step at which the run ended, and the reason
  /// The last value of every reported metric, "val_..." too, except epoch and samples_per_s. If the run was finished
  /// before this fit: those of its last step.
  Metrics metrics{};
  std::optional<BestCheckpoint> best{};  ///< by checkpoint.monitor; nullopt: no such checkpoint
  double duration_s = 0;                 ///< of this fit
};

}  // namespace lockstep
