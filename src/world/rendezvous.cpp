#include "world/rendezvous.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/text.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Without a socket of our own c10d's store listens on every interface, whatever host it is given.
int listen_on(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (const int error = getaddrinfo(address.c_str(), service.c_str(), &hints, &found); error != 0) {
    throw CommError(fmt::format("cannot resolve MASTER_ADDR {}: {}", address, gai_strerror(error)),
                    "set MASTER_ADDR to a name or address of the node of rank 0", ExitCode::timeout);
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  const bool listening = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                         bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!listening) {
    if (fd >= 0) {
      close(fd);
    }
    throw CommError(fmt::format("rank 0 cannot listen on {}:{}: {}", address, port, std::strerror(error)),
                    "choose another MASTER_PORT, or a MASTER_ADDR of this node");
  }
  return fd;
}

c10::intrusive_ptr<c10d::Store> connect_store(const Identity& identity, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(identity.master_port);
  options.isServer = identity.rank == 0 && !identity.agent_store;
  options.waitWorkers = false;  // we wait ourselves, and say for whom
  options.timeout = timeout;
  if (options.isServer) {
    options.masterListenFd =
        identity.store_fd >= 0 ? identity.store_fd : listen_on(identity.master_addr, identity.master_port);
  }
  return c10::make_intrusive<c10d::TCPStore>(identity.master_addr, options);
}

std::string here_key(int rank) { return fmt::format("here/{}", rank); }

std::vector<std::string> missing_ranks(c10d::Store& store, int world_size) {
  std::vector<std::string> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!store.check({here_key(rank)})) {
      missing.push_back(std::to_string(rank));
    }
  }
  return missing;
}

// Asks again and again: a wait in the store that times out makes c10d write warnings of its own.
void wait_for_all(c10d::Store& store, const Identity& identity, milliseconds timeout) {
  constexpr auto kSayEvery = std::chrono::seconds(10);
  constexpr milliseconds kLongestPause{50};
  const auto start = Clock::now();
  auto say_at = start + kSayEvery;
  const auto seconds = [](auto duration) { return std::chrono::duration_cast<std::chrono::seconds>(duration).count(); };
  milliseconds pause{1};
  for (int rank = 0; rank < identity.world_size; ++rank) {
    while (!store.check({here_key(rank)})) {
      const auto now = Clock::now();
      if (now - start >= timeout) {
        const auto missing = missing_ranks(store, identity.world_size);
        throw CommError(
            fmt::format("{} of {} ranks did not start within {} s: missing {} {}", missing.size(), identity.world_size,
                        seconds(timeout), missing.size() == 1 ? "rank" : "ranks", join(missing, ", ")),
            "look at their output; a slow start can be given more time with --dist.init_timeout_s", ExitCode::timeout);
      }
      if (now >= say_at) {
        say_at += kSayEvery;
        log_info(fmt::format("waiting for rank {} ({} of {} s)", join(missing_ranks(store, identity.world_size), ", "),
                             seconds(now - start), seconds(timeout)));
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
}

}  // namespace

void store_set(c10d::Store& store, const std::string& key, std::string_view value) {
  store.set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
}

std::string store_get(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

bool store_wait(c10d::Store& store, const std::string& key, milliseconds timeout) {
  try {
    store.wait({key}, timeout);
    return true;
  } catch (const c10::DistNetworkError& error) {
    throw CommError(fmt::format("the rendezvous store is gone: {}", error.what_without_backtrace()),
                    "rank 0 or the launcher that serves it ended");
  } catch (const c10::DistStoreError&) {
    return false;
  }
}

c10::intrusive_ptr<c10d::Store> rendezvous(const Identity& identity, milliseconds timeout) {
  try {
    const auto tcp = connect_store(identity, timeout);
    // A restarted launch meets the keys of the attempt before on the same store, and a second world those of the first.
    const auto launch =
        c10::make_intrusive<c10d::PrefixStore>(fmt::format("lockstep/{}/{}", identity.run_id, identity.restart), tcp);
    const auto nth = launch->add(fmt::format("connects/{}", identity.rank), 1);
    const auto store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(nth), launch);
    store_set(*store, here_key(identity.rank), std::to_string(getpid()));
    wait_for_all(*store, identity, timeout);
    return store;
  } catch (const c10::Error& error) {
    throw CommError(fmt::format("rank {} cannot reach the rendezvous store at {}:{}: {}", identity.rank,
                                identity.master_addr, identity.master_port, error.what_without_backtrace()),
                    "check MASTER_ADDR and MASTER_PORT, and that rank 0 is running", ExitCode::timeout);
  }
}

}  // namespace lockstep
