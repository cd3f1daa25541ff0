// lockstep/run.h
//
// The front door: one main for every way of starting.
#pragma once

#include <functional>

#include <lockstep/config/config_io.h>
#include <lockstep/session.h>

namespace [[gnu::visibility("default")]] lockstep {

/// The first statement of main. Parses the command line over `defaults`, decides, prints the plan, and calls `worker`
/// once per rank: in this process for one rank or under an external launcher, else in processes it starts by running
/// this program again.
///
/// - What main does before run() happens in every process; what `worker` writes to captured variables is seen after
/// run() only
///   when there is one rank. Results leave through files.
/// - Train as often as you like inside `worker`; run() itself may be called once per process (a second call is an
/// error).
/// - Inside, SIGINT, SIGTERM and SIGUSR1 stop after the current step and a save; a second Ctrl-C ends at once.
///
/// Returns the exit code (base/error.h) and prints what went wrong; never throws. `return lockstep::run(...)` from
/// main.
int run(const TrainConfig& defaults, int argc, char** argv, const std::function<void(Session&)>& worker);
/// With the program's own flags beside ours.
int run(const TrainConfig& defaults, const Flags& flags, int argc, char** argv,
        const std::function<void(Session&)>& worker);

}  // namespace lockstep
