// The commands for a running fit: those of `lockstep ctl`, and those of the program.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/control.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/world/world.h>

#include "storage/run_commands.h"

namespace lockstep {

/// Keeps what was asked for until a step sends it to the other ranks.
class FitCommands {
 public:
  /// `run`: empty: this rank takes no commands. `own`: the commands of the program.
  FitCommands(std::filesystem::path run, std::vector<std::string> own, TrainControl& control);

  /// Looks for new commands. A stop becomes a request of the control.
  void look();
  /// What was asked for since the last call.
  StepRequests take_requests() { return std::exchange(requests_, {}); }
  /// Commands of the program wait for take_own().
  bool has_own() const noexcept { return !own_.empty(); }
  /// Collective. The commands of the program since the last call, on every rank. Only the main rank has found them.
  std::vector<std::string> take_own(World& world);

 private:
  RunCommands files_;
  TrainControl& control_;
  StepRequests requests_{};
  std::vector<std::string> own_{};
};

}  // namespace lockstep
