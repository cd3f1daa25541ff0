// A number by which ranks compare a tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// The sum of the bits of the elements, read as integers, modulo 2^64; of a complex number, of both parts. It is the
/// same on every kind of device. Shape: 0-dim, int64; on the device of the tensor.
at::Tensor digest_of(const at::Tensor& tensor);

}  // namespace lockstep
