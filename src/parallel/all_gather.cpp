#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/all_gather.h>
#include <lockstep/world/world.h>

#include "world/world_access.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AllGather : torch::autograd::Function<AllGather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, World* world) {
    const GatheredRows gathered = WorldAccess::all_gather(*world, tensor);
    context->saved_data["world"] = reinterpret_cast<std::int64_t>(world);
    context->saved_data["first"] = gathered.first;
    context->saved_data["rows"] = tensor.size(0);
    return gathered.all;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error("all_gather_with_grad has no second derivative", "leave out create_graph, or gather later");
    }
    auto& world = *reinterpret_cast<World*>(context->saved_data["world"].toInt());
    const at::Tensor sum = gradients[0].clone(at::MemoryFormat::Contiguous);
    world.all_reduce(sum, Reduce::sum);
    return {sum.narrow(0, context->saved_data["first"].toInt(), context->saved_data["rows"].toInt()), {}};
  }
};

}  // namespace

at::Tensor all_gather_with_grad(World& world, const at::Tensor& tensor) {
  // The same collectives on all ranks, also if the tensor of some requires no gradient. In the backward each rank may
  // be at another gradient bucket, and world's process group sends these.
  return at::GradMode::is_enabled() ? AllGather::apply(tensor, &WorldAccess::of_backwards(world))
                                    : world.all_gather(tensor);
}

}  // namespace lockstep
