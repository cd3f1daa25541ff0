// lockstep/metrics/regression.h
//
// Metrics of predicted numbers and images, with the names and the definitions of torchmetrics. Predictions and targets
// have the same shape.
#pragma once

#include <cstdint>

#include <lockstep/metrics/metric.h>

namespace [[gnu::visibility("default")]] lockstep {
namespace metrics {

/// Mean of the squared errors, or its root.
class MeanSquaredError final : public Metric {
 public:
  /// `squared`: false gives the root of it.
  explicit MeanSquaredError(bool squared = true) : squared_(squared) {}
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  at::Tensor compute() const override;

 private:
  bool squared_;
  at::Tensor& sum_ = add_sum("sum");
  at::Tensor& count_ = add_sum("count");
};

/// Mean of the absolute errors.
class MeanAbsoluteError final : public Metric {
 public:
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  at::Tensor compute() const override;

 private:
  at::Tensor& sum_ = add_sum("sum");
  at::Tensor& count_ = add_sum("count");
};

/// Coefficient of determination; with several outputs the mean of theirs.
class R2Score final : public Metric {
 public:
  /// `outputs`: columns of predictions and targets. Throws: ConfigError.
  explicit R2Score(std::int64_t outputs = 1);
  void update(const at::Tensor& predictions, const at::Tensor& targets);  ///< [N], or [N, outputs]
  at::Tensor compute() const override;

 private:
  at::Tensor& targets_;   // [parts, 1 + 2 outputs]: their number, their means, their sums of squared deviations
  at::Tensor& residual_;  // sum of the squared errors
};

/// In decibel.
class PeakSignalNoiseRatio final : public Metric {
 public:
  /// `data_range`: the largest value minus the smallest possible one. Throws: ConfigError.
  explicit PeakSignalNoiseRatio(double data_range);
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  at::Tensor compute() const override;

 private:
  double data_range_;
  at::Tensor& sum_ = add_sum("sum");
  at::Tensor& count_ = add_sum("count");
};

}  // namespace metrics
}  // namespace lockstep
