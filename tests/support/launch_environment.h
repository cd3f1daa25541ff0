// Recorded environments of launched processes, and functions to change them. Torch-free.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/environment/identity.h>

#include "environment/launchers/launch_variables.h"

namespace lockstep {

using Values = std::map<std::string, std::string, std::less<>>;

/// tests/data/launch/<name>.env: NAME=value lines; the comment contains the command that set them.
inline Values recorded(const std::string& name) {
  std::ifstream in(std::filesystem::path(LOCKSTEP_TEST_DATA) / "launch" / (name + ".env"));
  if (!in) {
    throw std::runtime_error("no recorded environment " + name);
  }
  Values values;
  for (std::string line; std::getline(in, line);) {
    if (const auto equals = line.find('='); equals != std::string::npos && !line.starts_with('#')) {
      values[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  return values;
}

/// `values` with some replaced; an empty optional removes one.
inline Values with(Values values, const std::map<std::string, std::optional<std::string>>& changes) {
  for (const auto& [name, value] : changes) {
    values.erase(name);
    if (value) {
      values[name] = *value;
    }
  }
  return values;
}

/// The files of another machine.
inline ReadText files_of(const std::map<std::string, std::string>& files) {
  return [files](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
}

inline std::optional<Identity> identity_of(const Values& values, const std::map<std::string, std::string>& files = {}) {
  return detect_identity(Variables(values), files_of(files));
}

/// Error for invalid variables, as "what | hint".
inline std::vector<std::string> problems(const Values& values, const std::map<std::string, std::string>& files = {}) {
  std::vector<std::string> texts;
  try {
    identity_of(values, files);
  } catch (const ConfigError& error) {
    for (const Problem& problem : error.problems()) {
      texts.push_back(problem.what + (problem.hint.empty() ? "" : " | " + problem.hint));
    }
  }
  return texts;
}

}  // namespace lockstep
