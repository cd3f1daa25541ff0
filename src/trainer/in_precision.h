// A forward in the configured precision.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <lockstep/config/train_config.h>
#include <lockstep/data/batch.h>
#include <lockstep/optim/precision.h>

namespace lockstep {

/// Moves the module to the device. Its floating-point parameters and buffers get the precision's dtype, complex ones
/// the complex dtype of the same size.
void place_module(torch::nn::Module& module, c10::Device device, Precision precision);

/// The batch with floating-point tensors in the dtype of the parameters, if the precision has one.
Batch in_parameter_dtype(Precision precision, const Batch& batch);

/// Calls `f` on the batch, with autocast if the precision has it.
template <class F>
auto in_precision(Precision precision, c10::DeviceType device, const Batch& batch, const F& f) {
  if (parameter_dtype(precision)) {
    return f(in_parameter_dtype(precision, batch));
  }
  const AutocastScope autocast(precision, device);
  return f(batch);
}

}  // namespace lockstep
