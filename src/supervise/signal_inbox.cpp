#include "supervise/signal_inbox.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {

SignalInbox::SignalInbox() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    struct sigaction current {};
    sigaction(signal, nullptr, &current);
    if (current.sa_handler != SIG_IGN) {
      sigaddset(&wanted, signal);
    }
  }
  fd_ = Descriptor(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.is_open()) {
    throw LaunchError(fmt::format("cannot watch workers: signalfd: {}", std::strerror(errno)));
  }
  pthread_sigmask(SIG_BLOCK, &wanted, &mask_before_);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, &child_before_);
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignored, &file_size_before_);
}

// Discards signals that arrived after the last rank ended.
SignalInbox::~SignalInbox() {
  while (take()) {
  }
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

}  // namespace lockstep
