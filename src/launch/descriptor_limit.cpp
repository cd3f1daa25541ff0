#include "launch/descriptor_limit.h"

#include <algorithm>

#include <fmt/format.h>
#include <sys/resource.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

constexpr std::int64_t kOwn = 64;       // libraries, data files, logs
constexpr std::int64_t kPerWorker = 6;  // in the supervisor: two pipes, channel, process handle, log, one in reserve
constexpr std::int64_t kPerPeer = 3;    // in a rank: Gloo's pairs; 203 were counted for 64 ranks
constexpr rlim_t kEnough = 1 << 16;     // some programs loop over all possible descriptors

}  // namespace

std::int64_t needed_descriptors(int local_world_size, int world_size) {
  return kOwn + std::max(kPerWorker * local_world_size, kPerPeer * world_size);
}

void raise_descriptor_limit(int local_world_size, int world_size) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  const auto needed = static_cast<rlim_t>(needed_descriptors(local_world_size, world_size));
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < needed) {
    throw ConfigError(fmt::format("{} of {} ranks on this machine need up to {} open files, the hard limit is {}",
                                  local_world_size, world_size, needed, limit.rlim_max),
                      "raise it (ulimit -Hn, LimitNOFILE=, docker --ulimit nofile=), or use fewer ranks");
  }
  const rlim_t wanted = std::min(limit.rlim_max, std::max({limit.rlim_cur, needed, kEnough}));
  if (wanted > limit.rlim_cur) {
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace lockstep
