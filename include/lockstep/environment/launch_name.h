// lockstep/environment/launch_name.h
//
// What stays the same when a launch is started again, and differs between two launches. Torch-free.
#pragma once

#include <optional>
#include <string>

#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

namespace [[gnu::visibility("default")]] lockstep {

struct LaunchName {
  std::string id{};   ///< of the launcher that restarts the ranks; random where nobody restarts them
  std::string job{};  ///< the batch job (and its step): the same when the job is queued again; "": there is none
  int requeues = 0;   ///< how often the job was queued again
};

/// Reads variables and /proc. Under torchrun's store, the store knows a better id (world/rendezvous.h). Throws:
/// ConfigError for a malformed SLURM_RESTART_COUNT.
LaunchName launch_name(const Variables& variables, const std::optional<Identity>& identity);

/// Whether `now` is a later attempt of the launch that was noted as `before`, or the same attempt.
bool same_launch(const LaunchName& before, const LaunchName& now);

}  // namespace lockstep
