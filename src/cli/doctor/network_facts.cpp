#include <algorithm>
#include <array>
#include <memory>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/address.h"
#include "base/descriptor.h"
#include "base/text.h"
#include "cli/doctor/facts.h"
#include "environment/process_name.h"
#include "environment/store_listener.h"

namespace lockstep {
namespace {

constexpr int kDefaultPort = 29500;  // of `lockstep run` on several machines, and of torchrun

/// "" for other than IP addresses.
std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address != nullptr && address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

bool is_here(const std::vector<NetworkInterface>& interfaces, const std::string& address) {
  return address.starts_with("127.") || std::ranges::any_of(interfaces, [&](const auto& interface) {
           return std::ranges::find(interface.addresses, address) != interface.addresses.end();
         });
}

ResolvedHost resolve(const std::string& name, const std::vector<NetworkInterface>& interfaces) {
  ResolvedHost host{.name = name};
  int error = 0;
  const Addresses found = resolve_address(name, 0, error);
  if (!found) {
    host.error = gai_strerror(error);
  }
  for (const addrinfo* entry = found.get(); entry != nullptr; entry = entry->ai_next) {
    std::string address = text_of(entry->ai_addr);
    host.here = host.here || is_here(interfaces, address);
    host.addresses.push_back(std::move(address));
  }
  return host;
}

/// Sends nothing: connecting a datagram socket only finds the route.
std::string address_toward(const std::string& name) {
  constexpr int kAnyPort = 9;
  int error = 0;
  const Addresses found = resolve_address(name, kAnyPort, error);
  const Descriptor probe(found ? socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  if (!probe.is_open() || connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(probe.get(), address, &size) != 0) {
    return {};
  }
  return text_of(address);
}

std::string port_problem(int port) {
  try {
    bind_store_listener("0.0.0.0", port, /*listening=*/false);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::vector<NetworkInterface> collect_interfaces() {
  std::vector<NetworkInterface> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return interfaces;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    auto found =
        std::ranges::find_if(interfaces, [&](const NetworkInterface& known) { return known.name == entry->ifa_name; });
    if (found == interfaces.end()) {
      found = interfaces.insert(interfaces.end(), {.name = entry->ifa_name,
                                                   .up = (entry->ifa_flags & IFF_UP) != 0,
                                                   .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
    if (std::string address = text_of(entry->ifa_addr); !address.empty()) {
      found->addresses.push_back(std::move(address));
    }
  }
  return interfaces;
}

NetworkFacts collect_network_facts(const Variables& variables, const LauncherFacts& launcher, int port) {
  NetworkFacts facts{.interfaces = collect_interfaces(),
                     .gloo_interface = printable(variables.get("GLOO_SOCKET_IFNAME").value_or("")),
                     .nccl_interface = printable(variables.get("NCCL_SOCKET_IFNAME").value_or(""))};
  facts.host = resolve(host_name(), facts.interfaces);
  const bool launched = launcher.identity && launcher.identity->launcher != "single";
  const Identity* const identity = launched ? &*launcher.identity : nullptr;
  const std::string master = variables.get("MASTER_ADDR").value_or(identity ? identity->master_addr : "");
  if (!master.empty()) {
    facts.master = resolve(printable(master), facts.interfaces);
    facts.route_address = address_toward(master);
  }
  const std::string text = variables.get("MASTER_PORT").value_or("");
  const auto variable = parse_int(text);
  facts.port_is_chosen = true;
  if (port > 0) {
    facts.port = port;
    facts.port_source = "--port";
  } else if (identity != nullptr && identity->master_port > 0) {
    facts.port = identity->master_port;
    facts.port_source = identity->launcher;
  } else if (variable && *variable > 0 && *variable <= 65535) {
    facts.port = static_cast<int>(*variable);
    facts.port_source = "MASTER_PORT";
  } else {
    facts.port = kDefaultPort;
    facts.port_source = "default";
    facts.port_is_chosen = false;
    facts.wrong_port = printable(text);
  }
  facts.port_problem = port_problem(facts.port);
  return facts;
}

}  // namespace lockstep
