#include "trainer/watch/run_snapshot.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/checkpoint/module_state.h>

#include "checkpoint/contents_broadcast.h"
#include "tensor/find_tensor.h"

namespace lockstep {
namespace {

/// Copies into the tensors of the copy before, where they fit.
void copy_to(NamedTensors& copy, const NamedTensors& from) {
  const auto fits = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second.sizes() == b.second.sizes() &&
           a.second.scalar_type() == b.second.scalar_type();
  };
  if (!std::ranges::equal(copy, from, fits)) {
    copy.clear();
    for (const auto& [name, tensor] : from) {
      copy.emplace_back(name, tensor.detach().clone());
    }
    return;
  }
  for (std::size_t i = 0; i < copy.size(); ++i) {
    copy[i].second.copy_(from[i].second);
  }
}

NamedTensors cloned(const NamedTensors& tensors) {
  NamedTensors copy;
  copy_to(copy, tensors);
  return copy;
}

}  // namespace

// As a resume gives them to all ranks, except that tensors come back to the device on which this rank saved them.
NamedTensors RunSnapshot::callbacks_of_rank_0(World& world) const {
  const std::string file = "callbacks";
  StoredContents sent;
  sent.contents.tensors[file] = cloned(callbacks_);
  broadcast_contents(world, /*source=*/0, sent);
  NamedTensors state = std::move(sent.contents.tensors[file]);
  for (auto& [name, tensor] : state) {
    if (const at::Tensor* mine = find_tensor(callbacks_, name)) {
      tensor = tensor.to(mine->device());
    }
  }
  return state;
}

void RunSnapshot::take(const Parts& run, std::int64_t step) {
  const c10::NoGradGuard no_grad;
  copy_to(module_, module_tensors(run.module));
  copy_to(optimizer_, run.strategy.optimizer_state());
  copy_to(callbacks_, run.callbacks.save(run.world));
  step_ = step;
}

void RunSnapshot::restore(const Parts& run) const {
  const c10::NoGradGuard no_grad;
  load_module(run.module, module_);
  run.strategy.load_optimizer_state(cloned(optimizer_));  // who loads may keep the tensors
  run.callbacks.load(callbacks_of_rank_0(run.world), run.world, /*back=*/true);
}

}  // namespace lockstep
