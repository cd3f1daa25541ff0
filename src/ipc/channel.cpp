#include "ipc/channel.h"

#include <algorithm>
#include <array>
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

/// May be dropped: only the latest status matters, and the supervisor must not wait.
bool may_be_dropped(Message::Kind kind) noexcept {
  return kind == Message::Kind::status || kind == Message::Kind::abort || kind == Message::Kind::dump;
}

bool wait_writable(int fd, std::chrono::steady_clock::time_point deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
  return left.count() > 0 && (poll(&entry, 1, static_cast<int>(left.count())) > 0 || errno == EINTR);
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
  const auto deadline = std::chrono::steady_clock::now() + deadlines::kSend;
  while (sendmsg(fd(), &packet, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    const bool full = errno == EAGAIN;
    const bool again = full ? !may_be_dropped(message.kind) && wait_writable(fd(), deadline) : errno == EINTR;
    if (!again) {
      return;
    }
  }
}

std::optional<Message> Channel::receive() const {
  std::array<char, sizeof(Header) + kMaxText> buffer;
  while (true) {
    // With MSG_TRUNC the full length of a packet is returned, so that parse() detects a packet that was too long.
    const ssize_t size = recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
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
      return message;
    }
  }
}

std::pair<Channel, Channel> make_channel_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw LaunchError(fmt::format("control channel: {}, expected a socket pair", std::strerror(errno)));
  }
  return {Channel(ends[0]), Channel(ends[1])};
}

}  // namespace lockstep
