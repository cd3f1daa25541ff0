// A small GPT over characters, and the text it learns. Shared by 06_char_gpt.cpp and 07_custom_loop.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace char_gpt {

constexpr std::int64_t kContext = 64;  // characters that the model uses

/// Text as character numbers; a tenth of it is for validation.
struct Text {
  std::string all{};
  std::string alphabet{};
  torch::Tensor train{};       // [n] int64
  torch::Tensor validation{};  // [m] int64
};

/// `file`, or the licence texts that every Debian has.
inline Text load_text(const std::string& file) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  if (!file.empty()) {
    files.emplace_back(file);
  } else if (fs::is_directory("/usr/share/common-licenses")) {
    for (const auto& entry : fs::directory_iterator("/usr/share/common-licenses")) {
      if (entry.is_regular_file() && !entry.is_symlink()) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
  }
  Text text;
  for (const auto& path : files) {
    std::ifstream in(path, std::ios::binary);
    text.all.append(std::istreambuf_iterator<char>(in), {});
  }
  constexpr std::size_t kBlock = 1024;
  if (text.all.size() < 20 * kBlock) {
    throw lockstep::DataError("the text has " + std::to_string(text.all.size()) + " characters, expected at least " +
                                  std::to_string(20 * kBlock),
                              "use a longer text: --text FILE");
  }
  const std::set<char> characters(text.all.begin(), text.all.end());
  text.alphabet.assign(characters.begin(), characters.end());
  std::array<std::int64_t, 256> number{};
  for (std::size_t i = 0; i < text.alphabet.size(); ++i) {
    number[static_cast<unsigned char>(text.alphabet[i])] = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> train;
  std::vector<std::int64_t> validation;
  for (std::size_t i = 0; i < text.all.size(); ++i) {
    auto& part = (i / kBlock) % 10 == 9 ? validation : train;
    part.push_back(number[static_cast<unsigned char>(text.all[i])]);
  }
  text.train = torch::tensor(train);
  text.validation = torch::tensor(validation);
  return text;
}

/// Windows of kContext characters; the target is the window shifted by one. Sample i starts at i x stride.
class Windows final : public lockstep::Dataset {
 public:
  Windows(torch::Tensor characters, std::int64_t stride) : characters_(std::move(characters)), stride_(stride) {}

  std::int64_t size() const override { return (characters_.size(0) - kContext - 1) / stride_ + 1; }

  lockstep::Batch get(std::span<const std::int64_t> ids, const lockstep::SampleSeed&) const override {
    const auto begins = torch::tensor(torch::ArrayRef<std::int64_t>(ids.data(), ids.size())) * stride_;
    const auto windows = characters_.index({begins.unsqueeze(1) + torch::arange(kContext + 1)});
    return {.input = windows.narrow(1, 0, kContext).contiguous(),
            .target = windows.narrow(1, 1, kContext).contiguous()};
  }

 private:
  torch::Tensor characters_;
  std::int64_t stride_;
};

/// As layer(x), but the bias is added in the kernel of the product. For inputs of three dimensions torch::nn::Linear
/// adds it with another one.
inline torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t width, std::int64_t heads, double dropout) : heads_(heads), dropout_(dropout) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }

  /// Shape: [N, T, width] -> the same.
  torch::Tensor forward(torch::Tensor x) {
    const auto n = x.size(0);
    const auto t = x.size(1);
    const auto width = x.size(2);
    const auto parts = linear(qkv, norm1(x)).view({n, t, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    const auto attended = linear(out, mixed.transpose(1, 2).reshape({n, t, width}));
    x = x + torch::dropout(attended, dropout_, is_training());
    return x + torch::dropout(linear(down, torch::gelu(linear(up, norm2(x)))), dropout_, is_training());
  }

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};

 private:
  std::int64_t heads_;
  double dropout_;
};
TORCH_MODULE(Block);

