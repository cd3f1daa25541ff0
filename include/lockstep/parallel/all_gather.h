// lockstep/parallel/all_gather.h
//
// A gather with a gradient, for losses that need the outputs of all ranks.
#pragma once

#include <ATen/core/Tensor.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// Collective, and so is the backward through the result. As World::all_gather, with a gradient: rank 0's rows, rank
/// 1's, ... along dimension 0; the number of rows may differ. The backward adds up the gradients of the result over
/// the ranks, and gives each rank those of its own rows. So a training step in which every rank returns the loss of
/// all rows, or the mean of its own rows' losses, has the gradient that one rank has with the whole batch.
///
/// Every rank must call it equally often, and use the result in its loss. With several calls in one backward, the ranks
/// must use their results in the same graph, because that decides in which order they add up. A rank without samples in
/// a micro-batch does not run Task::training_step, and the others wait for it until dist.timeout_s; see "A loss over
/// all ranks" in docs/recipes.md. Without a second derivative. `world` must outlive the backward.
/// Throws: as World::all_gather; Error in a backward with create_graph.
[[nodiscard]] at::Tensor all_gather_with_grad(World& world, const at::Tensor& tensor);

}  // namespace lockstep
