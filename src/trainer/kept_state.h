// What a trial of a training changes, and how it is put back.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

/// Parameters, buffers and gradients of a module, and the random number generators. The copies are on the host, because
/// a trial needs the memory of the device as a training does. The gradients are taken from the parameters.
class KeptState {
 public:
  KeptState(torch::nn::Module& module, c10::Device device);
  void restore();

 private:
  torch::nn::Module& module_;
  const c10::Device device_;
  const at::Tensor rng_;
  NamedTensors tensors_{};
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_{};  // by parameter
};

/// Calls `work`, and puts the state back afterwards, also if it throws.
template <class Work>
void with_state_kept(torch::nn::Module& module, c10::Device device, const Work& work) {
  KeptState before(module, device);
  try {
    work();
  } catch (...) {
    before.restore();
    throw;
  }
  before.restore();
}

}  // namespace lockstep
