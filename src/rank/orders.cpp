#include "rank/orders.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <lockstep/base/error.h>

#include "failure/deadlines.h"
#include "failure/end_process.h"
#include "rank/crash_handler.h"

namespace lockstep {
namespace {

constexpr int kCode = static_cast<int>(ExitCode::peer_lost);

}  // namespace

Orders::Orders(std::shared_ptr<const Channel> channel)
    : channel_(std::move(channel)), leave_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!leave_.is_open()) {
    throw LaunchError(fmt::format("cannot listen to the supervisor: eventfd: {}", std::strerror(errno)));
  }
  // The thread inherits a full mask: signals belong to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { obey(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Orders::~Orders() {
  eventfd_write(leave_.get(), 1);
  thread_.join();
}

void Orders::obey() {
  std::array<pollfd, 2> entries{pollfd{.fd = leave_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = channel_->fd(), .events = POLLIN, .revents = 0}};
  while (true) {
    if (poll(entries.data(), entries.size(), -1) < 0) {
      continue;
    }
    while (const auto order = channel_->receive()) {
      if (order->kind == Message::Kind::abort) {
        wait_for_stacks(deadlines::kStacks);  // they may have been asked for a moment before
        end_process(kCode);
      }
      if (order->kind == Message::Kind::dump) {
        dump_stacks();
      }
    }
    if ((entries[1].revents & (POLLHUP | POLLERR)) != 0) {
      end_process(kCode);
    }
    if (entries[0].revents != 0) {
      return;
    }
  }
}

}  // namespace lockstep
