// What /proc says about another process. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace lockstep {

struct ProcessState {
  char state = '?';            ///< R, S, D (uninterruptible), T (stopped), t (held by a debugger), Z; '?': not known
  std::int64_t cpu_ticks = 0;  ///< used so far, user and system
  pid_t tracer = 0;            ///< the debugger, in state t
  std::string waits_in{};      ///< the kernel's function, in state D
};

ProcessState read_process_state(pid_t pid);

/// "stopped by a signal (state T)", "in the kernel (state D, nfs_wait)"; "" for one that runs or waits for something.
std::string to_string(const ProcessState& process);

/// State and CPU time of /proc/PID/stat, whose second field, the program's name, may hold anything.
ProcessState parse_process_stat(std::string_view stat);
/// "TracerPid:	4711" of /proc/PID/status; 0: none.
pid_t parse_tracer(std::string_view status);

}  // namespace lockstep
