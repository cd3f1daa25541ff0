// lockstep/trainer/step_output.h
//
// What a forward returns.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Result of a forward. A loss converts to it implicitly: `return torch::cross_entropy_loss(...)`.
struct StepOutput {
  at::Tensor loss{};  ///< 0-dim, the mean over `count`; undefined: the batch is not trained on
  /// Number by which the mean was divided, 0-dim on the device; undefined: batch.samples. Example: the number of tokens
  /// of a language model with padding; any split of a global batch over ranks and micro-batches then gives the same
  /// gradient. The count may be 0; a negative one is refused where the host sees it, on the CPU. The loss may then be
  /// NaN, but its backward with an incoming gradient of 0 must give zeros, as cross_entropy with ignore_index does. If
  /// your code divides, divide by count.clamp_min(1). Either all micro-batches of an optimizer have a count, or none
  /// has.
  at::Tensor count{};
  NamedTensors metrics{};  ///< 0-dim means over count; summed on the device, reduced over ranks only at a report
  /// Samples of its batch: its weight, if it has no count. forward() and minimize() set it; nullopt: an output that the
  /// task built itself, with the samples of the last forward.
  std::optional<std::int64_t> samples{};
  StepOutput() = default;
  StepOutput(at::Tensor loss_) : loss(std::move(loss_)) {}  // NOLINT(google-explicit-constructor)
  StepOutput(at::Tensor loss_, NamedTensors metrics_) : loss(std::move(loss_)), metrics(std::move(metrics_)) {}
};

}  // namespace lockstep
