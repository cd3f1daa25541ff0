// A forward in the configured precision.
#pragma once

#include <functional>

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <lockstep/config/train_config.h>
#include <lockstep/data/batch.h>
#include <lockstep/trainer/step.h>

namespace lockstep {

/// Moves the module to the device. Its floating-point parameters and buffers get the precision's dtype, complex ones
/// the complex dtype of the same size.
void place_module(torch::nn::Module& module, c10::Device device, Precision precision);

/// Calls `f` on the batch: with autocast, or with floating-point tensors in the precision's dtype.
StepOutput in_precision(Precision precision, c10::DeviceType device, const Batch& batch,
                        const std::function<StepOutput(const Batch&)>& f);

}  // namespace lockstep
