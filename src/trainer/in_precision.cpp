#include "trainer/in_precision.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "data/for_each_tensor.h"

namespace lockstep {
namespace {

// bfloat16 has no complex dtype: complex tensors keep theirs.
at::ScalarType target_dtype(const at::Tensor& tensor, at::ScalarType wanted) {
  if (tensor.is_floating_point()) {
    return wanted;
  }
  const bool has_complex = wanted != at::kBFloat16;
  return tensor.is_complex() && has_complex ? c10::toComplexType(wanted) : tensor.scalar_type();
}

}  // namespace

void place_module(torch::nn::Module& module, c10::Device device, Precision precision) {
  module.to(device);
  const auto dtype = parameter_dtype(precision);
  if (!dtype) {
    return;
  }
  const at::NoGradGuard no_grad;  // not Module::to(dtype), which would convert counters too
  for (at::Tensor& parameter : module.parameters()) {
    parameter.set_data(parameter.to(target_dtype(parameter, *dtype)));
  }
  for (at::Tensor& buffer : module.buffers()) {
    buffer.set_data(buffer.to(target_dtype(buffer, *dtype)));
  }
}

Batch in_parameter_dtype(Precision precision, const Batch& batch) {
  Batch converted = batch;
  if (const auto dtype = parameter_dtype(precision)) {
    for_each_tensor(converted, [&](at::Tensor& tensor) { tensor = tensor.to(target_dtype(tensor, *dtype)); });
  }
  return converted;
}

}  // namespace lockstep
