// lockstep/metrics/metric.h
//
// Metrics with a state: quantities of a whole data set that are not a mean of batches, such as F1 or AUROC.
#pragma once

#include <list>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

namespace metrics {

/// How the states of all ranks become one.
enum class StateReduction {
  sum,
  min,
  max,
  cat,  ///< along dimension 0, rank 0's first
};

/// A quantity that is computed from a few tensors, its state. A derived class declares them with add_state and changes
/// them in a function update(...), which the task calls for each batch; docs/metrics.md has an example. The state is
/// reduced over the ranks before the value is computed, so the value is exact for any number of ranks and any batches.
class Metric {
 public:
  Metric() = default;
  virtual ~Metric() = default;
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  /// The value of the present state: 0-dim, or one element per class, label or output. Not a collective.
  virtual at::Tensor compute() const = 0;
  /// Names of the elements of a value with several, in the order of its memory; they follow the metric's name in
  /// reports. Default: their indices.
  virtual std::vector<std::string> element_names() const { return {}; }

  /// Collective. The value over all ranks, on the CPU. The state stays as it is. Waits for the device. Throws:
  /// CommError if a rank has another state; Error if the state keeps an autograd graph.
  at::Tensor value(World& world);
  void reset();                 ///< the state is as at the beginning
  void to(c10::Device device);  ///< moves the state; the Trainer does it for those of Task::metrics

 protected:
  /// `initial`: float64 or int64; with `cat` of shape [0, ...]. The reference stays valid as long as the metric.
  at::Tensor& add_state(std::string name, at::Tensor initial, StateReduction reduction);
  /// A sum of float64, zero at the beginning.
  at::Tensor& add_sum(std::string name, at::IntArrayRef shape = {});

 private:
  friend struct MetricAccess;
  struct State {
    std::string name;
    at::Tensor initial;
    StateReduction reduction;
    at::Tensor value;
  };
  std::list<State> states_{};  // references to the values stay valid
};

/// A metric of a task and its name in reports.
struct NamedMetric {
  std::string name;
  Metric& metric;
};

}  // namespace metrics
}  // namespace lockstep
