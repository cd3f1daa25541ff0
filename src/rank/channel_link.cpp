#include "rank/channel_link.h"

#include <utility>

#include <fmt/format.h>
#include <poll.h>

#include <lockstep/base/error.h>

#include "failure/deadlines.h"
#include "rank/crash_handler.h"

namespace lockstep {

Message to_message(const Failure& failure) {
  return {
      .kind = Message::Kind::failure, .text = failure.text, .code = failure.code, .secondary = failure.is_consequence};
}

void ChannelLink::announce(const Failure& failure) {
  if (!std::exchange(announced_, true) && !cause_) {
    channel_->send(to_message(failure));
  }
}

void ChannelLink::step(Time /*now*/) {
  pollfd entry{.fd = channel_->fd(), .events = POLLIN, .revents = 0};
  poll(&entry, 1, 0);
  while (const auto order = channel_->receive()) {
    if (order->kind == Message::Kind::dump) {
      dump_stacks();
    }
    if (order->kind == Message::Kind::abort) {
      wait_for_stacks(deadlines::kStacks);  // they may have been requested just before
      end_because(order->text.empty() ? fmt::format("the supervisor of rank {} ended the run", rank_) : order->text);
    }
  }
  if ((entry.revents & (POLLHUP | POLLERR)) != 0) {
    end_because(fmt::format("the supervisor of rank {} is gone", rank_));
  }
}

void ChannelLink::end_because(const std::string& why) {
  if (!cause_) {
    cause_ = Failure{.code = static_cast<int>(ExitCode::peer_lost), .text = why};
  }
}

}  // namespace lockstep
