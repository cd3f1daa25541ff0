#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/base/error.h>

#include "formats/token_windows.h"
#include "fuzz/target.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(token_windows) {
  if (input.size() < 3) {
    return;
  }
  const std::int64_t token_bytes = input[0] % 2 == 0 ? 2 : 4;
  const std::int64_t context = static_cast<signed char>(input[1]);
  const std::int64_t stride = static_cast<signed char>(input[2]);
  // A copy of its own, so that a read behind the end is seen.
  const std::vector<char> file(input.begin() + 3, input.end());
  try {
    const TokenWindows windows(std::as_bytes(std::span(file)), token_bytes, context, stride);
    promise(windows.size() > 0, "a window at least", input);
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(context));
    std::vector<std::int64_t> targets(static_cast<std::size_t>(context));
    for (std::int64_t window = 0; window < windows.size(); ++window) {
      windows.read(window, tokens.data(), targets.data());
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        promise(tokens[i + 1] == targets[i], "targets are the next tokens", input);
      }
    }
  } catch (const DataError&) {
  }
}

}  // namespace lockstep::fuzz
