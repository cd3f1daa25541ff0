#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/init.h>

#include <lockstep/base/error.h>
#include <lockstep/nn/lora.h>
#include <lockstep/optim/optimizers.h>

#include "base/mapped.h"
#include "base/option_check.h"
#include "base/text.h"
#include "tensor/mismatch.h"

namespace lockstep {
namespace {

struct NamedLayer {
  std::string name{};
  LoraLinearImpl* layer = nullptr;
};

/// Each once, under its first name.
std::vector<NamedLayer> lora_layers(const torch::nn::Module& root) {
  std::vector<NamedLayer> layers;
  std::unordered_set<const LoraLinearImpl*> known;
  for (const auto& part : root.named_modules({}, /*include_self=*/false)) {
    if (auto* layer = part.value()->as<LoraLinearImpl>(); layer != nullptr && known.insert(layer).second) {
      layers.push_back({part.key(), layer});
    }
  }
  return layers;
}

void check_settings(const LoraOptions& settings) {
  OptionCheck("LoraOptions")
      .expect("rank", settings.rank, settings.rank >= 1, "1 or more")
      .expect("alpha", settings.alpha, settings.alpha > 0, "more than 0")
      .expect_share("dropout", settings.dropout)
      .throw_problems();
}

[[noreturn]] void throw_nothing_selected(const std::string& pattern, const std::vector<NamedLayer>& layers) {
  if (layers.empty()) {
    throw ConfigError("add_lora: the module has no LoraLinear",
                      "declare lockstep::LoraLinear instead of torch::nn::Linear for the layers to adapt");
  }
  throw ConfigError(
      fmt::format("add_lora: '{}' selects no LoraLinear", pattern),
      fmt::format("they are {}; * stands for any characters", join(mapped(layers, &NamedLayer::name), ", ")));
}

void freeze_all_but_adapters(const torch::nn::Module& root, const std::vector<NamedLayer>& layers) {
  std::unordered_set<const c10::TensorImpl*> adapters;
  for (const NamedLayer& entry : layers) {
    if (entry.layer->has_adapter()) {
      adapters.insert({entry.layer->lora_a.unsafeGetTensorImpl(), entry.layer->lora_b.unsafeGetTensorImpl()});
    }
  }
  for (at::Tensor& parameter : root.parameters()) {
    if (!adapters.contains(parameter.unsafeGetTensorImpl())) {
      parameter.requires_grad_(false);
    }
  }
}

}  // namespace

LoraLinearImpl::LoraLinearImpl(const torch::nn::LinearOptions& linear_options) : options(linear_options) {
  LoraLinearImpl::reset();
}

// The first values, and the random numbers for them, are those of torch::nn::Linear.
void LoraLinearImpl::reset() {
  weight = register_parameter("weight", at::empty({options.out_features(), options.in_features()}));
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  bias = register_parameter("bias", options.bias() ? at::empty({options.out_features()}) : at::Tensor(),
                            /*requires_grad=*/options.bias());
  if (options.bias()) {
    const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
    torch::nn::init::uniform_(bias, -bound, bound);
  }
  if (has_adapter()) {
    register_adapter();
  }
}

// In fp32 at least, because updates of half precision round away.
void LoraLinearImpl::register_adapter() {
  const auto dtype = at::promote_types(weight.scalar_type(), at::kFloat);
  const auto tensor_options = weight.options().dtype(dtype).requires_grad(false);
  lora_a = register_parameter("lora_a", at::empty({adapter_.rank, options.in_features()}, tensor_options));
  lora_b = register_parameter("lora_b", at::zeros({options.out_features(), adapter_.rank}, tensor_options));
  torch::nn::init::kaiming_uniform_(lora_a, std::sqrt(5.0));
}

void LoraLinearImpl::add_adapter(const LoraOptions& settings) {
  check_settings(settings);
  if (has_adapter()) {
    throw Error("this LoraLinear has an adapter already", "merge it first: merge_lora()");
  }
  adapter_ = settings;
  register_adapter();
}

at::Tensor LoraLinearImpl::forward(const at::Tensor& input) {
  namespace F = torch::nn::functional;
  const at::Tensor output = at::linear(input, weight, bias);  // F::linear adds the bias in a kernel of its own
  if (!has_adapter()) {
    return output;
  }
  const at::Tensor seen = F::dropout(input, F::DropoutFuncOptions().p(adapter_.dropout).training(is_training()));
  const auto dtype = seen.scalar_type();
  return output + at::linear(at::linear(seen, lora_a.to(dtype)), lora_b.to(dtype)) * scale();
}

// In fp32 at least, because each product of half precision would be rounded.
void LoraLinearImpl::merge() {
  if (!has_adapter()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto dtype = at::promote_types(weight.scalar_type(), at::kFloat);
  weight.copy_(weight.to(dtype).add(at::matmul(lora_b.to(dtype), lora_a.to(dtype)), scale()));
  parameters_.erase("lora_a");
  parameters_.erase("lora_b");
  lora_a.reset();
  lora_b.reset();
  adapter_ = {.rank = 0};
}

void LoraLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::LoraLinear(in_features=" << options.in_features() << ", out_features=" << options.out_features()
         << ", bias=" << (options.bias() ? "true" : "false") << ", rank=" << adapter_.rank << ")";
}

std::size_t add_lora(torch::nn::Module& root, const LoraOptions& settings) {
  check_settings(settings);
  const auto selects = named(settings.select);
  const std::vector<NamedLayer> layers = lora_layers(root);
  std::vector<LoraLinearImpl*> selected;
  for (const NamedLayer& entry : layers) {
    if (selects(entry.name, entry.layer->weight)) {
      if (entry.layer->has_adapter()) {
        throw Error(fmt::format("add_lora: {} has an adapter already", entry.name), "merge it first: merge_lora()");
      }
      selected.push_back(entry.layer);
    }
  }
  if (selected.empty()) {
    throw_nothing_selected(settings.select, layers);
  }
  freeze_all_but_adapters(root, layers);
  for (LoraLinearImpl* layer : selected) {
    layer->add_adapter(settings);
  }
  return selected.size();
}

std::size_t merge_lora(torch::nn::Module& root) {
  std::size_t count = 0;
  for (const NamedLayer& entry : lora_layers(root)) {
    if (entry.layer->has_adapter()) {
      entry.layer->merge();
      ++count;
    }
  }
  return count;
}

NamedTensors lora_tensors(const torch::nn::Module& root) {
  NamedTensors tensors;
  for (const auto& [name, layer] : lora_layers(root)) {
    if (layer->has_adapter()) {
      tensors.emplace_back(name + ".lora_a", layer->lora_a.detach());
      tensors.emplace_back(name + ".lora_b", layer->lora_b.detach());
    }
  }
  return tensors;
}

void load_lora(torch::nn::Module& root, const NamedTensors& tensors) {
  const NamedTensors own = lora_tensors(root);
  std::unordered_map<std::string, at::Tensor> given(tensors.begin(), tensors.end());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  Mismatch mismatch;
  for (const auto& [name, tensor] : own) {
    const auto found = given.extract(name);
    if (found.empty()) {
      mismatch.missing.push_back(name);
      continue;
    }
    const at::Tensor& saved = found.mapped();
    const at::Tensor values = saved.is_floating_point() ? saved.to(tensor.scalar_type()) : saved;
    if (mismatch.compare(name, values, tensor)) {
      copies.emplace_back(tensor, values);
    }
  }
  for (const auto& [name, tensor] : given) {
    mismatch.unexpected.push_back(name);
  }
  if (mismatch.any()) {
    throw CheckpointError("the adapters do not match the model: " + mismatch.text(),
                          "call add_lora() first, with the rank and the layers of the file");
  }
  for (auto& [tensor, values] : copies) {
    tensor.copy_(values);
  }
}

}  // namespace lockstep
