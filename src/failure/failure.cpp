#include "failure/failure.h"

#include <string_view>

namespace lockstep {

std::string with_place(const Failure& failure) {
  constexpr std::string_view kLabel = "error: ";
  std::string text = failure.text;
  if (!failure.where.empty()) {
    text.insert(text.starts_with(kLabel) ? kLabel.size() : 0, failure.where + ": ");
  }
  return text;
}

}  // namespace lockstep
