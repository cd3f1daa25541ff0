// The parsers of text that others write, each fed with anything: one file <name>_fuzz.cpp with a LOCKSTEP_FUZZ_TARGET,
// its name in CMakeLists.txt, and a folder corpus/<name>. Torch-free.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace lockstep::fuzz {

/// It returns, or the process dies: of a sanitizer, or of a broken promise.
struct Target {
  const char* name;
  void (*run)(std::string_view input);
};

/// Those of this program: all in core_tests, one in a fuzzer.
inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

struct Registration {
  explicit Registration(Target target) { targets().push_back(target); }
};

/// What a parser promises about all inputs.
inline void promise(bool kept, const char* what, std::string_view input) {
  if (!kept) {
    std::fprintf(stderr, "broken promise: %s; input: %.*s\n", what, static_cast<int>(input.size()), input.data());
    std::abort();
  }
}

}  // namespace lockstep::fuzz

/// Followed by the body of a function of `std::string_view input`.
#define LOCKSTEP_FUZZ_TARGET(name)                                          \
  static void name(std::string_view input);                                 \
  static const ::lockstep::fuzz::Registration name##_target({#name, name}); \
  static void name(std::string_view input)
