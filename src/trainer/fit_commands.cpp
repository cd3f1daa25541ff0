#include "trainer/fit_commands.h"

#include <algorithm>
#include <iterator>

#include <lockstep/base/file_system.h>

#include "base/text.h"

namespace lockstep {

FitCommands::FitCommands(std::filesystem::path run, std::vector<std::string> own, TrainControl& control)
    : files_(real_file_system(), std::move(run), std::move(own)), control_(control) {}

void FitCommands::look() {
  CommandsTaken taken = files_.take();
  if (taken.stop) {
    control_.request_stop("lockstep ctl", StopKind::terminate);
  }
  requests_.save |= taken.save;
  requests_.validate |= taken.validate;
  requests_.report |= taken.report;
  requests_.command |= !taken.own.empty();
  std::ranges::move(taken.own, std::back_inserter(own_));
}

std::vector<std::string> FitCommands::take_own(World& world) {
  std::vector<std::string> commands = split(world.broadcast_bytes(join(std::exchange(own_, {}), "\n")), '\n');
  std::erase(commands, "");  // there are none: an earlier call has taken them
  return commands;
}

}  // namespace lockstep
