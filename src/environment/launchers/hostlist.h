// Slurm's compact form of a list of hosts: "gpu[001-003,007],login1,rack[1-2]n[1-2]". Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Hostlist {
  std::vector<std::string> hosts{};  ///< in the written order; zero padding is kept, several brackets form a product
  std::string problem{};             ///< why the text is not a host list; `hosts` is then empty
};

/// Hosts are separated by commas or blanks. Returns at most `kMaxHosts` hosts: a longer list is a problem.
Hostlist parse_hostlist(std::string_view text);

inline constexpr std::size_t kMaxHosts = 65536;

}  // namespace lockstep
