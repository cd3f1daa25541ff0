#include "environment/cpu_topology.h"

#include <map>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Files = std::map<std::string, std::string>;

CpuTopology topology_of(int affinity, Files files) {
  files.try_emplace("/proc/meminfo", "MemTotal:       1048576 kB\nMemFree:          5 kB\n");
  return read_cpu_topology(affinity, [&](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(CpuTopology, ReadsQuotas) {
  EXPECT_EQ(cores_of_cpu_max("max 100000\n"), std::nullopt);
  EXPECT_EQ(cores_of_cpu_max("200000 100000\n"), 2);
  EXPECT_EQ(cores_of_cpu_max("200001 100000\n"), 3);
  EXPECT_EQ(cores_of_cpu_max("1000 100000"), 1);
  EXPECT_EQ(cores_of_cpu_max(""), std::nullopt);
  EXPECT_EQ(cores_of_cpu_max("100000"), std::nullopt);
  EXPECT_EQ(cores_of_cpu_max("100000 0"), std::nullopt);
  EXPECT_EQ(cores_of_quota("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(cores_of_quota("350000\n", "100000\n"), 4);
  EXPECT_EQ(cores_of_quota("many", "100000"), std::nullopt);
}

TEST(CpuTopology, IsTheAffinityMaskAndTheMachinesMemoryWithoutLimits) {
  const CpuTopology topology = topology_of(6, {});
  EXPECT_EQ(topology.cores, 6);
  EXPECT_EQ(topology.memory_bytes, std::int64_t{1} << 30);
}

TEST(CpuTopology, IsLimitedByEveryControlGroup) {
  Files files{{"/proc/self/cgroup", "0::/outer/inner\n"},
              {"/sys/fs/cgroup/outer/inner/cpu.max", "800000 100000\n"},
              {"/sys/fs/cgroup/outer/cpu.max", "300000 100000\n"},
              {"/sys/fs/cgroup/outer/inner/memory.max", "536870912\n"},
              {"/sys/fs/cgroup/outer/memory.max", "max\n"}};
  const CpuTopology topology = topology_of(16, files);
  EXPECT_EQ(topology.cores, 3);
  EXPECT_EQ(topology.memory_bytes, 536870912);
  EXPECT_EQ(topology.affinity_cores, 16);
  EXPECT_EQ(topology.quota_cores, 3);
  EXPECT_EQ(topology.machine_memory_bytes, std::int64_t{1} << 30);

  files["/sys/fs/cgroup/outer/cpu.max"] = "max 100000\n";
  EXPECT_EQ(topology_of(16, files).cores, 8);
  EXPECT_EQ(topology_of(2, files).cores, 2);
}

TEST(CpuTopology, FindsTheLimitsOfAContainerAtTheRoot) {
  const CpuTopology topology = topology_of(16, {{"/proc/self/cgroup", "0::/\n"},
                                                {"/sys/fs/cgroup/cpu.max", "150000 100000\n"},
                                                {"/sys/fs/cgroup/memory.max", "1000000\n"}});
  EXPECT_EQ(topology.cores, 2);
  EXPECT_EQ(topology.memory_bytes, 1000000);
}

TEST(CpuTopology, ReadsTheFirstVersionOfControlGroups) {
  const CpuTopology topology =
      topology_of(16, {{"/proc/self/cgroup", "12:memory:/box\n4:cpu,cpuacct:/box\n3:cpuset:/elsewhere\n0::/box\n"},
                       {"/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000\n"},
                       {"/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n"},
                       {"/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "4096\n"},
                       {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}});
  EXPECT_EQ(topology.cores, 3);
  EXPECT_EQ(topology.memory_bytes, 4096);
}

TEST(CpuTopology, IgnoresGroupsWithoutLimit) {
  const CpuTopology topology =
      topology_of(4, {{"/proc/self/cgroup", "1:cpu:/\n4:memory:/\ngarbage\n::\n"},
                      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
                      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}});
  EXPECT_EQ(topology.cores, 4);
  EXPECT_EQ(topology.memory_bytes, std::int64_t{1} << 30);
}

TEST(CpuTopology, OfThisMachineIsPlausible) {
  const CpuTopology topology = probe_cpu_topology();
  EXPECT_GE(topology.cores, 1);
  EXPECT_GT(topology.memory_bytes, 1 << 20);
}

}  // namespace
}  // namespace lockstep
