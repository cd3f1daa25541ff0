// Ways to start a program on the GPU, and to name the GPU.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/device_tests.h"
#include "gpu/shared_gpu.h"
#include "support/python.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

using Words = std::vector<std::string>;

class LaunchOnGpu : public testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_REQUIRE(Requirements().gpus(1)); }

  Words program(const Words& more = {}) const {
    return with({TRAIN_PROGRAM, "--run_dir", (dir_.path() / "run").string(), "--fresh", "--max_epochs", "0",
                 "--max_steps", "5"},
                more);
  }
  static Words with_visible(const std::string& visible, const Words& program) {
    return with({"env", "CUDA_VISIBLE_DEVICES=" + visible}, program);
  }
  static void expect_on_the_gpu(const Process::Result& result) {
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("cuda:0"));
    EXPECT_THAT(result.err, HasSubstr("finished at step 5"));
  }

  TempDir dir_;
};

TEST_F(LaunchOnGpu, AloneUsesTheGpu) { expect_on_the_gpu(run_program(program({"--devices", "1"}))); }

TEST_F(LaunchOnGpu, BelowOurLauncherUsesTheGpu) {
  expect_on_the_gpu(run_program(with({LOCKSTEP_CLI, "run", "--nproc-per-node", "1", "--"}, program())));
}

TEST_F(LaunchOnGpu, BelowTorchrunUsesTheGpu) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  expect_on_the_gpu(run_program(under_torchrun(LIBTORCH_DIR, 1, {}, program()), {{"OMP_NUM_THREADS", "1"}}));
}

TEST_F(LaunchOnGpu, NamesGpusByIndexAndRange) {
  for (const std::string devices : {"0,", "0-0", "1", "usable:1", "free:1"}) {
    SCOPED_TRACE(devices);
    expect_on_the_gpu(run_program(program({"--devices", devices}), one_gpu_only()));
  }
  const auto absent = run_program(program({"--devices", "99,"}));
  EXPECT_EQ(absent.code, 2) << absent.err;
  EXPECT_THAT(absent.err, HasSubstr("--devices 99,: GPU 99 does not exist"));
}

TEST_F(LaunchOnGpu, SeesTheGpusOfCudaVisibleDevices) {
  const std::string uuid = probe_hardware().gpus.front().uuid;
  for (const std::string& visible : {uuid, uuid.substr(0, uuid.find('-', 4))}) {
    SCOPED_TRACE(visible);
    expect_on_the_gpu(run_program(with_visible(visible, program({"--compute_setup", "gpu"}))));
  }
}

TEST_F(LaunchOnGpu, SeesNoGpuWithAnEmptyCudaVisibleDevices) {
  const auto refused = run_program(with_visible("", program({"--compute_setup", "gpu"})));
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("--compute_setup gpu: no GPU can be used"));
  EXPECT_THAT(refused.err, HasSubstr("CUDA_VISIBLE_DEVICES"));
  const auto automatic = run_program(with_visible("", program()));
  EXPECT_EQ(automatic.code, 0) << automatic.err;
  EXPECT_THAT(automatic.err, HasSubstr("not used"));
}

/// True if the process can work on a GPU; asking for the state of one does not need this library.
bool has_loaded_cuda(pid_t pid) {
  return read_text("/proc/" + std::to_string(pid) + "/maps").find("libcuda.so") != std::string::npos;
}

TEST_F(LaunchOnGpu, TheLauncherLoadsNoCuda) {
  Process launcher(with({LOCKSTEP_CLI, "run", "--nproc-per-node", "1", "--"},
                        program({"--max_steps", "100000", "--compute_setup", "gpu"})));
  ASSERT_TRUE(launcher.wait_for("step 3 ")) << launcher.err();
  const auto ranks = Process::ranks_of(launcher.pid());
  ASSERT_EQ(ranks.size(), 1U);
  EXPECT_TRUE(has_loaded_cuda(ranks.front()));
  EXPECT_FALSE(has_loaded_cuda(launcher.pid()));
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.wait().code, 75);
}

TEST_F(LaunchOnGpu, GivesEveryRankAGpuOfItsOwn) {
  LOCKSTEP_REQUIRE(Requirements().gpus(2).nccl());
  const auto result = run_program(program({"--compute_setup", "gpu", "--nprocs", "2", "--global_batch_size", "8"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("cuda:1"));
  EXPECT_THAT(result.err, ContainsRegex("backend +nccl"));
}

// The other order cannot work and gives an error of lockstep instead of one in LibTorch.
TEST_F(LaunchOnGpu, AfterLibTorchFoundNoCudaIsRefused) {
  const auto result = run_program({LATE_SESSION});
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("manual_seed"));
}

}  // namespace
}  // namespace lockstep
