#include "trainer/watch/loss_shapes.h"

#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <lockstep/base/log.h>

namespace lockstep {
namespace {

namespace backward = torch::autograd::generated;

/// Looks at the shapes if `node` is the backward of this loss function. False: it is another one.
template <class Backward>
bool look_at(const char* function, const torch::autograd::Node& node) {
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
        "{} compares an output of shape [{}] with a target of shape [{}] as [{}]: each output with several targets; "
        "give both the same shape, for example with target.view_as(output)",
        function, fmt::join(output.sizes(), ", "), fmt::join(target.sizes(), ", "), fmt::join(compared, ", ")));
  }
  return true;
}

}  // namespace

// LibTorch checks this in torch::nn::functional only. The nodes of the graph have what the functions got.
void LossShapes::warn_about(const at::Tensor& loss) {
  std::vector<const torch::autograd::Node*> waiting{loss.grad_fn().get()};
  std::unordered_set<const torch::autograd::Node*> seen{nullptr};
  while (!waiting.empty()) {
    const torch::autograd::Node* node = waiting.back();
    waiting.pop_back();
    if (!seen.insert(node).second || look_at<backward::MseLossBackward0>("mse_loss", *node) ||
        look_at<backward::SmoothL1LossBackward0>("smooth_l1_loss", *node) ||
        look_at<backward::HuberLossBackward0>("huber_loss", *node) ||
        look_at<backward::BinaryCrossEntropyBackward0>("binary_cross_entropy", *node)) {
      continue;  // the model is behind a loss function
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      waiting.push_back(edge.function.get());
    }
  }
}

}  // namespace lockstep
