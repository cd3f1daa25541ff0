// The models of gpu_training_bench.py: the same parameters, names and operations as in peers/gpu_models.py.
#pragma once

#include <torch/torch.h>

namespace gpu_bench {

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride) {
    using Options = torch::nn::Conv2dOptions;
    conv1 = register_module("conv1", torch::nn::Conv2d(Options(in, out, 3).stride(stride).padding(1).bias(false)));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(out));
    conv2 = register_module("conv2", torch::nn::Conv2d(Options(out, out, 3).padding(1).bias(false)));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(out));
    if (stride != 1 || in != out) {
      shortcut = register_module(
          "shortcut", torch::nn::Sequential(torch::nn::Conv2d(Options(in, out, 1).stride(stride).bias(false)),
                                            torch::nn::BatchNorm2d(out)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (shortcut ? shortcut->forward(x) : x));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Block);

/// ResNet-18 for images of 32 x 32 pixels, with `width` channels in its first stage (64 in the paper).
struct ResNetImpl : torch::nn::Module {
  explicit ResNetImpl(std::int64_t width) {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3).padding(1).bias(false)));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(width));
    blocks = register_module("blocks", torch::nn::ModuleList());
    std::int64_t in = width;
    for (std::int64_t stage = 0; stage < 4; ++stage) {
      for (std::int64_t number = 0; number < 2; ++number) {
        const std::int64_t out = width << stage;
        blocks->push_back(Block(in, out, stage > 0 && number == 0 ? 2 : 1));
        in = out;
      }
    }
    fc = register_module("fc", torch::nn::Linear(in, 10));
  }
  torch::Tensor loss(const torch::Tensor& images, const torch::Tensor& labels) {
    auto x = torch::relu(bn1(conv1(images)));
    for (const auto& block : *blocks) {
      x = block->as<BlockImpl>()->forward(x);
    }
    return torch::cross_entropy_loss(fc(x.mean({2, 3})), labels);
  }
  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet);

/// As layer(x), and as Python's Linear: with the bias in the kernel of the product. For inputs of three dimensions
/// torch::nn::Linear adds it with another one.
inline torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

struct GptShape {
  std::int64_t vocabulary = 50304;
  std::int64_t context = 1024;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t layers = 12;
};

struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t width, std::int64_t heads) : heads_(heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto n = x.size(0);
    const auto t = x.size(1);
    const auto width = x.size(2);
    const auto parts = linear(qkv, norm1(x)).view({n, t, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + linear(out, mixed.transpose(1, 2).reshape({n, t, width}));
    return x + linear(down, torch::gelu(linear(up, norm2(x)), "tanh"));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};

 private:
  std::int64_t heads_;
};
TORCH_MODULE(Layer);

/// GPT-2; the head has the weights of the token embedding.
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptShape& shape) {
    tokens = register_module("tokens", torch::nn::Embedding(shape.vocabulary, shape.width));
    positions = register_module("positions", torch::nn::Embedding(shape.context, shape.width));
    layers = register_module("layers", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < shape.layers; ++i) {
      layers->push_back(Layer(shape.width, shape.heads));
    }
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})));
  }
  torch::Tensor loss(const torch::Tensor& text, const torch::Tensor& next) {
    auto x = tokens(text) + positions(torch::arange(text.size(1), text.device()));
    for (const auto& layer : *layers) {
      x = layer->as<LayerImpl>()->forward(x);
    }
    const auto scores = torch::nn::functional::linear(norm(x), tokens->weight);
    return torch::cross_entropy_loss(scores.flatten(0, 1), next.flatten());
  }
  torch::nn::Embedding tokens{nullptr}, positions{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace gpu_bench
