// lockstep/checkpoint/rng_state.h
//
// The random number generators of this rank as one byte tensor.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace [[gnu::visibility("default")]] lockstep {

/// CPU generator, and the device's if it is a GPU. Shape: [n] uint8 on the CPU.
at::Tensor rng_state(c10::Device device);
/// Whether set_rng_state() would take it: a state that was saved on another kind of device does not fit.
bool fits_rng_state(const at::Tensor& state, c10::Device device);
/// Throws: CheckpointError when the bytes are not a state for this device.
void set_rng_state(const at::Tensor& state, c10::Device device);
/// Seeds both from (seed, rank, step), the same mixing everywhere.
void seed_rng(std::uint64_t seed, int rank, std::int64_t step, c10::Device device);

}  // namespace lockstep
