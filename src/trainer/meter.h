// Means of losses and metrics over steps and ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/fwd.h>
#include <lockstep/trainer/step_output.h>
#include <lockstep/trainer/train_state.h>

namespace lockstep {

/// Sums of losses and metrics, weighted by count. They stay on the device until they are read. Each name has a weight
/// of its own: an output may have no loss, and metrics that others do not have.
class Meter {
 public:
  /// `left_out`: 0-dim, 1: the output does not count, 0: it does; undefined: it does.
  void add(const StepOutput& output, std::int64_t samples, const at::Tensor& left_out = {});
  /// Collective. Means over all ranks since the last take(), "loss" first; without the names for which nothing counts.
  /// Waits for the device.
  Metrics means(World& world);
  /// Collective. Returns the same means and resets the sums.
  Metrics take(World& world);
  /// Collective. The sums of each rank since the last take(), for a checkpoint; {} if no rank added anything.
  NamedTensors save(World& world);
  /// Continues with the sums of save(), on any number of ranks. Ignores other tensors.
  void load(const NamedTensors& saved, const World& world);

 private:
  struct Mean {
    std::string name;
    at::Tensor sum{};     // undefined: nothing was added since the last take()
    at::Tensor counts{};  // weight that only the device knows; undefined: 0
    double samples = 0;   // weight that is known on the host
  };

  Mean& mean_of(const StepOutput& output, std::size_t index);
  void agree_on_names(World& world);
  at::Tensor own_sums(const World& world) const;
  at::Tensor sums_of_all(World& world) const;

  std::vector<Mean> means_{};  // the loss, then metrics; the first `agreed_` are the same on all ranks
  std::size_t agreed_ = 0;
};

}  // namespace lockstep
