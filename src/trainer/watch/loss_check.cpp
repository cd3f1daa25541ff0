#include "trainer/watch/loss_check.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/nn/module.h>

#include <lockstep/base/log.h>

#include "base/mapped.h"
#include "base/text.h"
#include "tensor/shape_text.h"

namespace lockstep {
namespace {

namespace backward = torch::autograd::generated;

/// Calls `enter` once for each node of the graph. It returns whether the nodes behind this one are wanted.
template <class Enter>
void walk(const at::Tensor& loss, const Enter& enter) {
  std::vector<const torch::autograd::Node*> waiting{loss.grad_fn().get()};
  std::unordered_set<const torch::autograd::Node*> seen{nullptr};
  while (!waiting.empty()) {
    const torch::autograd::Node* node = waiting.back();
    waiting.pop_back();
    if (seen.insert(node).second && enter(*node)) {
      for (const torch::autograd::Edge& edge : node->next_edges()) {
        waiting.push_back(edge.function.get());
      }
    }
  }
}

/// Looks at the shapes if `node` is the backward of this loss function. False: it is another one.
template <class Backward>
bool look_at_shapes(const char* function, const torch::autograd::Node& node) {
  const auto* loss = dynamic_cast<const Backward*>(&node);
  if (loss == nullptr) {
    return false;
  }
  const at::Tensor output = loss->self_.unpack();
  const at::Tensor target = loss->target_.unpack();
  // A target that is repeated for the outputs, such as a single number, is no mistake.
  if (const auto compared = at::infer_size(output.sizes(), target.sizes());
      at::IntArrayRef(compared) != output.sizes()) {
    log_warning(fmt::format(
        "{} compares an output of shape {} with a target of shape {} as {}: each output with several targets; "
        "give both the same shape, for example with target.view_as(output)",
        function, shape_text(output.sizes()), shape_text(target.sizes()), shape_text(compared)));
  }
  return true;
}

// LibTorch checks this in torch::nn::functional only. The nodes of the graph have what the functions got.
void warn_about_shapes(const at::Tensor& loss) {
  walk(loss, [](const torch::autograd::Node& node) {
    return !look_at_shapes<backward::MseLossBackward0>("mse_loss", node) &&
           !look_at_shapes<backward::SmoothL1LossBackward0>("smooth_l1_loss", node) &&
           !look_at_shapes<backward::HuberLossBackward0>("huber_loss", node) &&
           !look_at_shapes<backward::BinaryCrossEntropyBackward0>("binary_cross_entropy", node);
  });
}

void warn_about_unregistered(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) {
    return;
  }
  const auto shapes = mapped(tensors, [](const at::Tensor& tensor) { return shape_text(tensor.sizes()); });
  log_warning(
      fmt::format("the loss depends on tensors that require gradients and are not in the module, of shape {}: no "
                  "optimizer of the task updates them, and no checkpoint has them; register them with register_module "
                  "or register_parameter, or call requires_grad_(false)",
                  join_first(shapes, 10)));
}

}  // namespace

// Tensors of one step are inputs, such as those of a gradient penalty. What both losses depend on is a weight.
void LossCheck::look_at(const at::Tensor& loss) {
  std::vector<at::Tensor> leaves = leaves_outside_module(loss);
  if (steps_ == 1) {
    warn_about_shapes(loss);
    for (const at::Tensor& leaf : leaves) {
      suspects_.emplace_back(leaf.getIntrusivePtr());
    }
    return;
  }
  std::erase_if(leaves, [&](const at::Tensor& leaf) {
    return std::ranges::none_of(
        suspects_, [&](const WeakTensor& suspect) { return suspect.lock().get() == leaf.unsafeGetTensorImpl(); });
  });
  suspects_.clear();
  warn_about_unregistered(leaves);
}

std::vector<at::Tensor> LossCheck::leaves_outside_module(const at::Tensor& loss) const {
  std::unordered_set<const c10::TensorImpl*> registered;
  for (const auto& tensors : {task_.module().parameters(), task_.module().buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      registered.insert(tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<at::Tensor> found;
  walk(loss, [&](const torch::autograd::Node& node) {
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
        leaf != nullptr && !registered.contains(leaf->variable.unsafeGetTensorImpl())) {
      found.push_back(leaf->variable);
    }
    return true;
  });
  return found;
}

}  // namespace lockstep
