// Small trainings whose weights are known from another training.
#pragma once

#include <lockstep/session.h>

#include "probe/results.h"

namespace lockstep {

/// Collective. A training on all ranks against the same on one.
void check_training(Session& session, Results& results);

/// Collective. The times of a tiny step and of a report.
void measure_step(Session& session, Results& results);

/// Collective. The time of a matrix product on all ranks at once, by number of threads.
void measure_threads(Session& session, Results& results);

/// Collective. The time of a step whose data must be calculated, on all ranks at once, by number of data workers.
void measure_workers(Session& session, Results& results);

/// Collective. One training from start to end, and one that stops and saves half-way; how long a save takes.
void save_half(Session& session, Results& results);

/// Collective. In new processes: continues the one that stopped.
void resume_half(Session& session, Results& results);

/// Collective. In a training the last rank is killed by a signal.
void lose_a_rank(Session& session, Results& results);

}  // namespace lockstep
