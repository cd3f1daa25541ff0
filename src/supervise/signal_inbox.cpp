#include "supervise/signal_inbox.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/limit_hint.h"

namespace lockstep {
namespace {

// A handler gets only the number of its signal.
constinit std::atomic<pid_t> reader{0};

/// In another thread of the program, which does not block the signal: the default action would end the process.
extern "C" void pass_to_reader(int signal) {
  const int saved_errno = errno;
  syscall(SYS_tgkill, getpid(), reader.load(), signal);
  errno = saved_errno;
}

}  // namespace

SignalInbox::SignalInbox() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) {
      sigaddset(&wanted, kSignals[i]);
    }
  }
  fd_ = Descriptor(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    throw LaunchError(fmt::format("cannot watch workers: signalfd: {}", std::strerror(errno)), limit_hint(errno));
  }
  pthread_sigmask(SIG_BLOCK, &wanted, &mask_before_);
  reader_before_ = reader.exchange(static_cast<pid_t>(syscall(SYS_gettid)));
  struct sigaction passed {};
  passed.sa_handler = pass_to_reader;
  passed.sa_flags = SA_RESTART;
  for (const int signal : kSignals) {
    if (sigismember(&wanted, signal) == 1) {
      sigaction(signal, &passed, nullptr);
    }
  }
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, &child_before_);
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignored, &file_size_before_);
  sigaction(SIGPIPE, &ignored, &pipe_before_);
}

// Discards signals that arrived after the last rank ended.
SignalInbox::~SignalInbox() {
  while (take()) {
  }
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
  reader = reader_before_;
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  sigaction(SIGXFSZ, &file_size_before_, nullptr);
  sigaction(SIGCHLD, &child_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<int> SignalInbox::take() noexcept {
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

std::optional<int> SignalInbox::take_stop() noexcept {
  std::optional<int> taken = take();
  while (taken == SIGUSR2 || taken == SIGTSTP) {
    if (taken == SIGTSTP) {
      suspend();
    }
    taken = take();
  }
  return taken;
}

void SignalInbox::suspend() noexcept {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  struct sigaction passed {};
  sigaction(SIGTSTP, &standard, &passed);
  raise(SIGTSTP);  // is blocked: it arrives when it is unblocked
  sigset_t only{};
  sigemptyset(&only);
  sigaddset(&only, SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  pthread_sigmask(SIG_BLOCK, &only, nullptr);
  sigaction(SIGTSTP, &passed, nullptr);
}

}  // namespace lockstep
