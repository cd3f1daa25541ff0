// Tensors of one owner among those of others, told apart by a prefix of their names.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/tensor/named_tensors.h>

namespace lockstep {

/// Those whose names begin with the prefix, without it.
inline NamedTensors under_prefix(const NamedTensors& tensors, std::string_view prefix) {
  NamedTensors found;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) {
      found.emplace_back(name.substr(prefix.size()), tensor);
    }
  }
  return found;
}

/// Also for other values by name, such as Metrics.
template <class Value>
void append_with_prefix(std::vector<std::pair<std::string, Value>>& all, std::string_view prefix,
                        std::vector<std::pair<std::string, Value>> values) {
  for (auto& [name, value] : values) {
    all.emplace_back(fmt::format("{}{}", prefix, name), std::move(value));
  }
}

}  // namespace lockstep
