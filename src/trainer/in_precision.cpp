#include "trainer/in_precision.h"

#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/nn/lora.h>

#include "data/for_each_tensor.h"
#include "parallel/for_each_module.h"

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

// How a parameter, a buffer or a part of a batch is stored.
class Placement {
 public:
  explicit Placement(const TrainConfig& config)
      : dtype_(parameter_dtype(config.precision)), channels_last_(config.memory.channels_last) {}

  bool changes_nothing() const noexcept { return !dtype_ && !channels_last_; }

  /// For parameters that lose their updates in half precision.
  Placement at_least_fp32() const {
    Placement other = *this;
    if (dtype_) {
      other.dtype_ = at::promote_types(*dtype_, at::kFloat);
    }
    return other;
  }

  at::Tensor operator()(const at::Tensor& tensor) const {
    const at::Tensor converted = dtype_ ? tensor.to(target_dtype(tensor, *dtype_)) : tensor;
    return channels_last_ && converted.dim() == 4 ? converted.contiguous(at::MemoryFormat::ChannelsLast) : converted;
  }

 private:
  std::optional<at::ScalarType> dtype_;
  bool channels_last_;
};

std::unordered_set<const c10::TensorImpl*> adapters_of(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> adapters;
  for_each_module(module, [&](const torch::nn::Module& part, const auto&) {
    if (const auto* layer = part.as<LoraLinearImpl>(); layer != nullptr && layer->has_adapter()) {
      adapters.insert({layer->lora_a.unsafeGetTensorImpl(), layer->lora_b.unsafeGetTensorImpl()});
    }
  });
  return adapters;
}

}  // namespace

void place_module(torch::nn::Module& module, c10::Device device, const TrainConfig& config) {
  const c10::InferenceMode normal(false);  // no fit could train the tensors that inference mode makes
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& tensor : tensors) {
      if (tensor.value().is_meta()) {
        throw ConfigError(fmt::format("{} is on the device meta, where tensors have no values", tensor.key()),
                          "make the module on the CPU; the Trainer moves it to the device of the rank");
      }
    }
  }
  module.to(device);
  const Placement place(config);
  if (place.changes_nothing()) {
    return;
  }
  const auto adapters = adapters_of(module);
  const Placement place_adapter = place.at_least_fp32();
  const at::NoGradGuard no_grad;  // not Module::to(dtype), which would convert counters too
  for (at::Tensor& parameter : module.parameters()) {
    parameter.set_data(adapters.contains(parameter.unsafeGetTensorImpl()) ? place_adapter(parameter)
                                                                          : place(parameter));
  }
  for (at::Tensor& buffer : module.buffers()) {
    buffer.set_data(place(buffer));
  }
}

Batch as_parameters(const TrainConfig& config, const Batch& batch) {
  Batch converted = batch;
  for_each_tensor(converted, [place = Placement(config)](at::Tensor& tensor) { tensor = place(tensor); });
  return converted;
}

}  // namespace lockstep
