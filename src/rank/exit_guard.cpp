#include "rank/exit_guard.h"

#include <atomic>
#include <cstdlib>

#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/terminal.h"
#include "failure/end_process.h"

namespace lockstep {
namespace {

// An exit handler has no argument that could point to a guard. A child that this process forks is not guarded.
constinit std::atomic<pid_t> guarded_process{0};

constinit std::atomic<bool> is_alone{false};

void say_that_it_exited() {
  write_line(error_text(Error("the program called exit(0) before its worker function returned",
                              "return from the worker function, or call request_stop()")));
}

void end_at_once(int code, void* /*unused*/) {
  if (guarded_process != getpid()) {
    return;
  }
  if (!is_alone) {
    end_process(code);
  }
  if (code == 0) {
    end_process(static_cast<int>(ExitCode::failed), say_that_it_exited);
  }
}

}  // namespace

ExitGuard::ExitGuard(bool alone) {
  is_alone = alone;
  [[maybe_unused]] static const int registered = ::on_exit(end_at_once, nullptr);
  guarded_process = getpid();
}

ExitGuard::~ExitGuard() { guarded_process = 0; }

}  // namespace lockstep
