// State of another process, from /proc. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace lockstep {

struct ProcessState {
  char state = '?';            ///< R, S, D (uninterruptible), T (stopped), t (held by a debugger), Z; '?': unknown
  std::int64_t cpu_ticks = 0;  ///< CPU time used so far, user and system
  pid_t tracer = 0;            ///< the debugger, in state t
  std::string waits_in{};      ///< function of the kernel in which it waits, in state D
};

ProcessState read_process_state(pid_t pid);

/// "stopped by a signal (state T)", "in the kernel (state D, nfs_wait)"; "" for a process that runs or sleeps normally.
std::string to_string(const ProcessState& process);

/// State and CPU time from /proc/PID/stat, whose second field, the name of the program, may contain any characters.
ProcessState parse_process_stat(std::string_view stat);
/// "TracerPid:	4711" of /proc/PID/status; 0: no debugger.
pid_t parse_tracer(std::string_view status);

}  // namespace lockstep
