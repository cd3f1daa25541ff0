#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/text.h"
#include "cli/doctor/judgement.h"

namespace lockstep {
namespace {

const NetworkInterface* find_interface(const NetworkFacts& facts, std::string_view name) {
  const auto found =
      std::ranges::find_if(facts.interfaces, [&](const auto& interface) { return interface.name == name; });
  return found == facts.interfaces.end() ? nullptr : &*found;
}

std::string interface_with(const NetworkFacts& facts, const std::string& address) {
  for (const NetworkInterface& interface : facts.interfaces) {
    if (std::ranges::find(interface.addresses, address) != interface.addresses.end()) {
      return interface.name;
    }
  }
  return {};
}

std::string names_of(const std::vector<NetworkInterface>& interfaces) {
  return join(mapped(interfaces, &NetworkInterface::name), ", ");
}

void judge_interfaces(const NetworkFacts& facts, Judgement& judgement) {
  std::vector<std::string> texts;
  std::int64_t silent = 0;
  bool loopback = false;
  for (const NetworkInterface& interface : facts.interfaces) {
    std::vector<std::string> addresses = interface.addresses;
    std::erase_if(addresses, [](const std::string& address) { return address.starts_with("fe80:"); });
    loopback = loopback || (interface.loopback && interface.up && !addresses.empty());
    if (interface.up && !addresses.empty()) {
      texts.push_back(fmt::format("{} {}", interface.name, join(addresses, " ")));
    } else {
      ++silent;
    }
  }
  if (silent > 0) {
    texts.push_back(fmt::format("{} without an address or down", silent));
  }
  judgement.ok("interfaces", join(texts, "; "));
  if (!loopback) {
    judgement.fail("loopback", "no loopback interface is up; the ranks of a machine connect over it",
                   "ip link set lo up");
  }
}

void judge_host(const NetworkFacts& facts, Judgement& judgement) {
  const ResolvedHost& host = facts.host;
  constexpr const char* kFix = "add the name with an address of this machine to /etc/hosts, or set GLOO_SOCKET_IFNAME";
  if (!host.error.empty()) {
    judgement.warn("host name",
                   fmt::format("{} cannot be resolved ({}); lockstep does not need it, other programs that use Gloo do",
                               host.name, host.error),
                   kFix);
  } else if (!host.here) {
    judgement.warn("host name",
                   fmt::format("{} is {}, not an address of this machine; lockstep does not need it, other programs "
                               "that use Gloo do",
                               host.name, join(host.addresses, ", ")),
                   kFix);
  } else {
    judgement.ok("host name", fmt::format("{}, resolves to {}", host.name, join(host.addresses, ", ")));
  }
}

void judge_gloo(const NetworkFacts& facts, Judgement& judgement) {
  if (facts.gloo_interface.empty()) {
    const std::string interface = interface_with(facts, facts.route_address);
    const std::string way = facts.route_address.empty() || !facts.master || facts.master->here
                                ? "several machines the address on the way to machine 0"
                                : fmt::format("several machines {}{}", facts.route_address,
                                              interface.empty() ? "" : fmt::format(" ({})", interface));
    judgement.ok("Gloo", fmt::format("the ranks of one machine use 127.0.0.1, those of {}", way));
    return;
  }
  for (const std::string& name : split(facts.gloo_interface, ',')) {
    const NetworkInterface* const interface = find_interface(facts, name);
    if (interface == nullptr || !interface->up || interface->addresses.empty()) {
      judgement.fail("GLOO_SOCKET_IFNAME",
                     fmt::format("{}: {}", name,
                                 interface == nullptr ? "this machine has no such interface"
                                                      : "the interface is down or has no address"),
                     fmt::format("use one of {}, or unset it", names_of(facts.interfaces)));
      return;
    }
  }
  judgement.ok("Gloo", fmt::format("the ranks of several machines use {} (GLOO_SOCKET_IFNAME)", facts.gloo_interface));
}

/// The interfaces that NCCL takes by itself: it connects over the first one, and sends data over all of them.
std::vector<std::string> nccl_default(const NetworkFacts& facts) {
  for (const std::string_view wanted : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"}) {
    std::vector<std::string> names;
    for (const NetworkInterface& interface : facts.interfaces) {
      if (interface.up && !interface.addresses.empty() && nccl_would_use(wanted, interface.name)) {
        names.push_back(interface.name);
      }
    }
    if (!names.empty()) {
      return names;
    }
  }
  return {};
}

void judge_nccl(const NetworkFacts& facts, bool has_gpus, Judgement& judgement) {
  if (facts.nccl_interface.empty()) {
    const std::vector<std::string> names = nccl_default(facts);
    if (has_gpus && !names.empty()) {
      const std::vector<std::string> others(names.begin() + 1, names.end());
      judgement.ok("NCCL", fmt::format("the ranks of one machine use lo, those of several {}{}; NCCL_SOCKET_IFNAME "
                                       "chooses others",
                                       names.front(),
                                       others.empty() ? "" : fmt::format(", and {} for data too", join(others, ", "))));
    }
    return;
  }
  const bool any = std::ranges::any_of(facts.interfaces, [&](const NetworkInterface& interface) {
    return interface.up && nccl_would_use(facts.nccl_interface, interface.name);
  });
  if (any) {
    judgement.ok("NCCL", fmt::format("uses interfaces of NCCL_SOCKET_IFNAME={}", facts.nccl_interface));
  } else {
    judgement.fail("NCCL_SOCKET_IFNAME", fmt::format("{}: it fits no interface that is up", facts.nccl_interface),
                   fmt::format("use one of {}, or unset it", names_of(facts.interfaces)));
  }
}

void judge_master(const Facts& facts, Judgement& judgement) {
  const auto& master = facts.network.master;
  if (master && !master->error.empty()) {
    judgement.fail("MASTER_ADDR", fmt::format("{} cannot be resolved: {}", master->name, master->error),
                   "use a name or an address of the machine of rank 0 that every machine can resolve");
  } else if (master) {
    judgement.ok("MASTER_ADDR",
                 fmt::format("{}, {}", master->name, master->here ? "this machine" : join(master->addresses, ", ")));
  }
  const auto& identity = facts.launcher.identity;
  const NetworkFacts& network = facts.network;
  if (!network.wrong_port.empty()) {
    judgement.warn("MASTER_PORT", network.wrong_port + ": expected a port from 1 to 65535", "correct or unset it");
  }
  const std::string port = fmt::format("{} ({})", network.port, network.port_source);
  if (identity && identity->agent_store) {
    judgement.ok("port", fmt::format("{}, served by the launcher", port));
  } else if (network.port_source != "--port" && master && !master->here) {
    judgement.ok("port", fmt::format("{}, on another machine", port));
  } else if (network.port_problem.empty()) {
    judgement.ok("port", port + ", free");
  } else if (network.port_is_chosen) {
    judgement.fail("port", fmt::format("{}: {}", port, network.port_problem),
                   "end that process, or use another port everywhere (MASTER_PORT, --master-port)");
  } else {
    judgement.warn("port", fmt::format("{}: {}; only launches on several machines use it", port, network.port_problem),
                   "use another port on every machine: --master-port");
  }
}

}  // namespace

bool nccl_would_use(std::string_view wanted, std::string_view interface) {
  const bool exclude = wanted.starts_with('^');
  wanted.remove_prefix(exclude ? 1 : 0);
  const bool exact = wanted.starts_with('=');
  wanted.remove_prefix(exact ? 1 : 0);
  const std::vector<std::string> names = split(wanted, ',');
  const bool listed = std::ranges::any_of(
      names, [&](const std::string& name) { return exact ? interface == name : interface.starts_with(name); });
  return listed != exclude;
}

void judge_network(const Facts& facts, Judgement judgement) {
  judge_interfaces(facts.network, judgement);
  judge_host(facts.network, judgement);
  judge_gloo(facts.network, judgement);
  judge_nccl(facts.network, !facts.gpus.driver.gpus.empty(), judgement);
  judge_master(facts, judgement);
  if (!facts.machine.infiniband.empty()) {
    judgement.ok("InfiniBand", join(facts.machine.infiniband, ", "));
  }
}

}  // namespace lockstep