/// 115 thousand parameters with the alphabet of the licence texts.
struct GptImpl : torch::nn::Module {
  explicit GptImpl(std::int64_t alphabet, double dropout) {
    constexpr std::int64_t kWidth = 64;
    constexpr std::int64_t kHeads = 4;
    characters = register_module("characters", torch::nn::Embedding(alphabet, kWidth));
    positions = register_module("positions", torch::nn::Embedding(kContext, kWidth));
    blocks = register_module("blocks",
                             torch::nn::ModuleList(Block(kWidth, kHeads, dropout), Block(kWidth, kHeads, dropout)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, alphabet).bias(false)));
    torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      if (item.value().dim() >= 2) {
        torch::nn::init::normal_(item.value(), 0.0, 0.05);
      }
    }
  }

  /// Shape: [N, T] int64 -> [N, T, alphabet], logits of the next character.
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = characters(tokens) + positions(torch::arange(tokens.size(1), tokens.device()));
    for (const auto& block : *blocks) {
      x = block->as<BlockImpl>()->forward(x);
    }
    return head(norm(x));
  }

  torch::nn::Embedding characters{nullptr}, positions{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

/// Mean negative log-likelihood in nats per character.
inline torch::Tensor loss(Gpt& model, const lockstep::Batch& batch) {
  return torch::nn::functional::cross_entropy(model->forward(batch.input).flatten(0, 1), batch.target.flatten());
}

/// Text that the model writes after "The ". After a line break it may write nothing but the spaces before a title.
inline std::string sample(Gpt& model, const std::string& alphabet, std::int64_t length, torch::Device device) {
  torch::NoGradGuard no_grad;
  model->eval();
  constexpr double kTemperature = 0.7;
  std::string text;
  std::vector<std::int64_t> begin;
  for (const char c : std::string_view("The ")) {
    if (const auto number = alphabet.find(c); number != std::string::npos) {  // --text may have other letters
      text += c;
      begin.push_back(static_cast<std::int64_t>(number));
    }
  }
  if (begin.empty()) {
    begin.push_back(0);
  }
  auto tokens = torch::tensor(begin, torch::TensorOptions(torch::kLong).device(device)).view({1, -1});
  for (std::int64_t i = 0; i < length; ++i) {
    const auto seen = tokens.slice(1, std::max<std::int64_t>(0, tokens.size(1) - kContext));
    const auto chances = torch::softmax(model->forward(seen).select(1, -1) / kTemperature, -1);
    const auto next = torch::multinomial(chances, 1);
    tokens = torch::cat({tokens, next}, 1);
    text += alphabet[static_cast<std::size_t>(next.item<std::int64_t>())];
  }
  return text;
}

/// The fraction of the words with at least four letters in `sample` that occur in `text`.
inline double known_words(const std::string& sample, const std::string& text) {
  const auto words = [](const std::string& from) {
    std::vector<std::string> found(1);
    for (const char c : from) {
      if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
        found.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (!found.back().empty()) {
        found.emplace_back();
      }
    }
    std::erase_if(found, [](const std::string& word) { return word.size() < 4; });
    return found;
  };
  const auto all = words(text);
  const std::set<std::string> known(all.begin(), all.end());
  const auto said = words(sample);
  const auto hits =
      std::count_if(said.begin(), said.end(), [&](const std::string& word) { return known.contains(word); });
  return said.empty() ? 0.0 : static_cast<double>(hits) / static_cast<double>(said.size());
}

/// The training of both programs.
inline lockstep::TrainConfig defaults() {
  return {.max_epochs = 0,
          .max_steps = 1500,
          .batch_size = 32,
          .global_batch_size = 32,
          .optim = {.max_grad_norm = 1.0, .schedule = "warmup:100+cosine:to=0.1"},
          .validate = {.every_steps = 500},
          .checkpoint = {.every_steps = 250},
          .report = {.every_steps = 50}};
}
constexpr double kLearningRate = 4e-3;
constexpr double kDropout = 0.05;

}  // namespace char_gpt
