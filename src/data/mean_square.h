// The size of the inputs of a batch, as one number.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <lockstep/data/batch.h>

namespace lockstep {

/// The mean of the squares of all floating-point and complex numbers of `input` and `fields`: 0-dim float64 on
/// `device`; undefined: there are none. A number above 1e19 may count as infinite. Does not wait for the device.
at::Tensor mean_square(const Batch& batch, c10::Device device);

}  // namespace lockstep
