// What a call throws.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep {

/// The `AnError` that `act` throws. If it throws nothing, this is a std::logic_error; other exceptions pass.
template <class AnError = Error, class Act>
AnError error_of(const Act& act) {
  try {
    act();
  } catch (const AnError& error) {
    return error;
  }
  throw std::logic_error("nothing was thrown");
}

/// The message of the `AnError` that `act` throws, and its hint: "what | hint". "no error": it throws nothing.
template <class AnError = Error, class Act>
std::string message_of(const Act& act) {
  try {
    act();
  } catch (const AnError& error) {
    std::string text = error.what();
    if constexpr (std::is_base_of_v<Error, AnError>) {
      text += error.hint().empty() ? "" : " | " + error.hint();
    }
    return text;
  }
  return "no error";
}

/// Every problem of the ConfigError that `act` throws, with its hint: "what | hint". {}: it throws nothing.
template <class Act>
std::vector<std::string> problems_of(const Act& act) {
  std::vector<std::string> problems;
  try {
    act();
  } catch (const ConfigError& error) {
    for (const Problem& problem : error.problems()) {
      problems.push_back(problem.what + " | " + problem.hint);
    }
  }
  return problems;
}

}  // namespace lockstep
