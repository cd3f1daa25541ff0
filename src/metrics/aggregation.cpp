#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/metrics/aggregation.h>

#include "base/mapped.h"
#include "base/option_check.h"

namespace lockstep::metrics {
namespace {

constexpr double kSmallest = 1e-9;  // of the buckets of Quantile
constexpr double kLargest = 1e9;

at::Tensor infinite(double sign) { return at::full({}, sign * std::numeric_limits<double>::infinity(), at::kDouble); }

}  // namespace

void SumMetric::update(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  sum_ += values.sum(at::kDouble);
  count_ += values.numel();
}

void MeanMetric::update(const at::Tensor& values, const at::Tensor& weights) {
  const c10::NoGradGuard no_grad;
  if (weights.defined()) {
    const at::Tensor expanded = weights.to(at::kDouble).expand_as(values);
    sum_ += (values * expanded).sum();
    weight_ += expanded.sum();
  } else {
    sum_ += values.sum(at::kDouble);
    weight_ += values.numel();
  }
}

at::Tensor MeanMetric::compute() const { return sum_ / weight_; }

MinMetric::MinMetric() : smallest_(add_state("smallest", infinite(1), StateReduction::min)) {}

void MinMetric::update(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  if (values.numel() > 0) {
    smallest_ = at::minimum(smallest_, values.min().to(at::kDouble));
    count_ += values.numel();
  }
}

MaxMetric::MaxMetric() : largest_(add_state("largest", infinite(-1), StateReduction::max)) {}

void MaxMetric::update(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  if (values.numel() > 0) {
    largest_ = at::maximum(largest_, values.max().to(at::kDouble));
    count_ += values.numel();
  }
}

namespace {

std::string element_name(double quantile) { return fmt::format("p{:.6g}", quantile * 100); }

double checked_gamma(const std::vector<double>& quantiles, double relative_error) {
  OptionCheck check("Quantile");
  std::set<std::string> names;
  for (const double quantile : quantiles) {
    check.refuse_if(!(quantile >= 0 && quantile <= 1),
                    fmt::format("found the quantile {}, expected a number from 0 to 1", quantile));
    check.refuse_if(!names.insert(element_name(quantile)).second,
                    fmt::format("found two quantiles with the name {}", element_name(quantile)));
  }
  check.refuse_if(quantiles.empty(), "found no quantile, expected at least one")
      .expect("relative_error", relative_error, relative_error >= 1e-5 && relative_error < 1,
              "0.00001 or more and less than 1")
      .throw_problems();
  return (1 + relative_error) / (1 - relative_error);
}

}  // namespace

Quantile::Quantile(std::vector<double> quantiles, double relative_error)
    : quantiles_(std::move(quantiles)),
      gamma_(checked_gamma(quantiles_, relative_error)),
      buckets_(std::llround(std::ceil(std::log(kLargest / kSmallest) / std::log(gamma_)))),
      counts_(add_sum("counts", {2 * buckets_ + 1})) {}

void Quantile::update(const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  const at::Tensor x = values.to(at::kDouble).flatten();
  const at::Tensor magnitude = x.abs();
  const at::Tensor bucket = ((magnitude / kSmallest).log() / std::log(gamma_)).ceil().clamp(1, buckets_);
  const at::Tensor position = at::where(magnitude < kSmallest, 0.0, bucket) * x.sign() + buckets_;
  const at::Tensor counted = x.isnan().logical_not();
  counts_.scatter_add_(0, at::where(counted, position, 0.0).to(at::kLong), counted.to(at::kDouble));
}

at::Tensor Quantile::compute() const {
  const at::Tensor counts = counts_.cpu();
  const double* count = counts.const_data_ptr<double>();
  const double total = counts.sum().item<double>();
  at::Tensor values = at::full({std::ssize(quantiles_)}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  for (std::size_t i = 0; i < quantiles_.size() && total > 0; ++i) {
    const double rank = quantiles_[i] * (total - 1);
    std::int64_t position = 0;
    for (double below = count[0]; below <= rank; below += count[position]) {
      ++position;
    }
    const std::int64_t bucket = position - buckets_;
    const double magnitude =
        bucket == 0 ? 0 : kSmallest * 2 * std::pow(gamma_, static_cast<double>(std::abs(bucket))) / (gamma_ + 1);
    values.mutable_data_ptr<double>()[i] = bucket < 0 ? -magnitude : magnitude;
  }
  return values;
}

std::vector<std::string> Quantile::element_names() const { return mapped(quantiles_, element_name); }

}  // namespace lockstep::metrics
