// What ranks told each other in the reductions of a step, brought to the host without a wait.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace lockstep {

/// Adds up the control lanes of all reductions of a step, however many there are, so that each number that was sent is
/// read in exactly one step. Late, on a GPU: what a step added is copied to the host when the next one begins, and is
/// read during that one, when it has arrived.
class LaneSums {
 public:
  LaneSums(std::int64_t size, c10::Device device, bool late);

  /// What was added before is now read (late), or forgotten.
  void begin_step();
  /// lane: [size], float, on the device.
  void add(const at::Tensor& lane);
  /// Late: waits for the copy that began with this step.
  const std::vector<float>& read();
  bool must_wait() const noexcept { return copy_is_on_its_way_; }

 private:
  const c10::Device device_;
  const bool late_;
  std::vector<float> read_;
  at::Tensor sums_;  // late: of this step, on the device
  at::Tensor host_;  // late: of the step before, in pinned memory
  std::unique_ptr<c10::Event> copied_{};
  bool added_ = false;
  bool copy_is_on_its_way_ = false;
};

}  // namespace lockstep
