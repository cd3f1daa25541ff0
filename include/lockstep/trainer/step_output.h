// lockstep/trainer/step_output.h
//
// What a forward returns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Result of a forward. A loss converts to it implicitly: `return torch::cross_entropy_loss(...)`.
struct StepOutput {
  at::Tensor loss{};  ///< 0-dim, the mean over `count`; undefined: the batch is not trained on, only its metrics count
  /// Number by which the mean was divided, 0-dim on the device; undefined: batch.samples. Example: the number of tokens
  /// of a language model with padding; any split of a global batch over ranks and micro-batches then gives the same
  /// gradient. The count may be 0; a negative one is refused where the host sees it, on the CPU. The loss may then be
  /// NaN, but its backward with an incoming gradient of 0 must give zeros, as cross_entropy with ignore_index does. If
  /// your code divides, divide by count.clamp_min(1). Either all micro-batches of an optimizer have a count, or none
  /// has. In the backward it has the dtype of the loss: bf16 rounds it to 8 bits. With fp16 it is divided by about the
  /// samples of a rank before, against infinity.
  at::Tensor count{};
  /// 0-dim means over count, with any names; summed on the device, reduced over ranks only at a report.
  NamedTensors metrics{};
  /// Samples of its batch: its weight, if it has no count. forward() and minimize() set it; nullopt: an output that the
  /// task built itself, with the samples of the last forward.
  std::optional<std::int64_t> samples{};
  /// Of minimize(): the outputs of its micro-batches, which Step::add adds in place of what is left of their mean.
  std::shared_ptr<const void> parts{};
  StepOutput() = default;
  StepOutput(at::Tensor loss_) : loss(std::move(loss_)) {}  // NOLINT(google-explicit-constructor)
  StepOutput(at::Tensor loss_, NamedTensors metrics_) : loss(std::move(loss_)), metrics(std::move(metrics_)) {}
};

}  // namespace lockstep
