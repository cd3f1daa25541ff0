// lockstep/nn/recompute.h
//
// Activation recomputation: less memory for more time.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Runs `f` without keeping what its backward needs, except the inputs; the backward runs `f` again (Chen et al. 2016,
/// "Training Deep Nets with Sublinear Memory Cost"). The second run has the random numbers and the autocast of the
/// first, so the gradients are the same. `f` may use any tensors besides its inputs, but must not change its inputs,
/// and must depend on nothing that changes in between; what it writes, such as statistics of batch norm, is written
/// twice. `f` is kept until the backward, which comes after the end of the function that calls this: capture local
/// variables, such as tensors, by value. There is no second derivative. Throws: Error (an undefined input; in the
/// backward: `f` used other parameters than before), and what `f` throws.
[[nodiscard]] std::vector<at::Tensor> recompute(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> f, const std::vector<at::Tensor>& inputs);
/// `recompute([this](const at::Tensor& x) { return block(x); }, x)`
[[nodiscard]] at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> f, const at::Tensor& input);

}  // namespace lockstep
