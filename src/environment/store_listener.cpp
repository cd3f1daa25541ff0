#include "environment/store_listener.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/address.h"
#include "environment/launcher_process.h"
#include "environment/port_owner.h"

namespace lockstep {
namespace {

[[noreturn]] void throw_bind_error(const std::string& address, int port, int error) {
  if (error == EADDRINUSE) {
    const std::string other = "choose another port everywhere (MASTER_PORT, --master-port)";
    const auto owner = port_owner(port);
    throw LaunchError(
        fmt::format("MASTER_PORT {} is held by {}", port, owner ? describe_process(*owner) : "another process"),
        owner && is_ancestor(*owner)
            ? fmt::format("that process started this one: if it is a rank, it starts other programs with {}; else {}",
                          kWithoutItsRank, other)
            : "end that process, or " + other,
        ExitCode::usage);
  }
  const bool is_missing = error == EADDRNOTAVAIL;
  throw LaunchError(fmt::format("cannot listen on {}:{}: {}", address, port, std::strerror(error)),
                    is_missing && address == "127.0.0.1"
                        ? "the loopback interface has to have this address: ip addr add 127.0.0.1/8 dev lo"
                    : is_missing
                        ? "the master address (MASTER_ADDR, --master-addr) must be one of the machine of rank 0"
                        : "choose a free port of the machine of rank 0 (MASTER_PORT, --master-port)",
                    ExitCode::usage);
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return 0;
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

/// In a container without a network even 127.0.0.1 may be unreachable; the ranks would then retry until their timeout.
void check_reachable(int bound_socket, const std::string& address) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* generic = reinterpret_cast<sockaddr*>(&bound);
  // Sends nothing: connecting a datagram socket only finds the route.
  const Descriptor probe(
      getsockname(bound_socket, generic, &size) == 0 ? socket(bound.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1);
  if (!probe.is_open() || connect(probe.get(), generic, size) != 0) {
    throw LaunchError(fmt::format("the ranks cannot reach {}: {}", address, std::strerror(errno)),
                      "without a network the loopback interface has to be up: ip link set lo up", ExitCode::usage);
  }
}

}  // namespace

void warn_of_loopback(const std::string& address) {
  int error = 0;
  const Addresses found = resolve_address(address, 0, error);
  if (!found || found->ai_family != AF_INET || address == "localhost") {
    return;
  }
  const in_addr ip = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr;
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &ip, text.data(), text.size());
  if (ntohl(ip.s_addr) >> 24U == IN_LOOPBACKNET && address != text.data()) {
    log_warning(fmt::format(
        "the master address {} is {} on its own machine, which other machines cannot reach; set MASTER_ADDR, "
        "or --master-addr, to the machine's address in the network, or correct the name in /etc/hosts",
        address, text.data()));
  }
}

StoreListener bind_store_listener(const std::string& address, int port, bool listening) {
  int error = 0;
  const Addresses found = resolve_address(address, port, error);
  if (!found) {
    throw LaunchError(fmt::format("cannot resolve the master address {}: {}", address, gai_strerror(error)),
                      "MASTER_ADDR, or --master-addr, is a name or address of the machine of rank 0", ExitCode::usage);
  }
  Descriptor socket = bind_to_any(found.get());
  if (!socket.is_open() || (listening && listen(socket.get(), SOMAXCONN) != 0)) {
    throw_bind_error(address, port, errno);
  }
  check_reachable(socket.get(), address);
  const int bound = port_of(socket.get());
  return {std::move(socket), bound};
}

}  // namespace lockstep
