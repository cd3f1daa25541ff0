#include "world/store_socket.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/address.h"
#include "base/descriptor.h"
#include "base/duration.h"
#include "base/text.h"
#include "base/waiting_line.h"
#include "environment/port_owner.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kAnswerTime{4};  // a store answers in microseconds

bool ready(int fd, short events, milliseconds patience) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  return poll(&entry, 1, static_cast<int>(std::max(patience, milliseconds(0)).count())) == 1;
}

std::string numeric_address(int fd, decltype(&getsockname) which) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (which(fd, generic, &size) != 0 ||
      getnameinfo(generic, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return text.data();
}

/// What a listener did after c10d's greeting.
struct Reply {
  std::string wrong{};  ///< "": it is a c10d server
  bool is_silent = false;
};

/// Sends c10d's greeting and a ping; a c10d server returns the number of the ping.
Reply greet(int fd) {
  constexpr std::uint32_t kNumber = 0x6c6f636b;
  std::array<char, 10> greeting{};
  greeting[0] = static_cast<char>(c10d::detail::QueryType::VALIDATE);
  std::memcpy(&greeting[1], &c10d::detail::validationMagicNumber, sizeof(std::uint32_t));
  greeting[5] = static_cast<char>(c10d::detail::QueryType::PING);
  std::memcpy(&greeting[6], &kNumber, sizeof kNumber);
  if (send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(greeting.size())) {
    return {.wrong = "it closes connections at once"};
  }
  const auto end = Clock::now() + kAnswerTime;
  const std::string expected(reinterpret_cast<const char*>(&kNumber), sizeof kNumber);
  std::string answer;
  while (answer != expected) {
    std::array<char, 64> buffer{};
    if (!ready(fd, POLLIN, std::chrono::duration_cast<milliseconds>(end - Clock::now()))) {
      return {.wrong = fmt::format("it does not answer within {} s", kAnswerTime.count()), .is_silent = true};
    }
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) {
      return {.wrong = answer.empty() ? "it closes the connection" : fmt::format("it sends '{}'", printable(answer))};
    }
    answer.append(buffer.data(), static_cast<std::size_t>(got));
    if (!expected.starts_with(answer)) {
      return {.wrong = fmt::format("it sends '{}'", printable(answer))};
    }
  }
  return {};
}

std::string what_is_missing(const Identity& identity, bool is_resolved, bool is_silent, int error) {
  if (!is_resolved) {
    return fmt::format("cannot resolve {} from {}: {}", identity.master_addr, identity.master_source,
                       gai_strerror(error));
  }
  if (is_silent) {
    return fmt::format("what listens on {} does not answer: rank 0, which is starting, or another program",
                       store_address(identity));
  }
  return fmt::format("nobody listens on {}{}", store_address(identity),
                     identity.agent_store ? ", torchrun's agent is missing" : ", rank 0 is missing");
}

[[noreturn]] void throw_stranger(const Identity& identity, int fd, const std::string& wrong) {
  const bool here = numeric_address(fd, getsockname) == numeric_address(fd, getpeername);
  throw CommError(fmt::format("the program that listens on {} is not the rendezvous store of {}: {}{}",
                              store_address(identity), store_server(identity), wrong,
                              here ? "; it is " + describe_port_owner(identity.master_port) : std::string()),
                  "choose another MASTER_PORT on every rank, or end that process", ExitCode::usage);
}

}  // namespace

const char* store_server(const Identity& identity) { return identity.agent_store ? "torchrun's agent" : "rank 0"; }

std::string store_address(const Identity& identity) {
  const bool numeric_v6 = identity.master_addr.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", numeric_v6 ? "[" : "", identity.master_addr, numeric_v6 ? "]" : "",
                     identity.master_port);
}

std::string local_address(const Identity& identity) {
  int error = 0;
  const Addresses found = resolve_address(identity.master_addr, identity.master_port, error);
  const Descriptor fd = connect_to_any(found.get(), kAnswerTime);
  return fd.is_open() ? numeric_address(fd.get(), getsockname) : std::string();
}

void reach_store(const Identity& identity, milliseconds timeout) {
  constexpr milliseconds kLongestPause{200};
  // One rank per node: the first that does not serve the store.
  const bool speaks = identity.local_rank == (identity.node == 0 && !identity.agent_store ? 1 : 0);
  WaitingLine line(timeout, LogLevel::warning);  // information is logged by the main rank only
  for (milliseconds pause{5};; pause = std::min(2 * pause, kLongestPause)) {
    int error = 0;
    bool is_silent = false;
    const Addresses found = resolve_address(identity.master_addr, identity.master_port, error);
    if (const Descriptor fd = connect_to_any(found.get(), kAnswerTime); fd.is_open()) {
      const Reply reply = greet(fd.get());
      if (reply.wrong.empty()) {
        return;
      }
      // The socket of our launcher on rank 0's machine listens before rank 0 serves on it.
      is_silent = identity.is_supervised() && reply.is_silent;
      const Descriptor again = is_silent ? Descriptor() : connect_to_any(found.get(), kAnswerTime);
      if (again.is_open()) {
        throw_stranger(identity, again.get(), reply.wrong);
      }
      // It ended meanwhile. It may have been rank 0, before it could answer.
    }
    const std::string missing = what_is_missing(identity, found != nullptr, is_silent, error);
    if (line.is_over()) {
      throw CommError(
          fmt::format("{} after {} s", missing, whole_seconds(timeout)),
          fmt::format("check MASTER_ADDR and MASTER_PORT, and the output of {}; a slow start can be given more time "
                      "with --dist.init_timeout_s",
                      store_server(identity)),
          ExitCode::timeout);
    }
    if (speaks) {
      line.say([&] { return "waiting: " + missing; });
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace lockstep
