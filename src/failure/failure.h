// What ended a rank. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

struct Failure {
  int rank = -1;                ///< whose failure it is; -1: nobody's
  int code = 1;                 ///< the exit code because of it
  std::string text{};           ///< what happened; a rank's own words may have several lines
  std::string where{};          ///< "at step 812 in data"; "": not known
  std::string hint{};           ///< what to do about it; "": nothing, or it is in the text
  bool is_consequence = false;  ///< of another rank's failure, which counts if it is heard of
};

/// The text of an exception without its label "error: ", which a text from elsewhere does not have.
std::string_view without_label(std::string_view text);
/// With words behind the label, if there is one, and in front of the rest.
std::string with_words(std::string text, std::string_view words);

/// "error: at step 812 in data: ..."
std::string with_place(const Failure& failure);

}  // namespace lockstep
