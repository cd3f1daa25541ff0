#include "failure/end_process.h"

#include <atomic>
#include <cstdio>
#include <iostream>

#include <signal.h>
#include <unistd.h>

#include "failure/deadlines.h"

namespace lockstep {
namespace {

// A signal handler has no arguments of its own, so its data must be static.
constinit std::atomic<int> code_at_the_end{0};

extern "C" void on_alarm(int) { _exit(code_at_the_end); }

}  // namespace

// A timer instead of a thread: a failing process may be unable to create a thread.
void end_process_within(std::chrono::seconds time, int code) noexcept {
  code_at_the_end = code;
  struct sigaction action {};
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, nullptr);
  sigset_t timer;
  sigemptyset(&timer);
  sigaddset(&timer, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &timer, nullptr);
  alarm(static_cast<unsigned>(time.count()));
}

void end_process(int code, const std::function<void()>& say) noexcept {
  end_process_within(deadlines::kGoodbye, code);
  if (say) {
    say();
  }
  try {
    std::cout.flush();  // has a buffer of its own after std::ios::sync_with_stdio(false)
    std::clog.flush();
  } catch (...) {  // the program may have asked for exceptions; the exit code says more
  }
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace lockstep
