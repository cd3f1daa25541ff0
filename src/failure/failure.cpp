#include "failure/failure.h"

namespace lockstep {

std::string_view without_label(std::string_view text) {
  constexpr std::string_view kLabel = "error: ";
  return text.starts_with(kLabel) ? text.substr(kLabel.size()) : text;
}

std::string with_words(std::string text, std::string_view words) {
  return text.insert(text.size() - without_label(text).size(), words);
}

std::string with_place(const Failure& failure) {
  return failure.where.empty() ? failure.text : with_words(failure.text, failure.where + ": ");
}

}  // namespace lockstep
