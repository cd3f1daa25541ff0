// Waits for the state of another process. Torch-free.
#pragma once

#include <chrono>
#include <thread>

#include <sys/types.h>

#include "supervise/process_state.h"

namespace lockstep {

/// For what the kernel tells nobody, such as the state and the name of another process: asks again and again. False if
/// it is not true after 30 s.
template <class Condition>
bool becomes_true(const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// `state`: as in ProcessState.
inline bool comes_into_state(pid_t pid, char state) {
  return becomes_true([&] { return read_process_state(pid).state == state; });
}

}  // namespace lockstep
