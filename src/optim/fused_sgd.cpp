#include "optim/fused_sgd.h"

#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>

#include "optim/fp32_update.h"
#include "tensor/one_thread.h"

namespace lockstep {
namespace {

const at::Tensor& momentum_buffer(const torch::optim::OptimizerParamState& state) {
  return static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer();
}

// The kernel of LibTorch 2.11 for half types on the CPU gives wrong values to all elements of a parameter but the last
// ones, which fill no vector.
bool has_wrong_kernel(const at::Tensor& value) {
  return value.is_cpu() && (value.scalar_type() == at::kHalf || value.scalar_type() == at::kBFloat16);
}

/// The same update by operations on all tensors of the list together.
void update_by_foreach(at::TensorList values, at::TensorList gradients, at::TensorList buffers, bool buffers_are_new,
                       const torch::optim::SGDOptions& options) {
  std::vector<at::Tensor> changes = gradients.vec();
  if (options.weight_decay() != 0) {
    changes = at::_foreach_add(changes, values, options.weight_decay());
  }
  if (options.momentum() != 0) {
    if (buffers_are_new) {
      at::_foreach_copy_(buffers, changes);
    } else {
      at::_foreach_mul_(buffers, options.momentum());
      at::_foreach_add_(buffers, changes, 1 - options.dampening());
    }
    changes = options.nesterov() ? at::_foreach_add(changes, buffers, options.momentum()) : buffers.vec();
  }
  at::_foreach_add_(values, changes, -options.lr());
}

}  // namespace

FusedSgd::FusedSgd(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const torch::optim::SGDOptions& defaults)
    : ListOptimizer(groups, std::make_unique<torch::optim::SGDOptions>(defaults), momentum_buffer) {}

void FusedSgd::update() {
  const at::Tensor skip = std::exchange(found_inf_, {});
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const GradientList& list = lists()[i];
    const OneThread for_small_tensors(list.is_small);
    const auto& options = options_of<torch::optim::SGDOptions>(list);
    const bool with_momentum = options.momentum() != 0;
    if (with_momentum && list.is_new && skip.defined() && skip.item<float>() != 0) {
      continue;  // a new buffer gets its first values from the kernel, which would not write them
    }
    if (with_momentum && buffers_[i].empty()) {
      buffers_[i] = momentum_buffers(list);
    }
    const bool buffers_are_new = with_momentum && list.is_new;
    const auto update_tensors = [&](at::TensorList values, at::TensorList gradients, at::TensorList buffers) {
      if (has_wrong_kernel(values.front())) {
        if (!skip.defined() || skip.item<float>() == 0) {
          update_by_foreach(values, gradients, buffers, buffers_are_new, options);
        }
        return;
      }
      // A new buffer starts as the gradient; in the next step its list is not new and joins the others. CUDA's kernel
      // warns if there is a first step without a buffer.
      at::_fused_sgd_(values, gradients, buffers, options.weight_decay(), options.momentum(), options.lr(),
                      options.dampening(), options.nesterov(), /*maximize=*/false, /*is_first_step=*/buffers_are_new,
                      /*grad_scale=*/{}, skip.defined() ? std::optional(skip) : std::nullopt);
    };
    const std::vector<at::Tensor> none;
    const std::vector<at::Tensor>& buffers = with_momentum ? buffers_[i] : none;
    if (rounds(list)) {
      update_in_fp32({list.values, list.gradients, buffers}, UpdateUnit::elements,
                     {.key = rounding_key(), .positions = list.positions},
                     [&](UpdateLists& part) { update_tensors(part[0], part[1], part[2]); });
    } else {
      update_tensors(list.values, list.gradients, buffers);
    }
  }
}

std::vector<at::Tensor> FusedSgd::momentum_buffers(const GradientList& list) {
  std::vector<at::Tensor> buffers;
  buffers.reserve(list.parameters.size());
  for (const at::Tensor& parameter : list.parameters) {
    if (list.is_new) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(at::empty_like(parameter));
      state_[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    buffers.push_back(as_real(momentum_buffer(*state_.at(parameter.unsafeGetTensorImpl()))));
  }
  return buffers;
}

}  // namespace lockstep
