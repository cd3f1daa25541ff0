// lockstep/optim/lr_schedule.h
//
// Step -> learning rate factor. Pure. Torch-free header.
#pragma once

#include <cstdint>

#include <lockstep/config/train_config.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Factor of the learning rate for the update that makes step `step` into `step + 1` (0-based). Warm-up is linear:
/// (step + 1) / warmup_steps; then constant 1, or cosine from 1 at the end of the warm-up to min_lr_ratio at `decay_steps`
/// (Loshchilov & Hutter 2017, one cycle), constant afterwards. `total_steps` is used where config.decay_steps is 0; if both
/// are 0 cosine is refused by the caller.
double lr_factor(const OptimConfig& config, std::int64_t total_steps, std::int64_t step);

}  // namespace lockstep
