// Waits for the state of another process. Torch-free.
#pragma once

#include <chrono>
#include <thread>

#include <sys/types.h>

#include "supervise/process_state.h"

namespace lockstep {

/// `state`: as in ProcessState. False if the process is not in it after 30 s. It asks again and again, because the
/// kernel tells nobody that a process waits.
inline bool comes_into_state(pid_t pid, char state) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (read_process_state(pid).state != state) {
    if (std::chrono::steady_clock::now() > limit) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace lockstep
