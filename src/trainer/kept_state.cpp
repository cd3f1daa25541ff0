#include "trainer/kept_state.h"

#include <ranges>

#include <ATen/ATen.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/rng_state.h>

namespace lockstep {

KeptState::KeptState(torch::nn::Module& module, c10::Device device)
    : module_(module), device_(device), rng_(rng_state(device)) {
  for (const auto& [name, tensor] : module_tensors(module)) {
    tensors_.emplace_back(name,
                          tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  }
  for (at::Tensor& parameter : module.parameters()) {
    gradients_.emplace_back(parameter, std::exchange(parameter.mutable_grad(), {}));
  }
}

void KeptState::restore() {
  for (auto& [parameter, gradient] : gradients_ | std::views::reverse) {  // a shared parameter is listed twice
    parameter.mutable_grad() = gradient;
  }
  load_module(module_, tensors_);
  set_rng_state(rng_, device_);
}

}  // namespace lockstep
