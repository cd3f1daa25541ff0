// One rank's process inside run(): from its connection to its exit code.
#pragma once

#include <functional>
#include <string_view>

#include <lockstep/base/control.h>
#include <lockstep/base/variables.h>
#include <lockstep/environment/identity.h>
#include <lockstep/plan/plan.h>

namespace lockstep {

class Session;

/// Connects, calls `work`, and returns the exit code. With several ranks a failure is told to whoever watches them and
/// ends the process here: the ordinary way out joins threads that may wait for ever.
int be_a_worker(const Plan& plan, Identity identity, const Variables& environment, const TrainControl& control,
                const std::function<void(Session&)>& work);

/// On standard error, with the rank in front where there are several.
void print_error(std::string_view text);

}  // namespace lockstep
