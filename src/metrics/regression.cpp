#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/metrics/regression.h>

#include "base/option_check.h"
#include "tensor/shape_text.h"

namespace lockstep::metrics {
namespace {

/// Predictions minus targets, float64.
at::Tensor error_of(const char* metric, const at::Tensor& predictions, const at::Tensor& targets) {
  if (predictions.sizes() != targets.sizes()) {
    throw Error(fmt::format("{}: found predictions of shape {} and targets of shape {}, expected equal shapes", metric,
                            shape_text(predictions.sizes()), shape_text(targets.sizes())));
  }
  return predictions.to(at::kDouble) - targets.to(at::kDouble);
}

std::int64_t checked_outputs(std::int64_t outputs) {
  OptionCheck("R2Score").expect("outputs", outputs, outputs >= 1, "1 or more").throw_problems();
  return outputs;
}

}  // namespace

void MeanSquaredError::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  sum_ += error_of("MeanSquaredError", predictions, targets).square().sum();
  count_ += targets.numel();
}

at::Tensor MeanSquaredError::compute() const { return squared_ ? sum_ / count_ : (sum_ / count_).sqrt(); }

void MeanAbsoluteError::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  sum_ += error_of("MeanAbsoluteError", predictions, targets).abs().sum();
  count_ += targets.numel();
}

at::Tensor MeanAbsoluteError::compute() const { return sum_ / count_; }

R2Score::R2Score(std::int64_t outputs)
    : sum_(add_sum("sum", {checked_outputs(outputs)})),
      sum_of_squares_(add_sum("sum_of_squares", {outputs})),
      residual_(add_sum("residual", {outputs})),
      smallest_(add_state("smallest", at::full({outputs}, HUGE_VAL, at::kDouble), StateReduction::min)),
      largest_(add_state("largest", at::full({outputs}, -HUGE_VAL, at::kDouble), StateReduction::max)) {}

void R2Score::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  const at::Tensor errors = error_of("R2Score", predictions, targets);
  const std::int64_t outputs = sum_.size(0);
  if (!(errors.dim() == 1 && outputs == 1) && !(errors.dim() == 2 && errors.size(1) == outputs)) {
    throw Error(fmt::format("R2Score: found predictions of shape {}, expected [N, {}]", shape_text(predictions.sizes()),
                            outputs));
  }
  const at::Tensor values = targets.to(at::kDouble).view({-1, outputs});
  sum_ += values.sum(0);
  sum_of_squares_ += values.square().sum(0);
  residual_ += errors.view({-1, outputs}).square().sum(0);
  count_ += values.size(0);
  if (values.size(0) > 0) {
    smallest_ = at::minimum(smallest_, values.amin(0));
    largest_ = at::maximum(largest_, values.amax(0));
  }
}

at::Tensor R2Score::compute() const {
  const at::Tensor total = sum_of_squares_ - sum_.square() / count_;
  const at::Tensor scores = 1 - residual_ / total;
  // Constant targets: 1 if all predictions are right, else 0. Rounding leaves a total of them that is not quite 0.
  const at::Tensor constant = at::where(residual_ == 0, at::ones_like(residual_), at::zeros_like(residual_));
  return at::where((smallest_ == largest_).logical_or(total == 0), constant, scores).mean();
}

PeakSignalNoiseRatio::PeakSignalNoiseRatio(double data_range) : data_range_(data_range) {
  OptionCheck("PeakSignalNoiseRatio")
      .expect("data_range", data_range, data_range > 0, "a number above 0")
      .throw_problems();
}

void PeakSignalNoiseRatio::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  sum_ += error_of("PeakSignalNoiseRatio", predictions, targets).square().sum();
  count_ += targets.numel();
}

at::Tensor PeakSignalNoiseRatio::compute() const {
  return 10 * (2 * std::log10(data_range_) - (sum_ / count_).log10());
}

}  // namespace lockstep::metrics
