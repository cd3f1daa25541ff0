// Rounding to bfloat16 that is right on average.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Rounds each value up or down at random, so that the expected result is the value. Values that bfloat16 has, infinity
/// and NaN stay as they are. The same `key` (a hash) and position give the same decision on every rank, device and
/// call; the generators of LibTorch are not used. `values`: float32 and contiguous. Returns bfloat16, same shape.
at::Tensor stochastically_rounded(const at::Tensor& values, std::uint64_t key);
/// The same by operations on tensors, which every device has. On the CPU it is many times slower.
at::Tensor rounded_by_operations(const at::Tensor& values, std::uint64_t key);

}  // namespace lockstep
