// lockstep/environment/launch_name.h
//
// The name of a launch: restarts of a launch keep it, other launches have another one. Torch-free.
#pragma once

#include <optional>
#include <string>

#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Identifies a launch, so that a restarted rank knows that it belongs to the same one.
struct LaunchName {
  std::string id{};   ///< from the launcher that restarts the ranks; random if there is none
  std::string job{};  ///< the batch job (and step), the same after a requeue; "": none
  int requeues = 0;   ///< how often the job was requeued
};

/// Reads variables and /proc. With torchrun's store, the store has a better id (world/rendezvous.h). Throws:
/// ConfigError for a malformed SLURM_RESTART_COUNT.
LaunchName launch_name(const Variables& variables, const std::optional<Identity>& identity);

/// Whether `now` is the same launch as `before`, at the same or a later attempt.
bool same_launch(const LaunchName& before, const LaunchName& now);

}  // namespace lockstep
