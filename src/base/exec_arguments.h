// Converts strings to the form that execve and posix_spawn need. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace lockstep {

/// Ends with a null pointer; valid while `texts` does not change.
inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// "NAME=value" each.
inline std::vector<std::string> environment_entries(const Variables& variables) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables.all()) {
    entries.push_back(name + "=" + value);
  }
  return entries;
}

}  // namespace lockstep
