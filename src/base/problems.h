// Problems of settings and options: they are collected, to report all of them at once. Torch-free.
#pragma once

#include <utility>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep {

/// Throws: ConfigError, if there are any.
inline void throw_if_any(std::vector<Problem> problems) {
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

/// Runs `work`. The problems of a ConfigError that it throws are added to the others.
template <class Work>
void note_problems(std::vector<Problem>& problems, const Work& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    problems.insert(problems.end(), error.problems().begin(), error.problems().end());
  }
}

}  // namespace lockstep
