// Puts the random number generators back.
#pragma once

#include <exception>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <lockstep/checkpoint/rng_state.h>

namespace lockstep {

/// At its end the generators of this rank are where they were at its beginning.
class RngScope {
 public:
  explicit RngScope(c10::Device device) : device_(device), before_(rng_state(device)) {}
  ~RngScope() {
    try {
      set_rng_state(before_, device_);
    } catch (const std::exception&) {  // of a GPU that takes no more calls, which another error tells
    }
  }
  RngScope(const RngScope&) = delete;
  RngScope& operator=(const RngScope&) = delete;

 private:
  const c10::Device device_;
  const at::Tensor before_;
};

}  // namespace lockstep
