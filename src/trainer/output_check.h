// What a task may return for a batch.
#pragma once

#include <lockstep/trainer/step_output.h>

namespace lockstep {

/// Waits for nothing: a count on a GPU may be any number. Throws: Error (a loss, count or metric that is no single
/// number), DataError (a count that is negative, or not a number).
void check_output(const StepOutput& output);

}  // namespace lockstep
