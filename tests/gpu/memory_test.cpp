// The GPU's memory is exhausted, by the run or by another program.
#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "environment/nvml.h"
#include "gpu/device_tests.h"
#include "gpu/shared_gpu.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> program(const TempDir& dir, ComputeSetup where, const std::vector<std::string>& more) {
  return with(with(command(RANKS_PROGRAM, dir.path() / "run", {"train"}), on_device(where)), more);
}

LOCKSTEP_DEVICE_TEST(OutOfMemory, IsExplained) {
  const TempDir dir;
  const auto result = run_program(program(dir, where,
                                          {"--fail", "memory", "--fail_in", "forward", "--fail_rank", "0",
                                           "--batch_size", "8", "--fail_step", "3"}),
                                  one_gpu_only());
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("at step 3 in forward"));
  EXPECT_THAT(result.err, HasSubstr("hint: use --batch_size 4 --accumulation 2 --global_batch_size 8"));
  if (where == ComputeSetup::gpu) {
    EXPECT_THAT(result.err, HasSubstr("CUDA out of memory. Tried to allocate"));
    EXPECT_THAT(result.err, HasSubstr("or --precision bf16_mixed"));
  }
}

/// Another program that leaves 2 GiB of the GPU's memory.
class CrowdedGpuOnGpu : public testing::Test {
 protected:
  static constexpr std::int64_t kLeft = std::int64_t{2} << 30;

  void SetUp() override {
    LOCKSTEP_REQUIRE(Requirements().gpus(1));
    before_ = probe_hardware().gpus.front();
    holder_ =
        std::make_unique<Process>(std::vector<std::string>{MEMORY_HOLDER, std::to_string(kLeft >> 20)}, one_gpu_only());
    ASSERT_TRUE(holder_->wait_for("holding")) << holder_->err();
    const auto free = probe_hardware().gpus.front().free_bytes;
    ASSERT_LE(free, kLeft + (std::int64_t{1} << 30)) << "the memory is not taken";
  }

  Gpu before_{};
  std::unique_ptr<Process> holder_{};
};

TEST_F(CrowdedGpuOnGpu, IsNamedWithItsTenant) {
  const TempDir dir;
  const auto result =
      run_program(program(dir, ComputeSetup::gpu,
                          {"--fail", "memory", "--fail_in", "forward", "--fail_rank", "0", "--fail_step", "3"}),
                  one_gpu_only());
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("CUDA out of memory"));
  const auto seen = gpu_processes(before_.uuid);
  const bool lists_it =
      std::any_of(seen.begin(), seen.end(), [&](const GpuProcess& process) { return process.pid == holder_->pid(); });
  LOCKSTEP_REQUIRE(Requirements().of_the_machine(
      lists_it,
      "NVML shows no processes of the GPU here, or with numbers of another namespace, as in many containers"));
  EXPECT_THAT(result.err, ContainsRegex(fmt::format("on cuda:0, .*{}.* uses [0-9.]+ GiB", holder_->pid())));
}

// Eight samples do not fit, and one does, after the GPU has given a part to CUDA.
TEST_F(CrowdedGpuOnGpu, IsEnoughForASmallerMicroBatch) {
  const TempDir dir;
  const auto train = [&](const std::string& max_steps) {
    return run_program(
        program(dir, ComputeSetup::gpu,
                {"--batch_size", "8", "--sample_mib", "1024", "--memory.halve_batch", "--max_steps", max_steps}),
        one_gpu_only());
  };
  const auto first = train("5");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("CUDA out of memory"));
  EXPECT_THAT(first.err, HasSubstr("restart 2 now, with half the micro-batch: rank 0"));
  EXPECT_THAT(first.err, ContainsRegex("batch after memory ran out: 8 = [12] per rank x [48] micro-batches"));
  const auto second = train("8");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.err, Not(HasSubstr("out of memory")));
  EXPECT_THAT(second.err, HasSubstr("did not fit into the memory of " + before_.name));
}

TEST_F(CrowdedGpuOnGpu, IsNotChosenWhereMoreMemoryIsAskedFor) {
  const TempDir dir;
  const auto asking = [&](const std::string& memory) {
    return run_program(program(dir, ComputeSetup::gpu, {"--devices", "free:1@" + memory}), one_gpu_only());
  };
  const auto refused = asking("8GiB");
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err,
              ContainsRegex("--devices free:1@8GiB: 0 GPUs with that much free memory \\(GPU 0: [0-9.]+ GiB\\)"));
  const auto accepted = asking("1GiB");
  EXPECT_EQ(accepted.code, 0) << accepted.err;
}

}  // namespace
}  // namespace lockstep
