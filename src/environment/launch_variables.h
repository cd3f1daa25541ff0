// What the readers of launch variables share. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

namespace lockstep {

/// Reads variables strictly, remembers which ones, and collects everything that is wrong instead of stopping at the
/// first.
class VariableReader {
 public:
  explicit VariableReader(const Variables& variables) : variables_(variables) {}

  /// nullopt: not set, or not a whole number from `min` to `max` (then a problem).
  std::optional<int> number(const char* name, std::int64_t min, std::int64_t max);
  std::optional<std::string> text(const char* name);  ///< an empty one is a problem
  bool has(const char* name) const { return variables_.has(name); }

  void missing(const char* name, std::string_view meaning);
  void problem(std::string what, std::string hint = {}) { problems_.push_back({std::move(what), std::move(hint)}); }

  const std::vector<std::string>& names() const noexcept { return names_; }
  const std::vector<Problem>& problems() const noexcept { return problems_; }

 private:
  const Variables& variables_;
  std::vector<std::string> names_{};
  std::vector<Problem> problems_{};
};

/// RANK, WORLD_SIZE and their like: our launcher's, torchrun's, or set by hand. nullopt: none of them is set.
std::optional<Identity> read_torchrun(VariableReader& reader);

}  // namespace lockstep
