// The parsers of text that others write, each fed with anything. A target returns, or the process dies: of a sanitizer,
// or of a broken promise. Torch-free.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace lockstep::fuzz {

void channel(std::string_view input);      ///< one control message of a worker, up to the words printed because of it
void environment(std::string_view input);  ///< NAME=value lines
void hostlist(std::string_view input);
void device_spec(std::string_view input);
void flags(std::string_view input);  ///< one argument per line

/// What a parser promises about all inputs.
inline void promise(bool kept, const char* what, std::string_view input) {
  if (!kept) {
    std::fprintf(stderr, "broken promise: %s; input: %.*s\n", what, static_cast<int>(input.size()), input.data());
    std::abort();
  }
}

}  // namespace lockstep::fuzz
