// Changes a TOML file with the names of an earlier version, or of another system, to the names of today. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Migration {
  std::string text{};                  ///< the new file; comments stay
  std::vector<std::string> changes{};  ///< one sentence each; empty: the text did not change
};

/// Renames each setting for which foreign_names() gives a setting that takes the same value, unless the file sets that
/// one too. The fields of the earlier learning-rate schedule become a text. `label` is the name of the file in errors.
/// Throws: ConfigError if the text is not TOML.
Migration migrate_toml(std::string_view text, const std::string& label);

}  // namespace lockstep
