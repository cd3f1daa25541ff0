// lockstep/checkpoint/rng_state.h
//
// The state of this rank's random number generators as one byte tensor.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace [[gnu::visibility("default")]] lockstep {

/// State of the CPU generator, and of the device's if it is a GPU. Shape: [n] uint8 on the CPU.
at::Tensor rng_state(c10::Device device);
/// Whether set_rng_state() accepts it: a state of another kind of device does not fit.
bool fits_rng_state(const at::Tensor& state, c10::Device device);
/// Throws: CheckpointError if the bytes are not a state for this device.
void set_rng_state(const at::Tensor& state, c10::Device device);
/// Seeds both generators from (seed, rank, step); the same on every machine.
void seed_rng(std::uint64_t seed, int rank, std::int64_t step, c10::Device device);

}  // namespace lockstep
