// lockstep/nn/lora.h
//
// Low-rank adaptation: fine-tuning with few trained parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include <lockstep/fwd.h>
#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Settings of add_lora().
struct LoraOptions {
  std::int64_t rank = 8;  ///< of the trained change of a weight matrix
  double alpha = 16;      ///< the change is multiplied by alpha / rank
  double dropout = 0;     ///< of the inputs of the adapters, in training
  /// Names of layers, as for named(): "*.attention.*" selects the layers of all modules with the name attention.
  std::string select = "*";
};

/// Replaces torch::nn::Linear in the declaration of a module, with its options, first values and parameter names; so it
/// loads the weights of a Linear. Without an adapter it is a Linear. add_lora() gives it one: Hu et al. 2021, "LoRA:
/// Low-Rank Adaptation of Large Language Models". (An existing Linear cannot be replaced: a module calls the forward of
/// the type that it declares.)
class LoraLinearImpl final : public torch::nn::Cloneable<LoraLinearImpl> {
 public:
  LoraLinearImpl(std::int64_t in_features, std::int64_t out_features)
      : LoraLinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  explicit LoraLinearImpl(const torch::nn::LinearOptions& linear_options);

  /// Shape: [..., in_features], and the result [..., out_features]. With an adapter:
  /// x weight^T + bias + alpha / rank x dropout(x) lora_a^T lora_b^T.
  at::Tensor forward(const at::Tensor& input);
  void reset() override;  // of torch::nn
  void pretty_print(std::ostream& stream) const override;

  bool has_adapter() const noexcept { return adapter_.rank > 0; }
  /// lora_b begins with zeros, so the layer computes what it did before. The adapter of a weight in half precision is
  /// fp32, and the forward converts it. `settings.select` is not used here.
  /// Throws: ConfigError (a setting out of its range), Error (it has an adapter).
  void add_adapter(const LoraOptions& settings);
  /// Adds alpha / rank x lora_b lora_a to the weight and removes the adapter. Nothing happens without one.
  void merge();

  torch::nn::LinearOptions options;
  at::Tensor weight;  ///< [out_features, in_features]
  at::Tensor bias;    ///< [out_features]; undefined without bias
  at::Tensor lora_a;  ///< [rank, in_features]; undefined without an adapter, as lora_b
  at::Tensor lora_b;  ///< [out_features, rank]

 private:
  void register_adapter();
  double scale() const noexcept { return adapter_.alpha / static_cast<double>(adapter_.rank); }

  LoraOptions adapter_{.rank = 0};
};
TORCH_MODULE(LoraLinear);

/// Gives the selected LoraLinear modules of `root` an adapter and freezes all parameters of `root` that are not of an
/// adapter; call unfreeze() after the last call of it. Returns the number of new adapters. Call it before fit(), after
/// the pretrained weights are loaded; ranks need not agree on random numbers. Throws: ConfigError if it selects none or
/// a setting is out of its range, Error if one of them has an adapter.
std::size_t add_lora(torch::nn::Module& root, const LoraOptions& settings = {});

/// Merges all adapters of `root`, which has the parameters of a model without adapters afterwards. They stay frozen.
/// Returns the number of adapters.
std::size_t merge_lora(torch::nn::Module& root);

/// The parameters of all adapters, such as "layers.0.query.lora_a", as aliases (no copy): for save_tensors().
NamedTensors lora_tensors(const torch::nn::Module& root);

/// Copies the parameters of all adapters, which add_lora() has made with the same rank; they keep their dtype. Throws:
/// CheckpointError naming missing and unexpected names and other shapes; then nothing is copied.
void load_lora(torch::nn::Module& root, const NamedTensors& tensors);

}  // namespace lockstep
