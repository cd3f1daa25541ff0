// Ranks without a launcher, started with the variables that torchrun would set.
#pragma once

#include <string>
#include <vector>

#include "support/runs.h"

namespace lockstep {

inline Process::Environment rank_variables(int rank, int world_size, const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world_size)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"OMP_NUM_THREADS", "1"}};
}

}  // namespace lockstep
