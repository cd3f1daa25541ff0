// Which process listens on a TCP port of this machine, from /proc. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep {

struct ListeningSocket {
  std::string address{};  ///< "127.0.0.1", "0.0.0.0", "::1"
  int port = 0;
  std::uint64_t inode = 0;
};

/// Listening TCP sockets of this network namespace, whoever owns them.
std::vector<ListeningSocket> listening_sockets();
/// Those of one process, as far as this user may look.
std::vector<ListeningSocket> listening_sockets(pid_t process);

/// "pid 4242 'python train.py' (user x)"; "another process" when /proc does not show whose it is: another user's, or
/// gone by now.
std::string describe_port_owner(int port);

/// "pid 4242 'python train.py' (user x)"
std::string describe_process(pid_t process);

}  // namespace lockstep
