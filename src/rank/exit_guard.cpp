#include "rank/exit_guard.h"

#include <atomic>
#include <cstdlib>

#include <unistd.h>

#include "failure/end_process.h"

namespace lockstep {
namespace {

// An exit handler has no argument that could point to a guard. A child that this process forks is not guarded.
constinit std::atomic<pid_t> guarded_process{0};

void end_at_once(int code, void* /*unused*/) {
  if (guarded_process == getpid()) {
    end_process(code);
  }
}

}  // namespace

ExitGuard::ExitGuard() {
  [[maybe_unused]] static const int registered = ::on_exit(end_at_once, nullptr);
  guarded_process = getpid();
}

ExitGuard::~ExitGuard() { guarded_process = 0; }

}  // namespace lockstep
