// Micro-batches of other sizes.
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/plan/plan.h>

namespace lockstep {

/// Samples per step of a rank that has the most.
std::int64_t largest_share(const BatchPlan& plan, int world_size);

/// Samples of its largest micro-batch: batch_size may be larger than the share of any rank.
std::int64_t largest_micro_batch(const BatchPlan& plan, int world_size);

/// The same steps in micro-batches of half of `too_large` samples, rounded up.
BatchPlan halve_batch(const BatchPlan& plan, std::int64_t too_large, int world_size);

/// Puts the batch into the settings and the loaders of the plan.
void set_batch(Plan& plan, const BatchPlan& batch);

/// The plan with micro-batches of `batch_size` samples. The global batch stays if it is given; else the accumulation
/// stays.
BatchPlan with_batch_size(const BatchPlan& plan, std::int64_t batch_size, int world_size);

/// "--batch_size 16 --accumulation 4 --global_batch_size 128"
std::string flags_of(const BatchPlan& plan);

}  // namespace lockstep
