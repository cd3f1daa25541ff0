// The buffers of a module from before a step, for a step that is left out.
#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace lockstep {

/// A forward changes buffers, such as the statistics of batch norm, before it is known whether the step counts. The
/// memory of the copies is that of the first step. Nothing here waits for the device.
class KeptBuffers {
 public:
  /// `module` is on `device` and must live longer. What it has elsewhere is not kept.
  KeptBuffers(const torch::nn::Module& module, c10::Device device) : module_(module), device_(device) {}

  /// Before the first forward of a step.
  void take();
  /// After the last forward of the step. `left_out`: a flag, 0-dim on the device; 1: the buffers get the values of
  /// take() again.
  void put_back_if(const at::Tensor& left_out);

 private:
  /// Room for copies of tensors of one dtype, in one piece: one operation can then choose between two of them.
  struct Copies {
    explicit Copies(const std::vector<at::Tensor>& of);
    at::Tensor all;
    std::vector<at::Tensor> parts;
  };
  struct Group {
    std::vector<at::Tensor> buffers;  // of one dtype
    Copies before;
    Copies now;
  };

  std::map<at::ScalarType, std::vector<at::Tensor>> buffers() const;

  const torch::nn::Module& module_;
  const c10::Device device_;
  std::vector<Group> groups_{};  // of the last take()
};

}  // namespace lockstep
