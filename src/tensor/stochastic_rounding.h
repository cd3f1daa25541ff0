// Rounding to bfloat16 that is right on average.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Rounds each value up or down at random, so that the expected result is the value. Values that bfloat16 has, infinity
/// and NaN stay as they are. The same `key` (a hash) and position give the same decision on every rank, device and
/// call; the generators of LibTorch are not used. `values`: float32 and contiguous. Returns bfloat16, same shape.
at::Tensor stochastically_rounded(const at::Tensor& values, std::uint64_t key);
/// The same into `rounded`: bfloat16, contiguous, same shape.
void round_into(const at::Tensor& rounded, const at::Tensor& values, std::uint64_t key);
/// The key of one call: a hash of the run's seed and of what tells the call apart from the others.
std::uint64_t rounding_key(std::uint64_t seed, std::initializer_list<std::uint64_t> call) noexcept;
/// The key with which positions begin at `position` instead of 0.
std::uint64_t key_from(std::uint64_t key, std::int64_t position) noexcept;
/// The same by operations on tensors, which every device has. On the CPU it is many times slower.
void round_by_operations(const at::Tensor& rounded, const at::Tensor& values, std::uint64_t key);

}  // namespace lockstep
