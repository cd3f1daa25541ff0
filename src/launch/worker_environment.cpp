#include "launch/worker_environment.h"

#include <numeric>

#include "environment/own_variables.h"
#include "environment/visible_devices.h"
#include "supervise/worker_process.h"

namespace lockstep {

int world_size(const LaunchRequest& request) {
  return std::accumulate(request.ranks_per_node.begin(), request.ranks_per_node.end(), 0);
}

int local_world_size(const LaunchRequest& request) {
  return request.ranks_per_node.at(static_cast<std::size_t>(request.node));
}

int first_rank(const LaunchRequest& request) {
  return std::accumulate(request.ranks_per_node.begin(), request.ranks_per_node.begin() + request.node, 0);
}

Variables worker_environment(const LaunchRequest& request, const Attempt& attempt, int local_rank) {
  const std::string rank = std::to_string(first_rank(request) + local_rank);
  const std::string world = std::to_string(world_size(request));
  auto values = request.environment.all();

  // The same variables as torchrun sets, so that programs written for it run.
  values["RANK"] = values["ROLE_RANK"] = rank;
  values["WORLD_SIZE"] = values["ROLE_WORLD_SIZE"] = world;
  values["ROLE_NAME"] = "default";
  values["LOCAL_RANK"] = std::to_string(local_rank);
  values["LOCAL_WORLD_SIZE"] = std::to_string(local_world_size(request));
  values["GROUP_RANK"] = std::to_string(request.node);
  values["GROUP_WORLD_SIZE"] = std::to_string(request.ranks_per_node.size());
  values["MASTER_ADDR"] = request.master_addr;
  values["MASTER_PORT"] = std::to_string(attempt.master_port);
  values["TORCHELASTIC_RESTART_COUNT"] = std::to_string(attempt.number);
  values["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(request.max_restarts);
  values["TORCHELASTIC_RUN_ID"] = attempt.run_id;
  values["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  values.erase("TORCHELASTIC_ERROR_FILE");  // belongs to a process of an outer launcher
  values.emplace("OMP_NUM_THREADS", std::to_string(request.threads_per_rank));
  values.emplace(kDeviceOrder, kPciOrder);
  // c10d warns about sockets of failed ranks, which would hide the failure itself.
  values.emplace("TORCH_CPP_LOG_LEVEL", "ERROR");

  const std::string outer = request.environment.get(own_variables::kLaunchMark).value_or("");
  values[own_variables::kLaunchMark] = outer.empty() ? attempt.launch_id : outer + "/" + attempt.launch_id;
  values[own_variables::kRunId] = attempt.run_id;
  values[own_variables::kRestart] = std::to_string(attempt.number);
  values[own_variables::kControlFd] = std::to_string(WorkerProcess::kControlFd);
  values[own_variables::kProgressFd] = std::to_string(WorkerProcess::kProgressFd);
  values[own_variables::kTerminalWidth] = std::to_string(attempt.terminal_width);
  values.erase(own_variables::kStoreFd);
  if (rank == "0") {
    values[own_variables::kStoreFd] = std::to_string(WorkerProcess::kStoreFd);
  }
  return Variables(std::move(values));
}

}  // namespace lockstep
