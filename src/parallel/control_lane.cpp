#include "parallel/control_lane.h"

#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace lockstep {

ControlLane::ControlLane(c10::Device device)
    : values_(at::zeros({kSize}, at::TensorOptions().device(device).dtype(at::kFloat))),
      sums_(kSize, device, /*late=*/!device.is_cpu()) {}

void ControlLane::clear() {
  values_ = at::zeros_like(values_);
  has_count_ = false;
  has_loss_ = false;
  has_inputs_ = false;
  written_ = {};
}

// The optimizers share the lane, so the count of one optimizer is removed before the next.
void ControlLane::write_count(const at::Tensor& count) {
  if (count.defined()) {
    values_.select(0, kCount).copy_(count);
    if (!has_count_) {
      values_.select(0, kCounted).fill_(1);
    }
  } else if (has_count_) {
    values_.narrow(0, kCount, 2).zero_();
  }
  has_count_ = count.defined();
}

void ControlLane::write_loss(const at::Tensor& loss) { write(kLoss, loss, has_loss_); }

void ControlLane::write_inputs(const at::Tensor& square) { write(kInputs, square, has_inputs_); }

void ControlLane::write(Slot slot, const at::Tensor& value, bool& is_written) {
  if (value.defined()) {
    values_.select(0, slot).copy_(value);
  } else if (is_written) {
    values_.select(0, slot).zero_();
  }
  is_written = value.defined();
}

void ControlLane::write_requests(StepRequests mine) {
  if (mine == written_) {
    return;
  }
  written_ = mine;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < StepRequests::kAll.size(); ++i) {
    values_.select(0, kRequests + static_cast<std::int64_t>(i)).fill_(mine.*StepRequests::kAll[i] ? 1 : 0);
  }
}

StepRequests ControlLane::requests() {
  const std::vector<float>& sums = sums_.read();
  StepRequests all;
  for (std::size_t i = 0; i < StepRequests::kAll.size(); ++i) {
    all.*StepRequests::kAll[i] = sums[kRequests + i] > 0;
  }
  return all;
}

}  // namespace lockstep
