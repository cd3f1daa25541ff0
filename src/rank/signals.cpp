#include "rank/signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "failure/deadlines.h"
#include "rank/line_buffer.h"

namespace lockstep {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE, SIGXFSZ};
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kSecondInterrupt = std::chrono::nanoseconds(deadlines::kSecondInterrupt).count();

struct Target {
  std::atomic<TrainControl*> control{nullptr};
  std::atomic<pid_t> process{0};
  std::atomic<std::int64_t> first_interrupt{0};  // CLOCK_MONOTONIC, ns; 0: none yet
  std::atomic<int> handlers_running{0};
  std::atomic<EarlyStop> early_stop{EarlyStop::end_process};
};
static_assert(std::atomic<TrainControl*>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

// A signal handler gets only a number, so its state must be static.
constinit Target target;

std::int64_t now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// One Ctrl-C may arrive twice, from the terminal and from a launcher. Only a later one counts as the second.
bool is_second() noexcept {
  const std::int64_t now = now_ns();
  std::int64_t first = 0;
  return !target.first_interrupt.compare_exchange_strong(first, now) && now - first > kSecondInterrupt;
}

void take_default_action(int signal) noexcept {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  raise(signal);  // blocked in this handler: arrives when it returns
}

void end_before_training(int signal) noexcept {
  if (target.early_stop == EarlyStop::die_of_signal) {
    take_default_action(signal);
    return;
  }
  pollfd writable{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, 0) == 1) {  // does not wait for a slow reader
    const char* name = sigdescr_np(signal);
    LineBuffer()
        .add("stopped by signal ")
        .add(signal)
        .add(" (")
        .add(name == nullptr ? "unknown" : name)
        .add(") before the training began; run the same command again")
        .write_to(STDERR_FILENO);
  }
  _exit(static_cast<int>(signal == SIGINT ? ExitCode::interrupted : ExitCode::stopped));
}

extern "C" void on_signal(int signal) {
  const int saved_errno = errno;
  if (getpid() != target.process) {  // forked by the program, without exec
    // By SIGTERM a program ends its helpers. The others reach a whole job, and the rank may need a helper to save.
    if (signal == SIGTERM) {
      take_default_action(signal);
    }
    errno = saved_errno;
    return;
  }
  target.handlers_running.fetch_add(1);
  if (signal == SIGINT && is_second()) {
    _exit(static_cast<int>(ExitCode::interrupted));
  }
  if (TrainControl* control = target.control.load()) {
    if (!control->request_stop_from_signal(signal == SIGINT ? StopKind::interrupt : StopKind::terminate) &&
        target.early_stop != EarlyStop::wait) {
      end_before_training(signal);
    }
  }
  target.handlers_running.fetch_sub(1);
  errno = saved_errno;
}

// SIGPIPE: c10d writes to sockets whose other end may be gone. SIGXFSZ: a file reaches the size limit. In both cases
// the caller expects an error, not a signal. Uses a handler, because an ignored signal would also be ignored in
// programs that this process starts.
extern "C" void on_failed_write(int) {}

// Nobody takes requests any more. A second one ends a process whose destructors hang.
extern "C" void on_signal_at_exit(int signal) {
  const int saved_errno = errno;
  if (getpid() != target.process || is_second()) {
    take_default_action(signal);
  }
  errno = saved_errno;
}

void install_handler(int signal, void (*stop_handler)(int)) noexcept {
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  action.sa_handler = signal == SIGPIPE || signal == SIGXFSZ ? on_failed_write : stop_handler;
  sigaction(signal, &action, nullptr);
}

extern "C" void handle_until_the_end() {
  target.process = getpid();
  target.first_interrupt = 0;
  for (const int signal : kSignals) {
    struct sigaction current {};
    sigaction(signal, nullptr, &current);
    if (current.sa_handler == SIG_DFL) {
      install_handler(signal, on_signal_at_exit);
    }
  }
}

}  // namespace

struct SignalScope::State {
  explicit State(TrainControl requests) : control(std::move(requests)) {}
  TrainControl control;
  std::array<struct sigaction, kSignals.size()> before{};
};

SignalScope::SignalScope(TrainControl control, EarlyStop early_stop)
    : state_(std::make_unique<State>(std::move(control))) {
  TrainControl* nobody = nullptr;
  LOCKSTEP_ASSERT(target.control.compare_exchange_strong(nobody, &state_->control), "one SignalScope at a time");
  target.process = getpid();
  target.first_interrupt = 0;
  target.early_stop = early_stop;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &state_->before[i]);
    if (state_->before[i].sa_handler != SIG_IGN) {  // nohup and background shells ignore it on purpose
      install_handler(kSignals[i], on_signal);
    }
  }
}

SignalScope::~SignalScope() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &state_->before[i], nullptr);
  }
  target.control = nullptr;
  while (target.handlers_running != 0) {  // in another thread; each takes only one store
    std::this_thread::yield();
  }
}

// exit() calls the handler that was added last first: this one before the destructors of what the training has used.
void ignore_stops_at_exit() { std::atexit(handle_until_the_end); }

}  // namespace lockstep
