#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/nn/model_summary.h>

#include "base/text.h"

namespace lockstep {
namespace {

struct ModelSize {
  std::int64_t parameters = 0;
  std::int64_t trained = 0;
  std::int64_t bytes = 0;
};

ModelSize size_of(const torch::nn::Module& module) {
  ModelSize size;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!known.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    size.parameters += parameter.numel();
    size.trained += parameter.requires_grad() ? parameter.numel() : 0;
    size.bytes += parameter.numel() * static_cast<std::int64_t>(parameter.element_size());
  }
  return size;
}

/// "torch::nn::LinearImpl" -> "Linear".
std::string short_type(std::string_view type) {
  if (const auto colon = type.rfind("::"); colon != std::string_view::npos) {
    type.remove_prefix(colon + 2);
  }
  if (type.ends_with("Impl")) {
    type.remove_suffix(4);
  }
  return std::string(type);
}

}  // namespace

std::string model_summary(const torch::nn::Module& module, int depth) {
  using Row = std::array<std::string, 4>;
  std::vector<Row> rows{{"name", "type", "parameters", "trained"}};
  for (const auto& part : module.named_modules({}, /*include_self=*/false)) {
    const auto level = 1 + std::ranges::count(part.key(), '.');
    if (level > depth) {
      continue;
    }
    const ModelSize size = size_of(*part.value());
    rows.push_back({std::string(static_cast<std::size_t>(2 * (level - 1)), ' ') + part.key(),
                    short_type(part.value()->name()), with_commas(static_cast<double>(size.parameters)),
                    with_commas(static_cast<double>(size.trained))});
  }
  const ModelSize all = size_of(module);
  rows.push_back({"total", short_type(module.name()), with_commas(static_cast<double>(all.parameters)),
                  with_commas(static_cast<double>(all.trained))});
  std::array<std::size_t, 4> widths{};
  for (const Row& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    text += fmt::format("{:<{}}  {:<{}}  {:>{}}  {:>{}}\n", row[0], widths[0], row[1], widths[1], row[2], widths[2],
                        row[3], widths[3]);
  }
  return text + fmt::format("parameters: {}\n", human_bytes(all.bytes));
}

}  // namespace lockstep
