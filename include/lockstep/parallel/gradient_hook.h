// lockstep/parallel/gradient_hook.h
//
// A reduction of gradients by the program, for example in another format or in two stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Gradients of some parameters, which are reduced together.
struct GradientBucket {
  at::Tensor gradients{};     ///< [elements], of one dtype, on the device: this rank's, not yet divided by the ranks
  std::int64_t index = 0;     ///< among the buckets of the optimizer, from 0; the same bucket in every step
  std::size_t optimizer = 0;  ///< its position in the list given to Strategy::prepare()
  std::int64_t step = 0;      ///< the number given to Strategy::begin_step()
};

/// Replaces the values of bucket.gradients by their mean over the ranks: bitwise the same on all of them, or the
/// replicas diverge. Called after the backward, once per bucket and reduction, in the same order on every rank. It may
/// use the collectives of `world`, the same ones on every rank. It does not see sparse gradients, nor the requests of
/// the ranks and their counts: these are sent without it. Gradients that are weighted by counts are divided by a power
/// of two before the call and multiplied by it afterwards, so that they are about as large as means. An exception ends
/// the run on all ranks.
using GradientHook = std::function<void(const GradientBucket& bucket, World& world)>;

}  // namespace lockstep
