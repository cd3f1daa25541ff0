// Two machines on one: network namespaces. Needs root and iproute2.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "support/process.h"

namespace lockstep {

/// Two namespaces with an address each and a cable between them.
class Network {
 public:
  Network() : names_{"lockstep-a-" + std::to_string(getpid()), "lockstep-b-" + std::to_string(getpid())} {
    works_ =
        ip({"netns", "add", names_[0]}) && ip({"netns", "add", names_[1]}) &&
        ip({"link", "add", "cable", "netns", names_[0], "type", "veth", "peer", "name", "cable", "netns", names_[1]}) &&
        set_up(0) && set_up(1);
  }
  ~Network() {
    for (const auto& name : names_) {
      ip({"netns", "del", name});
    }
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  bool works() const noexcept { return works_; }
  const std::string& name(int machine) const { return names_[static_cast<std::size_t>(machine)]; }
  static std::string address(int machine) { return "10.78.0." + std::to_string(machine + 1); }
  void pull_cable(int machine = 0) const { ip({"-n", name(machine), "link", "set", "cable", "down"}); }
  void plug_cable(int machine = 0) const { ip({"-n", name(machine), "link", "set", "cable", "up"}); }
  std::vector<std::string> on(int machine, const std::vector<std::string>& command) const {
    std::vector<std::string> all{"ip", "netns", "exec", name(machine)};
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }

 private:
  static bool ip(std::vector<std::string> words) {
    words.insert(words.begin(), "ip");
    return run_program(words).code == 0;
  }
  bool set_up(int machine) const {
    const auto& machine_name = name(machine);
    return ip({"-n", machine_name, "addr", "add", address(machine) + "/24", "dev", "cable"}) &&
           ip({"-n", machine_name, "link", "set", "cable", "up"}) &&
           ip({"-n", machine_name, "link", "set", "lo", "up"});
  }

  std::array<std::string, 2> names_;
  bool works_ = false;
};

}  // namespace lockstep
