// Values that ranks exchange in the reductions of a step, copied to the host without a wait.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace lockstep {

/// Adds the control lanes of all reductions of a step, so that each value is read in exactly one step. In late mode, on
/// a GPU, the sums of a step are copied to the host when the next step begins, and are read during that step.
class LaneSums {
 public:
  LaneSums(std::int64_t size, c10::Device device, bool late);

  /// Begins a step: the sums of the previous step can now be read (late) or are cleared.
  void begin_step();
  /// lane: [size], float, on the device.
  void add(const at::Tensor& lane);
  /// Late: waits for the copy that began with this step.
  const std::vector<float>& read();
  /// What read() waits for; null: for nothing.
  const c10::Event* on_its_way() const noexcept { return copy_is_on_its_way_ ? copied_.get() : nullptr; }

 private:
  const c10::Device device_;
  const bool late_;
  std::vector<float> read_;
  at::Tensor sums_;  // late: sums of this step, on the device
  at::Tensor host_;  // late: sums of the previous step, in pinned memory
  std::unique_ptr<c10::Event> copied_{};
  bool added_ = false;
  bool copy_is_on_its_way_ = false;
};

}  // namespace lockstep
