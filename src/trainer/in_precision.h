// A forward in the configured precision and memory format.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <lockstep/config/train_config.h>
#include <lockstep/data/batch.h>
#include <lockstep/optim/precision.h>

namespace lockstep {

/// Moves the module to the device. Its floating-point parameters and buffers get the precision's dtype, adapters of
/// LoraLinear fp32 instead of half precision, complex ones the complex dtype of the same size. With
/// memory.channels_last, those with 4 dimensions get that memory format.
/// Throws: ConfigError (a parameter on the device meta).
void place_module(torch::nn::Module& module, c10::Device device, const TrainConfig& config);

/// The batch with floating-point tensors in the dtype of the parameters, if the precision has one, and with tensors of
/// 4 dimensions in the memory format of the parameters.
Batch as_parameters(const TrainConfig& config, const Batch& batch);

/// Calls `f` on the batch, with autocast if the precision has it.
template <class F>
auto in_precision(const TrainConfig& config, c10::DeviceType device, const Batch& batch, const F& f) {
  const AutocastScope autocast(config.precision, device);  // none if the parameters have the precision's dtype
  if (parameter_dtype(config.precision) || config.memory.channels_last) {
    return f(as_parameters(config, batch));
  }
  return f(batch);
}

}  // namespace lockstep
