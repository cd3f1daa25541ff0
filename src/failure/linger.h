// Rank 0 often serves the store, and would take along what the others have not read yet. Torch-free.
#pragma once

#include <chrono>
#include <exception>
#include <thread>

#include "failure/deadlines.h"

namespace lockstep {

/// Returns when `all_have_read`, when the store is gone, or after `longest`. Asks again and again: a wait in the store
/// that times out makes c10d write warnings.
template <class Question>
void linger(std::chrono::milliseconds longest, Question&& all_have_read) noexcept {
  const auto end = std::chrono::steady_clock::now() + longest;
  try {
    while (!all_have_read() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(deadlines::kLingerPause);
    }
  } catch (const std::exception&) {
    // The others are gone: there is nobody to wait for.
  }
}

}  // namespace lockstep
