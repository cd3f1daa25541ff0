#include "environment/nvml.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(Nvml, ReadsEveryGpuThatTheProcessMaySee) {
  const NvmlFacts facts = query_nvml(LOCKSTEP_FAKE_NVML);
  EXPECT_EQ(facts.note, "");
  ASSERT_EQ(facts.gpus.size(), 4U);
  EXPECT_EQ(facts.gpus[1].name, "Taken GPU");
  EXPECT_EQ(facts.gpus[1].uuid, "GPU-bbbb");
  EXPECT_EQ(facts.gpus[1].pci_bus_id, "00000000:02:00.0");
  EXPECT_EQ(facts.gpus[1].memory_bytes, 200);
  EXPECT_EQ(facts.gpus[1].free_bytes, 150);
}

TEST(Nvml, KnowsOnWhichGpusATensorCanBePut) {
  const NvmlFacts facts = query_nvml(LOCKSTEP_FAKE_NVML);
  ASSERT_EQ(facts.gpus.size(), 4U);
  EXPECT_TRUE(facts.gpus[0].usable);   // shared, in use
  EXPECT_FALSE(facts.gpus[1].usable);  // exclusive, taken
  EXPECT_TRUE(facts.gpus[2].usable);   // exclusive, free
  EXPECT_FALSE(facts.gpus[3].usable);  // prohibited
}

TEST(Nvml, TakesAMissingDriverAsAFact) {
  const NvmlFacts facts = query_nvml("libthere-is-no-such-driver.so.1");
  EXPECT_TRUE(facts.gpus.empty());
  EXPECT_EQ(facts.note, "no NVIDIA driver (libthere-is-no-such-driver.so.1 cannot be loaded)");
}

TEST(Nvml, TakesADriverWithoutItsFunctionsAsAFact) {
  const NvmlFacts facts = query_nvml("libm.so.6");
  EXPECT_TRUE(facts.gpus.empty());
  EXPECT_THAT(facts.note, HasSubstr("too old (libm.so.6 has no nvml"));
}

TEST(Nvml, ListsTheProcessesOfAGpu) {
  const auto processes = gpu_processes("GPU-aaaa", LOCKSTEP_FAKE_NVML);
  ASSERT_EQ(processes.size(), 3U);
  EXPECT_EQ(processes[0].pid, 100);
  EXPECT_EQ(processes[2].bytes, 30);
  EXPECT_TRUE(gpu_processes("GPU-cccc", LOCKSTEP_FAKE_NVML).empty());
  EXPECT_TRUE(gpu_processes("GPU-zzzz", LOCKSTEP_FAKE_NVML).empty());
  EXPECT_TRUE(gpu_processes("GPU-aaaa", "libno_such_driver.so").empty());
}

}  // namespace
}  // namespace lockstep
