// lockstep/checkpoint/rng_state.h
//
// The state of this rank's random number generators as one byte tensor.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace [[gnu::visibility("default")]] lockstep {

/// From what seed_rng() makes the seed of a rank's generators.
struct RngSeed {
  std::uint64_t seed = 42;  ///< config.seed
  int rank = 0;
  std::int64_t step = 0;  ///< completed steps of the run
};

/// State of the CPU generator, and of the device's if it is a GPU. Shape: [n] uint8 on the CPU.
at::Tensor rng_state(c10::Device device);
/// Throws: CheckpointError if the bytes are not a state for this device.
void set_rng_state(const at::Tensor& state, c10::Device device);
/// Seeds both generators; the same on every machine.
void seed_rng(const RngSeed& seed, c10::Device device);
/// For a resume at `seed.step` with CheckpointContents::per_rank. If the checkpoint was saved with another number of
/// ranks or on another kind of device, this rank has no state in it: it logs that, and calls seed_rng(). Throws:
/// CheckpointError if its state is damaged.
void restore_rng(const at::Tensor& state, const RngSeed& seed, c10::Device device);

}  // namespace lockstep
