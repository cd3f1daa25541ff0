// What Slurm tells its tasks.
#pragma once

#include <string>

#include "support/process.h"

namespace lockstep {

/// Of one of two nodes of this machine, with one task per node.
inline Process::Environment slurm_task(int node, const std::string& port) {
  return {{"SLURM_JOB_ID", "7"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(node)},
          {"SLURM_NODEID", std::to_string(node)},
          {"SLURM_LOCALID", "0"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port}};
}

}  // namespace lockstep
