#include <fstream>
#include <map>

#include <gmock/gmock.h>

#include <lockstep/base/error.h>
#include <lockstep/environment/hardware.h>

#include "base/mapped.h"
#include "environment/visible_devices.h"
#include "support/fake_hardware.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Gpu> gpus(const std::vector<std::string>& uuids) {
  return mapped(uuids, [](const std::string& uuid) { return Gpu{.uuid = uuid}; });
}

TEST(VisibleGpus, FollowsCudasRules) {
  struct Case {
    const char* text;
    std::vector<int> expected;
  };
  const std::vector<Gpu> all = gpus({"GPU-11aa", "GPU-11bb", "GPU-22cc", "MIG-5", "MIG-GPU-11aa/1/0"});
  const Case cases[] = {
      {"(unset)", {3}},
      {"", {}},
      {"0", {0}},
      {"2,1", {2, 1}},
      {"0,2,-1,1", {0, 2}},
      {"-1", {}},
      {"void", {}},
      {"none", {}},
      {"1,void,2", {1}},
      {"0,9,1", {0}},
      {"0,,1", {0}},
      {"0,99999999999999999999,1", {0}},
      {" 2 , 1", {2, 1}},
      {"+1,0", {1, 0}},
      {"1gpu2,2ampere", {1, 2}},
      {"NoDevFiles", {}},
      {"0,1,0", {}},
      {"GPU-22", {2}},
      {"GPU-22cc,GPU-11a", {2, 0}},
      {"GPU-11", {}},
      {"GPU-22,GPU-11,GPU-11aa", {2}},
      {"GPU-22,GPU-22cc", {}},
      {"GPU-22cc0", {}},
      {"GPU-22,0", {2}},
      {"0,GPU-22", {0}},
      {"gpu-22", {}},
      {"MIG-5", {3}},
      {"MIG-6", {}},
      {"MIG-GPU-11aa/1/0,MIG-5", {4}},
      {"MIG-5,GPU-22", {3}},
      {"GPU-22,MIG-5", {2}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(visible_gpus(all, c.text), c.expected) << '"' << c.text << '"';
  }
}

TEST(VisibleGpus, AreAllWithoutTheVariable) {
  EXPECT_EQ(visible_gpus(gpus({"GPU-a", "GPU-b"}), "(unset)"), (std::vector<int>{0, 1}));
  EXPECT_EQ(visible_gpus({}, "(unset)"), std::vector<int>{});
}

// "CUDA will not enumerate a non-MIG GPU if any compute instance is enumerated", and of the instances only the first.
TEST(VisibleGpus, AreOneMigDeviceOrWholeGpus) {
  const std::vector<Gpu> mixed = gpus({"GPU-a", "MIG-b", "MIG-c", "GPU-d"});
  EXPECT_EQ(visible_gpus(mixed, "(unset)"), std::vector<int>{1});
  EXPECT_EQ(visible_gpus(mixed, "0,3"), (std::vector<int>{0, 3}));
  EXPECT_EQ(visible_gpus(mixed, "3,2,1"), std::vector<int>{2});
  EXPECT_EQ(visible_gpus(mixed, "MIG-c,MIG-b"), std::vector<int>{2});
  EXPECT_EQ(visible_gpus(mixed, "MIG-c,MIG-c"), std::vector<int>{2});
}

class HardwareFile : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) const {
    const auto path = folder_.path() / "machine.json";
    std::ofstream(path) << text;
    return path;
  }
  /// All problems of a description, one per line.
  std::string problems(const std::string& text) const {
    try {
      read_hardware(write(text));
    } catch (const ConfigError& error) {
      std::string all;
      for (const Problem& problem : error.problems()) {
        all += problem.what + " (" + problem.hint + ")\n";
      }
      return all;
    }
    return "";
  }
  TempDir folder_;
};

TEST_F(HardwareFile, ReadsEveryKey) {
  const Hardware hardware = read_hardware(std::filesystem::path(LOCKSTEP_TEST_DATA) / "hardware" / "eight_gpus.json");
  EXPECT_EQ(hardware.host, "dgx");
  EXPECT_EQ(hardware.cores, 128);
  EXPECT_EQ(hardware.memory_bytes, 1024 * kGiB);
  EXPECT_TRUE(hardware.cuda_built);
  EXPECT_TRUE(hardware.nccl_built);
  EXPECT_EQ(hardware.gpus_present, 8);
  EXPECT_EQ(hardware.visible_devices, "(unset)");
  EXPECT_EQ(hardware.gpu_note, "");
  ASSERT_EQ(hardware.gpus.size(), 8U);
  EXPECT_EQ(hardware.gpus[2].memory_bytes, 80 * kGiB);
  EXPECT_EQ(hardware.gpus[2].free_bytes, 10 * kGiB);
  EXPECT_TRUE(hardware.gpus[2].usable);
}

TEST_F(HardwareFile, NeedsOnlyCoresAndGpus) {
  const Hardware hardware = read_hardware(write(R"({"cores": 2, "gpus": [{"memory": "8GiB"}]})"));
  EXPECT_EQ(hardware.host, "machine");
  ASSERT_EQ(hardware.gpus.size(), 1U);
  EXPECT_EQ(hardware.gpus[0].name, "GPU");
  EXPECT_EQ(hardware.gpus[0].free_bytes, 8 * kGiB);
  EXPECT_EQ(hardware.gpus[0].compute_capability, "");
}

TEST_F(HardwareFile, CanHaveTheComputeCapability) {
  const Hardware hardware = read_hardware(write(R"({"cores": 2, "gpus": [{"compute_capability": "8.6"}]})"));
  EXPECT_EQ(hardware.gpus.at(0).compute_capability, "8.6");
}

