// Judges the facts of a machine. Pure. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/facts.h"

namespace lockstep {

enum class FindingLevel { ok, warning, failure };

struct Finding {
  FindingLevel level = FindingLevel::ok;
  std::string group{};    ///< one of kFindingGroups
  std::string subject{};  ///< "driver", "GPU 1"
  std::string found{};
  std::string fix{};  ///< "" if the level is ok
};

inline constexpr std::string_view kFindingGroups[] = {"versions", "machine", "GPUs",
                                                      "network",  "launch",  "run directory"};

/// What to do if the loader finds no LibTorch.
inline constexpr std::string_view kInstallLibTorch =
    "install LibTorch where lockstep looks for it: a DEB or TGZ in /opt/libtorch, which may be a link; a wheel beside "
    "it in "
    "its Python environment (the package torch); a build in the directory with which it was built";

/// In the order of the groups.
std::vector<Finding> judge(const Facts& facts);

/// The oldest driver that can run programs of this CUDA version, by its major number; nullopt: not known.
std::optional<int> oldest_driver_for(std::string_view cuda_version);

/// Whether NCCL would use an interface: `wanted` is the text of NCCL_SOCKET_IFNAME, a list of prefixes ("eth,ib0"), of
/// exact names ("=eth0") or of what to leave out ("^docker").
bool nccl_would_use(std::string_view wanted, std::string_view interface);

}  // namespace lockstep
