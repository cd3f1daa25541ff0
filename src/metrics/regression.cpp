#include <cmath>
#include <cstdint>
#include <limits>

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

namespace {

// The sum of the squares minus the square of the sum would lose the digits of targets that are far from 0, such as
// times. So each part of the targets has its mean and its squared deviations from it, and parts are put together by the
// formula of Chan, Golub and LeVeque (1979). Means are computed as differences to one value, for the same reason.

/// `values`: [N, outputs]. Result: [1, 1 + 2 outputs].
at::Tensor moments_of(const at::Tensor& values) {
  const at::Tensor first = values.narrow(0, 0, 1);
  const at::Tensor mean = first + (values - first).mean(0, /*keepdim=*/true);
  return at::cat({at::full({1, 1}, static_cast<double>(values.size(0)), values.options()), mean,
                  (values - mean).square().sum(0, /*keepdim=*/true)},
                 1);
}

/// `parts`: [parts, 1 + 2 outputs]. Result: [1, 1 + 2 outputs], of all parts together.
at::Tensor moments_together(const at::Tensor& parts) {
  const std::int64_t outputs = (parts.size(1) - 1) / 2;
  const at::Tensor counts = parts.narrow(1, 0, 1);
  const at::Tensor means = parts.narrow(1, 1, outputs);
  const at::Tensor first = means.narrow(0, 0, 1);
  const at::Tensor count = counts.sum(0, /*keepdim=*/true);
  const at::Tensor mean = first + (counts * (means - first)).sum(0, /*keepdim=*/true) / count;
  const at::Tensor squares = parts.narrow(1, 1 + outputs, outputs) + counts * (means - mean).square();
  return at::cat({count, mean, squares.sum(0, /*keepdim=*/true)}, 1);
}

}  // namespace

R2Score::R2Score(std::int64_t outputs)
    : targets_(
          add_state("targets", at::empty({0, 1 + 2 * checked_outputs(outputs)}, at::kDouble), StateReduction::cat)),
      residual_(add_sum("residual", {outputs})) {}

void R2Score::update(const at::Tensor& predictions, const at::Tensor& targets) {
  const c10::NoGradGuard no_grad;
  const at::Tensor errors = error_of("R2Score", predictions, targets);
  const std::int64_t outputs = residual_.size(0);
  if (!(errors.dim() == 1 && outputs == 1) && !(errors.dim() == 2 && errors.size(1) == outputs)) {
    throw Error(fmt::format("R2Score: found predictions of shape {}, expected [N, {}]", shape_text(predictions.sizes()),
                            outputs));
  }
  const at::Tensor values = targets.to(at::kDouble).view({-1, outputs});
  if (values.size(0) == 0) {
    return;
  }
  targets_ = moments_together(at::cat({targets_, moments_of(values)}));
  residual_ += errors.view({-1, outputs}).square().sum(0);
}

at::Tensor R2Score::compute() const {
  if (targets_.size(0) == 0) {
    return at::full({}, std::numeric_limits<double>::quiet_NaN(), residual_.options());
  }
  const std::int64_t outputs = residual_.size(0);
  const at::Tensor total = moments_together(targets_).narrow(1, 1 + outputs, outputs).squeeze(0);
  const at::Tensor scores = 1 - residual_ / total;
  // Constant targets, of which the total is exactly 0: 1 if all predictions are right, else 0.
  return at::where(total == 0, (residual_ == 0).to(at::kDouble), scores).mean();
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
