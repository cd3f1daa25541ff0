// lockstep/base/variables.h
//
// The process environment as a value. Torch-free.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace [[gnu::visibility("default")]] lockstep {

/// A copy of environment variables.
class Variables {
 public:
  Variables() = default;
  explicit Variables(std::map<std::string, std::string, std::less<>> values) : values_(std::move(values)) {}
  std::optional<std::string> get(std::string_view name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? std::nullopt : std::optional<std::string>(found->second);
  }
  bool has(std::string_view name) const { return values_.contains(name); }
  const std::map<std::string, std::string, std::less<>>& all() const noexcept { return values_; }

 private:
  std::map<std::string, std::string, std::less<>> values_{};
};

/// Reads the environment of this process. The library reads it nowhere else.
Variables read_environment();

}  // namespace lockstep
