// Note [Taking turns]: ranks wait for each other's turn in the store, so that work may take any time without tripping
// the timeout of a collective. A store that dies with its rank ends the wait. In the end, all wait for rank 0. Only
// rank 0 asks for the outcome of every rank, and writes for the others the first failure in the order of the ranks: n
// ranks would otherwise ask n^2 questions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ipc/progress_record.h"

namespace lockstep {

/// The turn of one rank.
struct Turn {
  c10d::Store& store;
  std::int64_t number = 0;  ///< of the operation, in which all ranks take their turns
  int rank = 0;
  int size = 1;
  std::optional<int> after{};  ///< the rank after which this one works; nullopt: it works first
};

/// Collective. Runs `work` in this rank's turn, and nowhere after a rank that threw. If one rank throws, all ranks do;
/// `what` names the work.
void take_turn(const Turn& turn, std::string_view what, ProgressRecord& progress, const std::function<void()>& work);

}  // namespace lockstep
