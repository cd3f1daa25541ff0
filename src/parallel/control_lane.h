// What the ranks tell each other in the reductions of the gradients.
//
// Note [Control lane]: requests such as stop or save, the token count, the loss and the mean square of the inputs are
// the gradient of a small additional parameter of the reducer that is not part of the module. backward() starts from
// the loss and from this lane, with the rank's values as its gradient. So they are averaged with the first bucket at no
// measurable cost, and every rank reads the same numbers after the same step. A request is sent in one reduction and
// read in one step. On a GPU no step waits for the copy to the host: it is read one step later. The other values stay
// on the device.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <lockstep/parallel/strategy.h>

#include "parallel/lane_sums.h"

namespace lockstep {

class ControlLane {
 public:
  enum Slot : std::int64_t { kRequests = 0, kCount = StepRequests::kAll.size(), kCounted, kLoss, kInputs, kSize };

  explicit ControlLane(c10::Device device);

  /// Forgets what this rank wrote. The sums of the last step can still be read.
  void clear();

  // The values of this rank for the next reduction.
  void write_count(const at::Tensor& count);    ///< undefined: the rank has none
  void write_loss(const at::Tensor& loss);      ///< likewise
  void write_inputs(const at::Tensor& square);  ///< likewise
  void write_requests(StepRequests mine);
  const at::Tensor& values() const noexcept { return values_; }  ///< [kSize], float, on the device

  void begin_step() { sums_.begin_step(); }
  /// `reduced`: the lane of all ranks, after one of the reductions of this step.
  void add(const at::Tensor& reduced) { sums_.add(reduced); }
  /// What requests() waits for; null: for nothing.
  const c10::Event* on_its_way() const noexcept { return sums_.on_its_way(); }
  /// Those of all ranks.
  StepRequests requests();

 private:
  /// `is_written`: whether the slot has a value of this rank.
  void write(Slot slot, const at::Tensor& value, bool& is_written);

  at::Tensor values_;
  bool has_count_ = false;
  bool has_loss_ = false;
  bool has_inputs_ = false;
  StepRequests written_{};
  LaneSums sums_;
};

}  // namespace lockstep
