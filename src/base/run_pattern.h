// Run directories with a placeholder: "runs/{n}", "runs/tuning-{time}". Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// A directory of which each launch has one of its own.
struct RunPattern {
  enum class Kind { number, time };

  std::string parent{};  ///< "": the working directory
  std::string before{};  ///< of the name of the directory
  Kind kind = Kind::number;
  std::string after{};

  /// The path of the directory with `value` in the place of the placeholder.
  std::string path(std::string_view value) const;
  /// The value in the name of a directory of this pattern. Values of one pattern are ordered by length, then as texts.
  std::optional<std::string> value_in(std::string_view name) const;
};

/// nullopt: `directory` has no placeholder.
std::optional<RunPattern> parse_run_pattern(std::string_view directory);

/// What is wrong with the braces in a directory; nullopt: nothing.
std::optional<std::string> find_pattern_fault(std::string_view directory);

}  // namespace lockstep
