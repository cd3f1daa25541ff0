// The metrics of a task: their values over all ranks, and their states in a checkpoint.
#pragma once

#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/metrics/metric.h>
#include <lockstep/tensor/named_tensors.h>
#include <lockstep/world/world.h>

namespace lockstep::metrics {

// A public header declares it, and so would export it.
struct [[gnu::visibility("hidden")]] MetricAccess;

struct MetricAccess {
  static std::list<Metric::State>& states(Metric& metric) { return metric.states_; }
};

/// At its end, the metrics have the states that they had at its beginning.
class StatesKept {
 public:
  explicit StatesKept(std::span<const NamedMetric> metrics);
  ~StatesKept();
  StatesKept(const StatesKept&) = delete;
  StatesKept& operator=(const StatesKept&) = delete;

 private:
  std::vector<std::pair<Metric*, std::vector<at::Tensor>>> kept_{};
};

/// While it exists, the metrics begin anew; at its end they have their states again. update() changes a state in place,
/// so without new states it would change the kept ones.
class FreshStates {
 public:
  explicit FreshStates(std::span<const NamedMetric> metrics);

 private:
  StatesKept of_before_;
};

class MetricSet {
 public:
  /// A copy of all states, in order; {}: those of the beginning.
  using States = std::vector<at::Tensor>;

  MetricSet() = default;
  /// Moves the states to the device of `world`. Throws: ConfigError (a name is empty or used twice).
  MetricSet(std::vector<NamedMetric> metrics, const World& world);

  /// Computes the present values. Throws: ConfigError if one has more elements than a report takes.
  void check_sizes() const;

  /// Collective. Names and values over all ranks of the metrics that were updated since reset(), or are in `earlier`,
  /// states from before that. Waits for the device.
  std::vector<std::pair<std::string, double>> values(World& world, const States& earlier = {});
  void reset();
  /// The states together with `earlier`; resets them.
  States take(const States& earlier);
  /// Collective. The states of each rank, by name.
  NamedTensors save(World& world);
  /// Collective. The same of other states; {} of none.
  NamedTensors save(World& world, const States& states);
  /// Continues with the states of save(), on any number of ranks. A metric whose states are not all there, or have
  /// other shapes now, begins anew.
  void load(const NamedTensors& saved, const World& world);

 private:
  std::vector<NamedMetric> metrics_{};
  bool agreed_ = false;  // all ranks have the same states
};

}  // namespace lockstep::metrics
