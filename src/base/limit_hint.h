// What to do if the system refuses a process, a thread or a descriptor. Torch-free.
#pragma once

#include <cerrno>

namespace lockstep {

/// "": the cause of `error` is no limit.
constexpr const char* limit_hint(int error) noexcept {
  switch (error) {
    case EAGAIN:
    case ENOMEM:
      return "check the limits on processes, threads and memory: ulimit -u, ulimit -v, and those of the container "
             "(pids.max, memory)";
    case EMFILE:
    case ENFILE:
      return "check the limits on open files: ulimit -n, and fs.file-max of the machine";
    default:
      return "";
  }
}

}  // namespace lockstep
