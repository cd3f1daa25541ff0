// lockstep/run.h
//
// run(): one main function for every way to launch a program.
#pragma once

#include <functional>

#include <lockstep/config/config_io.h>
#include <lockstep/session.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Call it first in main. Parses the command line over `defaults`, resolves and prints the plan, and calls `worker`
/// once per rank: in this process for one rank or under another launcher, else in processes that it starts by running
/// this program again, with the words of its command line. So main may remove words from argv first: it does so in
/// every process.
///
/// - Code in main before run() runs in every process. With several ranks, main does not see what `worker` writes to
/// captured variables; write results to files. Ranks that this program or `lockstep run` started have an empty standard
/// input.
/// - `worker` may train several times; run() itself may be called only once per process (a second call is an error).
/// - SIGINT, SIGTERM, SIGUSR1 and SIGHUP stop the run after the current step and a save; a second Ctrl-C ends it at
/// once.
///
/// Returns the exit code (base/error.h) and prints errors; never throws. Use it as `return lockstep::run(...)` in main.
int run(const TrainConfig& defaults, int argc, char** argv, const std::function<void(Session&)>& worker);
/// With the program's own flags.
int run(const TrainConfig& defaults, const Flags& flags, int argc, char** argv,
        const std::function<void(Session&)>& worker);

}  // namespace lockstep
