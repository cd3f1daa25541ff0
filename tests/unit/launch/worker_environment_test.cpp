#include "launch/worker_environment.h"

#include <map>
#include <string>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using Values = std::map<std::string, std::string, std::less<>>;

const Attempt kAttempt{.number = 2, .master_port = 4000, .run_id = "job", .launch_id = "f00d", .terminal_width = 80};

TEST(WorkerEnvironment, IsTorchrunsAndOurs) {
  LaunchRequest request;
  request.ranks_per_node = {2, 3};
  request.node = 1;
  request.master_addr = "node0";
  request.max_restarts = 5;
  request.threads_per_rank = 4;
  // An outer launcher's variables must not shine through.
  request.environment = Variables(Values{{"RANK", "99"},
                                         {"WORLD_SIZE", "99"},
                                         {"LOCKSTEP_STORE_FD", "9"},
                                         {"HOME", "/h"},
                                         {"TORCHELASTIC_ERROR_FILE", "/tmp/other"}});
  const Values expected = {{"HOME", "/h"},
                           {"RANK", "3"},
                           {"ROLE_RANK", "3"},
                           {"WORLD_SIZE", "5"},
                           {"ROLE_WORLD_SIZE", "5"},
                           {"ROLE_NAME", "default"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "3"},
                           {"GROUP_RANK", "1"},
                           {"GROUP_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "node0"},
                           {"MASTER_PORT", "4000"},
                           {"TORCHELASTIC_RESTART_COUNT", "2"},
                           {"TORCHELASTIC_MAX_RESTARTS", "5"},
                           {"TORCHELASTIC_RUN_ID", "job"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                           {"TORCH_CPP_LOG_LEVEL", "ERROR"},
                           {"OMP_NUM_THREADS", "4"},
                           {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
                           {"LOCKSTEP_LAUNCH_ID", "f00d"},
                           {"LOCKSTEP_RUN_ID", "job"},
                           {"LOCKSTEP_RESTART", "2"},
                           {"LOCKSTEP_CONTROL_FD", "3"},
                           {"LOCKSTEP_PROGRESS_FD", "4"},
                           {"LOCKSTEP_TERMINAL_WIDTH", "80"}};
  EXPECT_EQ(worker_environment(request, kAttempt, 1).all(), expected);
}

TEST(WorkerEnvironment, KeepsWhatTheUserChose) {
  LaunchRequest request;
  request.environment = Variables(Values{{"OMP_NUM_THREADS", "7"},
                                         {"TORCH_CPP_LOG_LEVEL", "INFO"},
                                         {"CUDA_DEVICE_ORDER", "FASTEST_FIRST"},
                                         {"CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2"}});
  const Variables environment = worker_environment(request, kAttempt, 0);
  for (const auto& [name, value] : request.environment.all()) {
    EXPECT_EQ(environment.get(name), value);
  }
}

TEST(WorkerEnvironment, GivesTheStoreToRankZeroOfAllMachines) {
  LaunchRequest request;
  request.ranks_per_node = {2, 1};
  EXPECT_EQ(worker_environment(request, kAttempt, 0).get("LOCKSTEP_STORE_FD"), "5");
  EXPECT_EQ(worker_environment(request, kAttempt, 1).get("LOCKSTEP_STORE_FD"), std::nullopt);
  request.node = 1;
  EXPECT_EQ(worker_environment(request, kAttempt, 0).get("LOCKSTEP_STORE_FD"), std::nullopt);
}

TEST(WorkerEnvironment, AddsItsMarkToThatOfAnOuterLaunch) {
  LaunchRequest request;
  request.environment = Variables(Values{{"LOCKSTEP_LAUNCH_ID", "beef"}});
  EXPECT_EQ(worker_environment(request, kAttempt, 0).get("LOCKSTEP_LAUNCH_ID"), "beef/f00d");
}

}  // namespace
}  // namespace lockstep
