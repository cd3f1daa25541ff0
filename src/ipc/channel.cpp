#include "ipc/channel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <lockstep/base/error.h>

#include "base/limit_hint.h"
#include "failure/deadlines.h"

namespace lockstep {
namespace {

// One message is one packet: this header, then the text.
struct Header {
  char kind;
  std::uint8_t secondary;
  std::uint8_t code;
};
static_assert(sizeof(Header) == 3);

/// At most kMaxText bytes, cut between UTF-8 characters.
std::string_view shorten(std::string_view text) noexcept {
  if (text.size() <= Channel::kMaxText) {
    return text;
  }
  std::size_t end = Channel::kMaxText;
  while (end > Channel::kMaxText - 4 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return text.substr(0, end);
}

using Clock = std::chrono::steady_clock;

constexpr auto kAtOnce = Clock::time_point::min();  // does not wait
constexpr auto kForEver = Clock::time_point::max();

/// Until then a message waits for room. Only the latest status matters, and the supervisor must not wait. Without the
/// message about the end of a rank, a finished training would be a failed one, or a failure one without a cause.
Clock::time_point deadline_of(Message::Kind kind, bool is_stuck) noexcept {
  switch (kind) {
    case Message::Kind::status:
    case Message::Kind::abort:
    case Message::Kind::dump:
      return kAtOnce;
    case Message::Kind::failure:
    case Message::Kind::finished:
      return kForEver;
    case Message::Kind::line:
    case Message::Kind::started:
    case Message::Kind::left:
      break;
  }
  return is_stuck ? kAtOnce : Clock::now() + deadlines::kSend;
}

/// False at the deadline. The end of the other process ends the wait, too.
bool wait_writable(int fd, Clock::time_point deadline) noexcept {
  const auto now = Clock::now();
  if (deadline <= now) {
    return false;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&entry, 1, deadline == kForEver ? -1 : static_cast<int>(left)) > 0 || errno == EINTR;
}

/// The process that sent the packet; 0: the socket was not asked for it.
pid_t sender_of(msghdr& packet) noexcept {
  for (cmsghdr* part = CMSG_FIRSTHDR(&packet); part != nullptr; part = CMSG_NXTHDR(&packet, part)) {
    if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_CREDENTIALS) {
      ucred sender{};
      std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
      return sender.pid;
    }
  }
  return 0;
}

/// The bytes may come from a broken process, so all fields are checked.
std::optional<Message> parse(std::string_view packet) {
  Header header{};
  if (packet.size() < sizeof(header) || packet.size() > sizeof(header) + Channel::kMaxText) {
    return std::nullopt;
  }
  std::memcpy(&header, packet.data(), sizeof(header));
  const auto kind = static_cast<Message::Kind>(header.kind);
  constexpr std::array kKnown{Message::Kind::line,  Message::Kind::status,  Message::Kind::started,
                              Message::Kind::left,  Message::Kind::failure, Message::Kind::finished,
                              Message::Kind::abort, Message::Kind::dump};
  if (std::ranges::find(kKnown, kind) == kKnown.end() || header.secondary > 1) {
    return std::nullopt;
  }
  return Message{.kind = kind,
                 .text = std::string(packet.substr(sizeof(header))),
                 .code = header.code,
                 .secondary = header.secondary == 1};
}

}  // namespace

Channel::Channel(int fd) noexcept : fd_(fd) {
  // The worker inherits its end through exec, but its own children must not inherit it.
  fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void Channel::send(const Message& message) const noexcept {
  Header header{.kind = static_cast<char>(message.kind),
                .secondary = message.secondary ? std::uint8_t{1} : std::uint8_t{0},
                .code = static_cast<std::uint8_t>(std::clamp(message.code, 0, 255))};
  const std::string_view text = shorten(message.text);
  std::array<iovec, 2> parts{
      iovec{.iov_base = &header, .iov_len = sizeof(header)},
      iovec{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()},  // sendmsg does not change it
  };
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  const std::atomic_ref<bool> is_stuck(is_stuck_);
  const auto deadline = deadline_of(message.kind, is_stuck);
  while (sendmsg(fd(), &packet, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    const bool full = errno == EAGAIN;
    const bool again = full ? wait_writable(fd(), deadline) : errno == EINTR;
    if (!again) {
      if (deadline != kAtOnce) {
        is_stuck = full;  // only a message that has waited knows
      }
      return;
    }
  }
  is_stuck = false;
}

std::optional<Message> Channel::receive() const {
  std::array<char, sizeof(Header) + kMaxText> buffer;
  while (true) {
    iovec text{.iov_base = buffer.data(), .iov_len = buffer.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> sender;
    msghdr packet{};
    packet.msg_iov = &text;
    packet.msg_iovlen = 1;
    packet.msg_control = sender.data();
    packet.msg_controllen = sender.size();
    // With MSG_TRUNC the full length of a packet is returned, so that parse() detects a packet that was too long.
    const ssize_t size = recvmsg(fd(), &packet, MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size <= 0) {
      return std::nullopt;
    }
    if (static_cast<std::size_t>(size) > buffer.size()) {
      continue;
    }
    if (auto message = parse({buffer.data(), static_cast<std::size_t>(size)})) {
      message->sender = sender_of(packet);
      return message;
    }
  }
}

std::pair<Channel, Channel> make_channel_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw LaunchError(fmt::format("control channel: {}, expected a socket pair", std::strerror(errno)),
                      limit_hint(errno));
  }
  constexpr int kYes = 1;  // the kernel writes into each packet which process sent it
  setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &kYes, sizeof kYes);
  return {Channel(ends[0]), Channel(ends[1])};
}

}  // namespace lockstep
