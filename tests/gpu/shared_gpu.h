// Ranks as processes, on the CPU or on one GPU that they share.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/config/train_config.h>
#include <lockstep/environment/hardware.h>

#include "support/plain_ranks.h"
#include "support/runs.h"

namespace lockstep {

/// A process with these variables sees the first GPU alone.
inline Process::Environment one_gpu_only() {
  const Hardware hardware = probe_hardware();
  return {{"CUDA_VISIBLE_DEVICES", hardware.gpus.empty() ? "0" : hardware.gpus.front().uuid},
          {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"},
          {"OMP_NUM_THREADS", "1"}};
}

/// NCCL rejects two ranks on one GPU of one host, so they appear to be on two hosts.
inline Process::Environment sharing_one_gpu(int rank, Process::Environment environment = {}) {
  environment.merge(one_gpu_only());
  environment.insert({{"NCCL_HOSTID", "host" + std::to_string(rank)},
                      {"NCCL_SOCKET_IFNAME", "lo"},
                      {"NCCL_NET", "Socket"},
                      {"NCCL_DEBUG", "WARN"}});
  return environment;
}

inline std::vector<std::string> on_device(ComputeSetup where) {
  return {"--compute_setup", where == ComputeSetup::gpu ? "gpu" : "cpu"};
}

/// Two ranks of `program`, started as torchrun would.
inline std::vector<std::unique_ptr<Process>> two_ranks(const std::vector<std::string>& program) {
  return start_ranks(2, program,
                     [](PlainRank& rank) { rank.variables = sharing_one_gpu(rank.rank, std::move(rank.variables)); });
}

/// Two launchers of one rank each, as on two machines.
inline std::vector<std::unique_ptr<Process>> two_launchers(const std::string& lockstep,
                                                           const std::vector<std::string>& program) {
  const std::string port = free_port();
  std::vector<std::unique_ptr<Process>> launchers;
  for (const int node : {0, 1}) {
    launchers.push_back(std::make_unique<Process>(
        with({lockstep, "run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", std::to_string(node),
              "--master-addr", "127.0.0.1", "--master-port", port, "--rdzv-id", "two-launchers", "--"},
             program),
        sharing_one_gpu(node)));
  }
  return launchers;
}

}  // namespace lockstep
