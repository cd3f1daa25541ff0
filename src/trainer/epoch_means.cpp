#include "trainer/epoch_means.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr std::string_view kMetric = "metric.";               // states of Task::metrics
constexpr std::string_view kWindowMetric = "window_metric.";  // the earlier ones of the window
constexpr std::string_view kEpochMetric = "epoch_metric.";    // the earlier ones of the epoch
constexpr std::string_view kEpoch = "epoch.";                 // sums of the epoch

NamedTensors with_prefix(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors found;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) {
      found.emplace_back(name.substr(prefix.size()), tensor);
    }
  }
  return found;
}

void append(NamedTensors& all, std::string_view prefix, NamedTensors tensors) {
  for (auto& [name, tensor] : tensors) {
    all.emplace_back(fmt::format("{}{}", prefix, name), std::move(tensor));
  }
}

}  // namespace

void EpochMeans::end_window(metrics::MetricSet& metrics) {
  if (is_on_) {
    in_epoch_ = metrics.take(in_epoch_);
  } else {
    metrics.reset();
  }
  in_window_.clear();
}

Metrics EpochMeans::end_epoch(metrics::MetricSet& metrics, World& world) {
  Metrics means = meter_.take(world);
  for (auto& metric : metrics.values(world, in_epoch_)) {
    means.push_back(std::move(metric));
  }
  for (auto& [name, value] : means) {
    name = fmt::format("{}{}", kEpochPrefix, name);
  }
  in_window_ = metrics.take(in_window_);
  in_epoch_.clear();
  return means;
}

void EpochMeans::save(metrics::MetricSet& metrics, World& world, NamedTensors& report) {
  append(report, kMetric, metrics.save(world));
  if (is_on_) {
    append(report, kWindowMetric, metrics.save(world, in_window_));
    append(report, kEpochMetric, metrics.save(world, in_epoch_));
    append(report, kEpoch, meter_.save(world));
  }
}

bool EpochMeans::is_sum_of_window(std::string_view name) {
  constexpr std::array kOthers{kMetric, kWindowMetric, kEpochMetric, kEpoch};
  return std::ranges::none_of(kOthers, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

void EpochMeans::load(const NamedTensors& report, metrics::MetricSet& metrics, const World& world) {
  if (is_on_) {
    metrics.load(with_prefix(report, kWindowMetric), world);
    in_window_ = metrics.take({});
    metrics.load(with_prefix(report, kEpochMetric), world);
    in_epoch_ = metrics.take({});
    meter_.load(with_prefix(report, kEpoch), world);
  }
  metrics.load(with_prefix(report, kMetric), world);
}

}  // namespace lockstep
