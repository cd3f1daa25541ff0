// Converts strings to the form that execve and posix_spawn need. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/variables.h>

#include "base/mapped.h"

namespace lockstep {

/// Ends with a null pointer; valid while `texts` does not change.
inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  auto pointers = mapped(texts, [](std::string& text) { return text.data(); });
  pointers.push_back(nullptr);
  return pointers;
}

/// "NAME=value" each.
inline std::vector<std::string> environment_entries(const Variables& variables) {
  return mapped(variables.all(), [](const auto& variable) { return variable.first + "=" + variable.second; });
}

}  // namespace lockstep
