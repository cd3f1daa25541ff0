#include "environment/nvml.h"

#include <cstdlib>

#include <gmock/gmock.h>

#include "base/mapped.h"
#include "environment/visible_devices.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A machine for the fake driver; see there.
class Machine {
 public:
  explicit Machine(const char* gpus) { setenv("LOCKSTEP_TEST_GPUS", gpus, 1); }
  ~Machine() { unsetenv("LOCKSTEP_TEST_GPUS"); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
};

NvmlFacts query(const char* gpus) {
  const Machine machine(gpus);
  return query_nvml(LOCKSTEP_FAKE_NVML);
}

std::vector<std::string> uuids(const std::vector<Gpu>& gpus) { return mapped(gpus, &Gpu::uuid); }

TEST(Nvml, ReadsEveryGpu) {
  EXPECT_THAT(uuids(query("GPU-0 free").gpus), ElementsAre("GPU-0"));
  EXPECT_EQ(
      query("GPU-0 free,GPU-1 free,GPU-2 free,GPU-3 free,GPU-4 free,GPU-5 free,GPU-6 free,GPU-7 free").gpus.size(), 8U);
  const NvmlFacts facts = query("GPU-a free,GPU-b busy");
  EXPECT_EQ(facts.note, "");
  ASSERT_EQ(facts.gpus.size(), 2U);
  EXPECT_EQ(facts.gpus[1].name, "Test GPU");
  EXPECT_EQ(facts.gpus[1].uuid, "GPU-b");
  EXPECT_EQ(facts.gpus[1].pci_bus_id, "00000000:02:00.0");
  EXPECT_EQ(facts.gpus[1].memory_bytes, 200);
  EXPECT_EQ(facts.gpus[1].free_bytes, 100);
  EXPECT_EQ(facts.gpus[1].compute_capability, "9.0");
}

TEST(Nvml, ReadsTheLoadOfAGpu) {
  const Machine machine("GPU-a free,GPU-b busy,GPU-c mig:2");
  const GpuLoadReader reader("GPU-b", LOCKSTEP_FAKE_NVML);
  for (int i = 0; i < 2; ++i) {
    const GpuLoad load = reader.read();
    EXPECT_EQ(load.percent, 51);
    EXPECT_EQ(load.power_w, 101);
    EXPECT_EQ(load.celsius, 41);
  }
}

TEST(Nvml, LeavesOutWhatAGpuDoesNotTell) {
  {
    const Machine machine("GPU-a free,GPU-b mig:2");
    const GpuLoad divided = GpuLoadReader("MIG-b-0", LOCKSTEP_FAKE_NVML).read();
    EXPECT_EQ(divided.percent, std::nullopt);
    EXPECT_EQ(divided.power_w, 101);
    const GpuLoad other = GpuLoadReader("GPU-x", LOCKSTEP_FAKE_NVML).read();
    EXPECT_FALSE(other.percent || other.power_w || other.celsius);
  }
  const GpuLoad none = GpuLoadReader("GPU-a", "libno-such-driver.so").read();
  EXPECT_FALSE(none.percent || none.power_w || none.celsius);
}

TEST(Nvml, KnowsOnWhichGpusATensorCanBePut) {
  const NvmlFacts facts = query("GPU-0 busy,GPU-1 taken,GPU-2 exclusive,GPU-3 prohibited");
  ASSERT_EQ(facts.gpus.size(), 4U);
  EXPECT_TRUE(facts.gpus[0].usable);   // shared, in use
  EXPECT_FALSE(facts.gpus[1].usable);  // exclusive, in use
  EXPECT_TRUE(facts.gpus[2].usable);   // exclusive, free
  EXPECT_FALSE(facts.gpus[3].usable);
}

TEST(Nvml, CountsOnlyGpusThatTheProcessMaySee) {
  const NvmlFacts facts = query("GPU-0 hidden,GPU-1 free,GPU-2 hidden");
  EXPECT_THAT(uuids(facts.gpus), ElementsAre("GPU-1"));
  EXPECT_EQ(facts.note, "");
  EXPECT_EQ(query("GPU-0 hidden").note, "the NVIDIA driver finds no GPU");
}

// CUDA may count the others with or without a gap: a rank finds its GPU by the UUID (cuda_driver.h).
TEST(Nvml, NamesAGpuThatIsLost) {
  for (const char* gpus : {"GPU-0 free,GPU-1 lost,GPU-2 free", "GPU-0 free,GPU-1 dying,GPU-2 free"}) {
    const NvmlFacts facts = query(gpus);
    EXPECT_THAT(uuids(facts.gpus), ElementsAre("GPU-0", "GPU-2")) << gpus;
    EXPECT_EQ(facts.note, "GPU 1 does not answer: GPU is lost") << gpus;
  }
}

TEST(Nvml, ShowsTheFirstInstanceOfADividedGpu) {
  const NvmlFacts facts = query("GPU-0 free,GPU-1 mig:2,GPU-2 mig:0");
  EXPECT_THAT(uuids(facts.gpus), ElementsAre("GPU-0", "MIG-1-0", "GPU-2"));
  EXPECT_EQ(facts.gpus[1].name, "Test GPU MIG 1g.10gb");
  EXPECT_EQ(facts.gpus[1].memory_bytes, 10);
  EXPECT_EQ(facts.gpus[1].pci_bus_id, "00000000:02:00.0");
  EXPECT_TRUE(facts.gpus[1].usable);
  EXPECT_EQ(query("GPU-0 free").gpus[0].memory_bytes, 100);
}

TEST(Nvml, SaysWhyTheDriverDoesNotStart) {
  const NvmlFacts facts = query("18");
  EXPECT_THAT(facts.gpus, IsEmpty());
  EXPECT_EQ(facts.note, "the NVIDIA driver does not start: Driver/library version mismatch");
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
  const Machine machine("GPU-a busy,GPU-b lost,GPU-c free");
  const auto processes = gpu_processes("GPU-a", LOCKSTEP_FAKE_NVML);
  ASSERT_EQ(processes.size(), 3U);
  EXPECT_EQ(processes[0].pid, 100);
  EXPECT_EQ(processes[2].bytes, 30);
  EXPECT_TRUE(gpu_processes("GPU-b", LOCKSTEP_FAKE_NVML).empty());
  EXPECT_TRUE(gpu_processes("GPU-c", LOCKSTEP_FAKE_NVML).empty());
  EXPECT_TRUE(gpu_processes("GPU-z", LOCKSTEP_FAKE_NVML).empty());
  EXPECT_TRUE(gpu_processes("GPU-a", "libno_such_driver.so").empty());
}

TEST(Nvml, NamesOtherProcessesOnlyIfItsNumbersAreThoseSeenHere) {
  const std::vector<GpuProcess> listed{{.pid = 100, .bytes = 1}, {.pid = 7, .bytes = 2}};
  const auto others = others_than(7, listed);
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(others[0].pid, 100);
  EXPECT_TRUE(others_than(8, listed).empty());
}

DriverDetails details(const char* gpus) {
  const Machine machine(gpus);
  return query_driver(LOCKSTEP_FAKE_NVML);
}

TEST(NvmlDetails, AreThoseOfEveryGpu) {
  const DriverDetails driver = details("GPU-a free,GPU-b busy,GPU-c worn,GPU-d throttled,GPU-e unplugged");
  EXPECT_EQ(driver.state, DriverState::running);
  EXPECT_EQ(driver.note, "");
  EXPECT_EQ(driver.version, "580.65.06");
  EXPECT_EQ(driver.cuda_version, "13.0");
  ASSERT_EQ(driver.gpus.size(), 5U);
  const GpuDetails& first = driver.gpus[0];
  EXPECT_EQ(first.uuid, "GPU-a");
  EXPECT_EQ(first.pci_bus_id, "00000000:01:00.0");
  EXPECT_EQ(first.compute_capability, "9.0");
  EXPECT_EQ(first.memory_bytes, 100);
  EXPECT_EQ(first.ecc, true);
  EXPECT_EQ(first.uncorrected_errors, 0);
  EXPECT_EQ(first.mig_instances, std::nullopt);
  EXPECT_EQ(first.power_limit_w, 700);
  EXPECT_EQ(first.default_power_limit_w, 700);
  EXPECT_EQ(first.nvlinks, 18);
  EXPECT_THAT(first.processes, IsEmpty());
  EXPECT_EQ(driver.gpus[1].processes.size(), 3U);
  EXPECT_EQ(driver.gpus[2].uncorrected_errors, 2);
  EXPECT_EQ(driver.gpus[3].power_limit_w, 300);
  EXPECT_EQ(driver.gpus[4].nvlinks, 17);
}

TEST(NvmlDetails, NameGpusThatDoNotAnswer) {
  const DriverDetails driver = details("GPU-0 lost,GPU-1 hidden,GPU-2 dying,GPU-3 prohibited,GPU-4 mig:2,GPU-5 mig:0");
  ASSERT_EQ(driver.gpus.size(), 6U);
  EXPECT_EQ(driver.gpus[0].error, "GPU is lost");
  EXPECT_TRUE(driver.gpus[1].hidden);
  EXPECT_EQ(driver.gpus[1].error, "");
  EXPECT_EQ(driver.gpus[2].error, "GPU is lost");
  EXPECT_EQ(driver.gpus[3].compute_mode, GpuComputeMode::prohibited);
  EXPECT_EQ(driver.gpus[4].mig_instances, 2);
  EXPECT_EQ(driver.gpus[4].memory_bytes, 500) << "of the whole GPU";
  EXPECT_EQ(driver.gpus[5].mig_instances, 0);
  EXPECT_EQ(driver.pairs.size(), 3U) << "only between GPUs that answer";
}

TEST(NvmlDetails, KnowWhatLiesBetweenTwoGpus) {
  const DriverDetails driver = details("GPU-0 free,GPU-1 free,GPU-2 free,GPU-3 free,GPU-4 free");
  const auto path = [&](int a, int b) {
    for (const GpuPair& pair : driver.pairs) {
      if (pair.a == a && pair.b == b) {
        return pair.path;
      }
    }
    return std::string("no such pair");
  };
  EXPECT_EQ(driver.pairs.size(), 10U);
  EXPECT_EQ(path(0, 1), "NVLink");
  EXPECT_EQ(path(1, 2), "NODE");
  EXPECT_EQ(path(0, 4), "SYS");
  EXPECT_EQ(driver.pairs[0].peer_access, true);
}

TEST(NvmlDetails, SayWhyThereIsNoDriver) {
  EXPECT_EQ(query_driver("libno_such_driver.so").state, DriverState::absent);
  EXPECT_EQ(query_driver("libm.so.6").state, DriverState::unusable);
  const DriverDetails broken = details("18");
  EXPECT_EQ(broken.state, DriverState::unusable);
  EXPECT_EQ(broken.note, "the NVIDIA driver does not start: Driver/library version mismatch");
}

TEST(Nvml, AndCudasVariableGiveTheVisibleGpus) {
  const auto shown = [](const char* gpus, const char* visible_devices) {
    Hardware hardware{.visible_devices = visible_devices};
    show_gpus(hardware, query(gpus).gpus);
    return uuids(hardware.gpus);
  };
  EXPECT_THAT(shown("GPU-0 free,GPU-1 lost,GPU-2 free", "(unset)"), ElementsAre("GPU-0", "GPU-2"));
  EXPECT_THAT(shown("GPU-0 free,GPU-1 mig:2", "(unset)"), ElementsAre("MIG-1-0"));
  EXPECT_THAT(shown("GPU-0 free,GPU-1 mig:2", "0"), ElementsAre("GPU-0"));
  EXPECT_THAT(shown("GPU-0 mig:2,GPU-1 mig:2", "MIG-0-0,MIG-1-0"), ElementsAre("MIG-0-0"));
  EXPECT_THAT(shown("GPU-0 mig:2,GPU-1 mig:2", "MIG-0-1"), ElementsAre("MIG-0-1")) << "not the first instance";
}

}  // namespace
}  // namespace lockstep
