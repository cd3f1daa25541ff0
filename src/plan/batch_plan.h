// Micro-batches of other sizes.
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/plan/plan.h>

namespace lockstep {

/// Samples per step of a rank that has the most.
std::int64_t largest_share(const BatchPlan& plan, int world_size);

/// The plan with micro-batches of `batch_size` samples. The global batch stays if it is given; else the accumulation
/// stays.
BatchPlan with_batch_size(const BatchPlan& plan, std::int64_t batch_size, int world_size);

/// "--batch_size 16 --accumulation 4 --global_batch_size 128"
std::string flags_of(const BatchPlan& plan);

}  // namespace lockstep
