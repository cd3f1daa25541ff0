// Ranks without a launcher, started with the variables that torchrun would set.
#pragma once

#include <functional>
#include <memory>
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

/// How one rank is started.
struct PlainRank {
  int rank = 0;
  std::vector<std::string> words{};
  Process::Environment variables{};
};

/// Starts all ranks of a world on this machine. `change` may give one rank other words or variables.
inline std::vector<std::unique_ptr<Process>> start_ranks(int world_size, const std::vector<std::string>& words,
                                                         const std::function<void(PlainRank&)>& change = {}) {
  const std::string port = free_port();
  std::vector<std::unique_ptr<Process>> ranks;
  for (int i = 0; i < world_size; ++i) {
    PlainRank rank{.rank = i, .words = words, .variables = rank_variables(i, world_size, port)};
    if (change) {
      change(rank);
    }
    ranks.push_back(std::make_unique<Process>(rank.words, rank.variables));
  }
  return ranks;
}

}  // namespace lockstep
