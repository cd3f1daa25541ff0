// What every rank of a plan gets. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/plan/plan.h>

namespace lockstep {

struct RankShare {
  int rank = 0;
  int node = 0;
  int local_rank = 0;
  LocalDevice device{};
  std::int64_t samples = 0;  ///< per step, except the last one of an epoch
};

std::string device_text(const LocalDevice& device);  ///< "cuda:1 NVIDIA H200", "cpu"

/// The ranks of a plan of node 0 whose ranks are not started yet, if each node is like this one. Empty: the devices of
/// another node are not known.
std::vector<RankShare> rank_shares(const Plan& plan);

/// The output of --dry-run: the start-up table and, with several ranks that are not started yet, a row for each rank.
std::string dry_run_text(const Plan& plan, const std::optional<Identity>& identity);

}  // namespace lockstep
