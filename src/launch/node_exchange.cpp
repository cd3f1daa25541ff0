#include "launch/node_exchange.h"

#include <algorithm>
#include <cstdint>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/address.h"
#include "base/descriptor.h"
#include "base/duration.h"
#include "base/text.h"
#include "base/waiting_line.h"
#include "environment/store_listener.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kGreeting = "lockstep-node";
constexpr std::string_view kAnswer = "lockstep-ranks";
constexpr milliseconds kPause{200};
constexpr int kPatienceForALine = 2;          // seconds, for a connected peer
constexpr std::int64_t kMostRanks = 1 << 20;  // of one node; a higher number is invalid

/// Waits for the other launchers until the timeout, a stop signal, or readable data.
class Wait {
 public:
  Wait(milliseconds timeout, SignalInbox& signals)
      : timeout_(timeout), line_(timeout, LogLevel::info), signals_(signals) {}

  /// False: continue to wait, or stop if there is a signal. `fd` -1: only waits for time.
  bool readable(int fd) {
    pollfd events[]{{.fd = fd, .events = POLLIN, .revents = 0}, {.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    poll(events, std::size(events), static_cast<int>(kPause.count()));
    return !stop_requested() && (events[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
  }

  /// A request to stop has arrived, now or earlier.
  bool stop_requested() noexcept {
    signal_ = signal_ ? signal_ : signals_.take_stop();
    return signal_.has_value();
  }
  const std::optional<int>& signal() const noexcept { return signal_; }
  bool is_over() const { return line_.is_over(); }
  std::int64_t seconds() const { return whole_seconds(timeout_); }

  void say(const std::string& missing) {
    line_.say([&] { return "waiting for " + missing; });
  }

 private:
  const milliseconds timeout_;
  WaitingLine line_;
  SignalInbox& signals_;
  std::optional<int> signal_{};
};

/// "" if nothing or an incomplete line arrived.
std::string read_line(int fd) {
  constexpr std::size_t kLongest = 4096;
  const timeval patience{.tv_sec = kPatienceForALine, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string line;
  char c = 0;
  while (line.size() < kLongest && recv(fd, &c, 1, 0) == 1) {
    if (c == '\n') {
      return line;
    }
    line += c;
  }
  return {};
}

void send_line(int fd, const std::string& line) {
  const std::string text = line + '\n';
  [[maybe_unused]] const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);  // checked by the reader
}

std::string missing_nodes(const std::vector<int>& ranks) {
  std::vector<int> missing;
  for (std::size_t node = 0; node < ranks.size(); ++node) {
    if (ranks[node] == 0) {
      missing.push_back(static_cast<int>(node));
    }
  }
  return fmt::format("{} {}", missing.size() == 1 ? "node" : "nodes", format_ranges(missing));
}

RanksPerNode collect(const NodeExchange& exchange, int own_ranks, Wait& wait) {
  warn_of_loopback(exchange.address);
  StoreListener socket = bind_store_listener(exchange.address, exchange.port, /*listening=*/true);
  std::vector<int> ranks(static_cast<std::size_t>(exchange.nodes), 0);
  std::vector<Descriptor> launchers(ranks.size());
  ranks[0] = own_ranks;
  while (std::ranges::find(ranks, 0) != ranks.end()) {
    const bool knocked = wait.readable(socket.socket.get());
    if (wait.signal()) {
      return {.signal = wait.signal()};
    }
    if (wait.is_over()) {
      throw LaunchError(fmt::format("{} did not start within {} s", missing_nodes(ranks), wait.seconds()),
                        "look at their output; a slow start can be given more time with --dist.init_timeout_s",
                        ExitCode::timeout);
    }
    wait.say(missing_nodes(ranks));
    Descriptor launcher(knocked ? accept4(socket.socket.get(), nullptr, nullptr, SOCK_CLOEXEC) : -1);
    if (!launcher.is_open()) {
      continue;
    }
    const auto words = split(read_line(launcher.get()), ' ');
    if (words.size() != 4 || words[0] != kGreeting || words[3] != exchange.run_id) {
      continue;  // not a launcher of this run
    }
    const auto node = parse_int(words[1]).value_or(0);
    const auto theirs = parse_int(words[2]).value_or(0);
    if (node > 0 && node < exchange.nodes && theirs > 0 && theirs < kMostRanks) {
      ranks[static_cast<std::size_t>(node)] = static_cast<int>(theirs);
      launchers[static_cast<std::size_t>(node)] = std::move(launcher);
    }
  }
  // A launcher with the answer connects to the store here next and must not reach this socket.
  socket.socket = Descriptor();
  for (const Descriptor& launcher : launchers) {
    if (launcher.is_open()) {
      send_line(launcher.get(), fmt::format("{} {}", kAnswer, fmt::join(ranks, ",")));
    }
  }
  return {.ranks = ranks};
}

Descriptor reach(const NodeExchange& exchange) {
  int error = 0;
  const Addresses found = resolve_address(exchange.address, exchange.port, error);
  Descriptor socket = connect_to_any(found.get(), std::chrono::seconds(kPatienceForALine));
  if (socket.is_open()) {
    fcntl(socket.get(), F_SETFL, 0);  // read_line() waits
  }
  return socket;
}

RanksPerNode ask(const NodeExchange& exchange, int own_ranks, Wait& wait) {
  const std::string place = fmt::format("{}:{}", exchange.address, exchange.port);
  while (!wait.signal()) {
    if (wait.is_over()) {
      throw LaunchError(fmt::format("the launcher of node 0 did not answer at {} within {} s", place, wait.seconds()),
                        "read node 0's own output; check MASTER_ADDR and MASTER_PORT", ExitCode::timeout);
    }
    const Descriptor launcher = reach(exchange);
    if (launcher.is_open()) {
      send_line(launcher.get(), fmt::format("{} {} {} {}", kGreeting, exchange.node, own_ranks, exchange.run_id));
      while (!wait.signal() && !wait.is_over() && !wait.readable(launcher.get())) {
        wait.say("the launchers of the other nodes");
      }
      const std::string line = wait.signal() || wait.is_over() ? std::string() : read_line(launcher.get());
      RanksPerNode result;
      const auto words = split(line, ' ');
      for (const std::string& number : split(words.size() == 2 && words[0] == kAnswer ? words[1] : "", ',')) {
        result.ranks.push_back(static_cast<int>(parse_int(number).value_or(0)));
      }
      if (static_cast<int>(result.ranks.size()) == exchange.nodes && !words[0].empty()) {
        return result;
      }
      if (!line.empty()) {
        throw LaunchError(fmt::format("the program that listens at {} is not the launcher of node 0: it sends \"{}\"",
                                      place, printable(line.substr(0, 100))),
                          "choose another MASTER_PORT on every node", ExitCode::usage);
      }
    }
    wait.say(fmt::format("the launcher of node 0 at {}", place));
    wait.readable(-1);
  }
  return {.signal = wait.signal()};
}

}  // namespace

RanksPerNode exchange_ranks_per_node(NodeExchange exchange, int ranks, milliseconds timeout, SignalInbox& signals) {
  std::ranges::replace(exchange.run_id, ' ', '_');
  Wait wait(timeout, signals);
  RanksPerNode told = exchange.node == 0 ? collect(exchange, ranks, wait) : ask(exchange, ranks, wait);
  return wait.stop_requested() ? RanksPerNode{.signal = wait.signal()} : told;  // it may arrive during the last line
}

}  // namespace lockstep
