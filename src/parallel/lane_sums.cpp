#include "parallel/lane_sums.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

LaneSums::LaneSums(std::int64_t size, c10::Device device, bool late)
    : device_(device), late_(late), read_(static_cast<std::size_t>(size), 0.0F) {
  if (late_) {
    sums_ = at::zeros({size}, at::TensorOptions().device(device_).dtype(at::kFloat));
    host_ = at::zeros({size}, at::kFloat);
  }
  if (!device_.is_cpu()) {
    host_ = host_.pin_memory();
    copied_ = std::make_unique<c10::Event>(device_.type());
  }
}

void LaneSums::begin_step() {
  std::fill(read_.begin(), read_.end(), 0.0F);
  copy_is_on_its_way_ = late_ && added_;
  if (copy_is_on_its_way_) {
    host_.copy_(sums_, /*non_blocking=*/true);
    if (copied_) {
      copied_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    }
  }
  added_ = false;
}

void LaneSums::add(const at::Tensor& lane) {
  const at::NoGradGuard no_grad;
  if (!late_) {
    const float* values = lane.const_data_ptr<float>();
    std::transform(read_.begin(), read_.end(), values, read_.begin(), std::plus<>());
  } else if (added_) {
    sums_.add_(lane);
  } else {
    sums_.copy_(lane);
  }
  added_ = true;
}

const std::vector<float>& LaneSums::read() {
  if (copy_is_on_its_way_) {
    if (copied_) {
      copied_->synchronize();
    }
    const float* values = host_.const_data_ptr<float>();
    std::copy(values, values + read_.size(), read_.begin());
    copy_is_on_its_way_ = false;
  }
  return read_;
}

}  // namespace lockstep
