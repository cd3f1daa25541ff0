// Slurm's short form of a list of hosts: "gpu[001-003,007],login1,rack[1-2]n[1-2]". Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct Hostlist {
  std::vector<std::string> hosts{};  ///< in the order that is written; zero padding kept, several brackets a product
  std::string problem{};             ///< why the text is no host list; `hosts` is empty then
};

/// Commas or blanks separate hosts. Never more than `kMaxHosts` hosts: a longer list is a problem.
Hostlist parse_hostlist(std::string_view text);

inline constexpr std::size_t kMaxHosts = 65536;

}  // namespace lockstep
