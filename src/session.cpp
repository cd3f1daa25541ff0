#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/session.h>

#include "base/text.h"
#include "report/console.h"

namespace lockstep {

Session::Session(Plan plan_, World world_, TrainControl control_, std::shared_ptr<Console> console_)
    : plan(std::move(plan_)), world(std::move(world_)), control(std::move(control_)), console(std::move(console_)) {
  if (!world.is_main()) {
    console = silent_console();
  } else if (!console) {
    console = terminal_console(/*interactive=*/false, /*width=*/0);
  }
}

void Session::print(std::string_view text) {
  for (const auto& line : split(text, '\n')) {
    console->line(line);
  }
}

Session Session::single(const TrainConfig& config) {
  TrainConfig one = config;
  one.nprocs = 1;
  Plan plan = resolve(one, probe_hardware(), std::nullopt);
  Identity alone;
  World world = World::connect(plan, alone);
  return Session(std::move(plan), std::move(world));
}

Session Session::connect(const TrainConfig& config) {
  const Variables environment = read_environment();
  auto identity = detect_identity(environment);
  if (!identity) {
    return single(config);
  }
  identity->starts_ranks = false;  // the program that owns this process starts them, or nobody
  Plan plan = resolve(config, probe_hardware(environment), identity);
  World world = World::connect(plan, *identity);
  return Session(std::move(plan), std::move(world));
}

}  // namespace lockstep
