// lockstep/optim/lr_schedule.h
//
// Learning rate factor of each step. A pure function; torch-free header.
#pragma once

#include <cstdint>

#include <lockstep/config/train_config.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Factor of the learning rate for the update from `step` to `step + 1` (0-based). Linear warm-up: (step + 1) /
/// warmup_steps. Then constant 1, or cosine from 1 at the end of the warm-up to min_lr_ratio at `decay_steps`
/// (Loshchilov & Hutter 2017, one cycle), then constant. If config.decay_steps is 0, `total_steps` replaces it; the
/// caller rejects a cosine schedule if both are 0.
double lr_factor(const OptimConfig& config, std::int64_t total_steps, std::int64_t step);

}  // namespace lockstep
