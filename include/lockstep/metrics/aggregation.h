// lockstep/metrics/aggregation.h
//
// Sums, means, extremes and quantiles of any numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/metrics/metric.h>

namespace [[gnu::visibility("default")]] lockstep {
namespace metrics {

/// Sum of values.
class SumMetric final : public Metric {
 public:
  void update(const at::Tensor& values);  ///< any shape
  at::Tensor compute() const override { return sum_.clone(); }

 private:
  at::Tensor& sum_ = add_sum("sum");
  at::Tensor& count_ = add_sum("count");  // a sum of 0 is a value too
};

/// Mean of values, also weighted.
class MeanMetric final : public Metric {
 public:
  /// `values`: any shape. `weights`: a shape that can be expanded to it; undefined: 1.
  void update(const at::Tensor& values, const at::Tensor& weights = {});
  at::Tensor compute() const override;

 private:
  at::Tensor& sum_ = add_sum("sum");
  at::Tensor& weight_ = add_sum("weight");
};

/// The smallest value.
class MinMetric final : public Metric {
 public:
  MinMetric();
  void update(const at::Tensor& values);  ///< any shape with an element
  at::Tensor compute() const override { return smallest_; }

 private:
  at::Tensor& smallest_;
  at::Tensor& count_ = add_sum("count");  // infinity is a value too
};

/// The largest value.
class MaxMetric final : public Metric {
 public:
  MaxMetric();
  void update(const at::Tensor& values);  ///< any shape with an element
  at::Tensor compute() const override { return largest_; }

 private:
  at::Tensor& largest_;
  at::Tensor& count_ = add_sum("count");  // minus infinity is a value too
};

/// Quantiles with a bounded relative error and a state of a fixed size: DDSketch (Masson, Rim and Lee, 2019) with
/// buckets for absolute values from 1e-9 to 1e9; smaller ones count as 0, larger ones as 1e9. NaN is not counted.
class Quantile final : public Metric {
 public:
  /// `quantiles`: each from 0 to 1. `relative_error`: 0.00001 or more, below 1; the state has about 2 x 20.7 /
  /// relative_error numbers. Throws: ConfigError.
  explicit Quantile(std::vector<double> quantiles, double relative_error = 0.01);
  void update(const at::Tensor& values);                    ///< any shape
  at::Tensor compute() const override;                      ///< one element per quantile; NaN without values
  std::vector<std::string> element_names() const override;  ///< "p50", "p99.9"

 private:
  std::vector<double> quantiles_;
  double gamma_;          // ratio of the bounds of a bucket
  std::int64_t buckets_;  // of each sign
  at::Tensor& counts_;    // [2 * buckets_ + 1]: from the largest negative values to the largest positive ones
};

}  // namespace metrics
}  // namespace lockstep
