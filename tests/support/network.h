// Simulates two machines with network and PID namespaces. Needs root, iproute2 and util-linux.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "support/process.h"

namespace lockstep {

/// Two machines, each with an address, connected by a cable. Neither can see the processes of the other.
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
  std::vector<std::string> on(int machine, const std::vector<std::string>& command) const {
    std::vector<std::string> all{"nsenter", "--target", std::to_string(init(machine)), "--net", "--pid", "--mount"};
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  /// Processes that still run on a machine although their parent has ended.
  std::vector<pid_t> orphans(int machine) const { return Process::children_of(init(machine)); }

  void pull_cable(int machine = 0) const { ip({"-n", name(machine), "link", "set", "cable", "down"}); }
  void plug_cable(int machine = 0) const { ip({"-n", name(machine), "link", "set", "cable", "up"}); }
  /// Packets from the machine go to a network card that does not exist and are lost without an error. Packets to it
  /// arrive.
  void mute(int machine) const {
    ip({"-n", name(machine), "neigh", "replace", address(1 - machine), "lladdr", "02:00:00:00:00:00", "dev", "cable",
        "nud", "permanent"});
  }
  void unmute(int machine) const { ip({"-n", name(machine), "neigh", "del", address(1 - machine), "dev", "cable"}); }
  /// Resets the machine's connections to the other one. Returns their number; 0: the kernel does not support it.
  std::ptrdiff_t reset_connections(int machine) const {
    const auto killed = run_program({"ip", "netns", "exec", name(machine), "ss", "--kill", "--no-header", "--tcp",
                                     "--numeric", "dst", address(1 - machine)});
    return std::count(killed.out.begin(), killed.out.end(), '\n');
  }

 private:
  static bool ip(std::vector<std::string> words) {
    words.insert(words.begin(), "ip");
    return run_program(words).code == 0;
  }
  /// First process of a machine; it only keeps the namespaces open.
  pid_t init(int machine) const {
    return Process::children_of(machines_[static_cast<std::size_t>(machine)]->pid()).front();
  }
  bool set_up(int machine) {
    const auto& machine_name = name(machine);
    auto& holder = machines_[static_cast<std::size_t>(machine)];
    holder = std::make_unique<Process>(std::vector<std::string>{"ip", "netns", "exec", machine_name, "unshare", "--pid",
                                                                "--fork", "--kill-child", "--mount-proc", "sh", "-c",
                                                                "echo up && exec sleep infinity"});
    return holder->wait_for("up") &&
           ip({"-n", machine_name, "addr", "add", address(machine) + "/24", "dev", "cable"}) &&
           ip({"-n", machine_name, "link", "set", "cable", "up"}) &&
           ip({"-n", machine_name, "link", "set", "lo", "up"});
  }

  std::array<std::string, 2> names_;
  std::array<std::unique_ptr<Process>, 2> machines_{};
  bool works_ = false;
};

}  // namespace lockstep
