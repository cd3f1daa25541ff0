// Finds the process that listens on a TCP port of this machine, in /proc. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep {

struct ListeningSocket {
  std::string address{};  ///< "127.0.0.1", "0.0.0.0", "::1"
  int port = 0;
  std::uint64_t inode = 0;
};

/// Listening TCP sockets in this network namespace, of any owner.
std::vector<ListeningSocket> listening_sockets();
/// Those of one process, as far as this user may see them.
std::vector<ListeningSocket> listening_sockets(pid_t process);

/// nullopt if /proc does not show it: another user's process, or one that has ended.
std::optional<pid_t> port_owner(int port);
/// "pid 4242 'python train.py' (user x)"; "another process" if /proc does not show the owner.
std::string describe_port_owner(int port);

/// "pid 4242 'python train.py' (user x)"
std::string describe_process(pid_t process);

}  // namespace lockstep