TEST_F(HardwareFile, AppliesVisibleDevices) {
  const std::string list = R"("gpus": [{"uuid":"GPU-a"}, {"uuid":"GPU-b"}, {"uuid":"GPU-c"}])";
  const Hardware some = read_hardware(write(R"({"cores": 2, "visible_devices": "2,0", )" + list + "}"));
  ASSERT_EQ(some.gpus.size(), 2U);
  EXPECT_EQ(some.gpus[0].uuid, "GPU-c");
  EXPECT_EQ(some.gpus[1].uuid, "GPU-a");
  EXPECT_EQ(some.gpus_present, 3);
  EXPECT_EQ(some.gpu_note, "CUDA_VISIBLE_DEVICES=\"2,0\" shows 2 of 3 GPUs");

  const Hardware none = read_hardware(write(R"({"cores": 2, "visible_devices": "", )" + list + "}"));
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_EQ(none.gpu_note, "CUDA_VISIBLE_DEVICES=\"\" shows 0 of 3 GPUs");
}

TEST_F(HardwareFile, MakesAGpuOfEachMigName) {
  const std::string start = R"({"cores": 2, "gpus": [{"uuid":"GPU-a"}], "visible_devices": ")";
  for (const std::string name : {"MIG-77", "MIG-GPU-a/1/0"}) {
    const Hardware hardware = read_hardware(write(start + name + "\"}"));
    ASSERT_EQ(hardware.gpus.size(), 1U) << name;
    EXPECT_EQ(hardware.gpus[0].name, "MIG device");
    EXPECT_EQ(hardware.gpus[0].uuid, name);
    EXPECT_EQ(hardware.gpus_present, 1);
  }
  EXPECT_THAT(read_hardware(write(start + "MIG-GPU-z/1/0\"}")).gpus, IsEmpty());
}

TEST_F(HardwareFile, ReportsAllProblems) {
  const std::string text = problems(R"({"core": 2, "memory": "much", "cuda": 1, "host": 5, "gpus": [
      {"name": "A", "memroy": "8GiB"}, 7, {"usable": "yes", "free": "-1GiB"}]})");
  EXPECT_THAT(text, HasSubstr("machine.json: unknown key \"core\" (did you mean \"cores\"?)"));
  EXPECT_THAT(text, HasSubstr("machine.json: \"cores\" is missing"));
  EXPECT_THAT(text, HasSubstr("\"memory\": found \"much\", expected a size"));
  EXPECT_THAT(text, HasSubstr("\"cuda\": found 1, expected true or false"));
  EXPECT_THAT(text, HasSubstr("\"host\": found 5, expected a text"));
  EXPECT_THAT(text, HasSubstr("machine.json: gpus[0]: unknown key \"memroy\" (did you mean \"memory\"?)"));
  EXPECT_THAT(text, HasSubstr("machine.json: gpus[1]: found number, expected an object"));
  EXPECT_THAT(text, HasSubstr("gpus[2]: \"usable\": found \"yes\", expected true or false"));
  EXPECT_THAT(text, HasSubstr("gpus[2]: \"free\": found \"-1GiB\""));
}

TEST_F(HardwareFile, RejectsInvalidDescriptions) {
  EXPECT_THAT(problems("{"), HasSubstr("machine.json"));
  EXPECT_THAT(problems("[]"), HasSubstr("found array, expected an object"));
  EXPECT_THAT(problems(R"({"cores": 2})"), HasSubstr("\"gpus\" is missing"));
  EXPECT_THAT(problems(R"({"cores": 0, "gpus": []})"), HasSubstr("\"cores\": found 0, expected a positive number"));
  EXPECT_THAT(problems(R"({"cores": 1.5, "gpus": {}})"), HasSubstr("\"gpus\": found {}, expected a list"));
  EXPECT_EQ(problems(R"({"cores": 1, "gpus": []})"), "");
  EXPECT_THROW(read_hardware(folder_.path() / "missing.json"), ConfigError);
}

TEST(Hardware, OfThisMachineIsPlausible) {
  const std::map<std::string, std::string, std::less<>> hidden{{"CUDA_VISIBLE_DEVICES", ""}};
  const Hardware hardware = probe_hardware(Variables(hidden));
  EXPECT_FALSE(hardware.host.empty());
  EXPECT_GE(hardware.cores, 1);
  EXPECT_GT(hardware.memory_bytes, 0);
  EXPECT_THAT(hardware.gpus, IsEmpty());
  EXPECT_EQ(hardware.visible_devices, "");
  EXPECT_NE(hardware.gpu_note, "");
  EXPECT_EQ(probe_hardware(Variables{}).visible_devices, "(unset)");
  EXPECT_EQ(probe_hardware(Variables{}).device_order, "PCI_BUS_ID");
}

TEST(Hardware, ReadsTheNumberOfThreads) {
  using Values = std::map<std::string, std::string, std::less<>>;
  const std::pair<const char*, int> cases[] = {{"3", 3},  {"3,2", 3},  {" 4 ", 4}, {"0", 0},
                                               {"-1", 0}, {"many", 0}, {"", 0}};
  for (const auto& [text, threads] : cases) {
    EXPECT_EQ(probe_hardware(Variables(Values{{"OMP_NUM_THREADS", text}})).omp_threads, threads) << text;
  }
  EXPECT_EQ(probe_hardware(Variables{}).omp_threads, 0);
}

}  // namespace
}  // namespace lockstep
