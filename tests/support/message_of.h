// What a call throws, as text.
#pragma once

#include <string>
#include <type_traits>

#include <lockstep/base/error.h>

namespace lockstep {

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

}  // namespace lockstep
