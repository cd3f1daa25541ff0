#include "base/assertion.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>

#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep {

namespace {
// A listener, because base cannot depend on its listeners.
constinit std::atomic<AssertionListener> listener_of_assertions{nullptr};
}  // namespace

AssertionListener set_assertion_listener(AssertionListener listener) noexcept {
  return listener_of_assertions.exchange(listener);
}

void assertion_failed(const char* condition, const char* why, const char* file, int line) noexcept {
  std::array<char, 1024> text{};
  if (const AssertionListener listener = set_assertion_listener(nullptr)) {
    std::snprintf(text.data(), text.size(), "internal error: %s; %s is false (%s:%d)", why, condition, file, line);
    listener(text.data());
  } else {
    const int length = std::snprintf(text.data(), text.size(), "internal error on rank %d: %s; %s is false (%s:%d)\n",
                                     log_rank(), why, condition, file, line);
    const auto size = std::min(static_cast<std::size_t>(std::max(length, 0)), text.size() - 1);
    if (::write(STDERR_FILENO, text.data(), size) < 0) {
      // Nobody is left who could handle the error.
    }
  }
  ::_exit(static_cast<int>(ExitCode::internal));
}

}  // namespace lockstep
