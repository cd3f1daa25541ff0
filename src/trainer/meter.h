// Means of losses and metrics over steps and ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/fwd.h>
#include <lockstep/trainer/step_output.h>
#include <lockstep/trainer/train_state.h>

namespace lockstep {

/// Sums of losses and metrics, weighted by count. They stay on the device until they are read.
class Meter {
 public:
  /// `left_out`: 0-dim, 1: the output does not count, 0: it does; undefined: it does.
  void add(const StepOutput& output, std::int64_t samples, const at::Tensor& left_out = {});
  /// Collective. Means over all ranks since the last take(), "loss" first; {} if nothing counts. Waits for the
  /// device.
  Metrics means(World& world);
  /// Collective. Returns the same means and resets the sums.
  Metrics take(World& world);
  /// Collective. The sums of each rank since the last take(), for a checkpoint; {} if no rank added anything.
  NamedTensors save(World& world);
  /// Continues with the sums of save(), on any number of ranks, if the metrics are still the same. Ignores other
  /// tensors.
  void load(const NamedTensors& sums, const World& world);

 private:
  void agree_on_names(World& world);
  at::Tensor own_sums(const World& world) const;  // [names + 2]: sums, counts, samples
  void continue_restored();

  struct Restored {
    std::vector<std::string> names{};
    std::vector<at::Tensor> sums{};
    at::Tensor counts{};
    double samples = 0;
  };

  std::vector<std::string> names_{};  // "loss", then the task's metrics; agreed over ranks at the first take()
  std::vector<at::Tensor> sums_{};    // same order as names_, weighted by count
  double samples_ = 0;                // weight that is known on the host
  at::Tensor counts_{};               // weight that only the device knows
  bool agreed_ = false;
  Restored restored_{};  // of load(), until the names of the metrics are known
};

}  // namespace lockstep
