// Cores and memory that this process may use: those of the machine within the affinity mask and the control groups.
// Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "environment/text_file.h"

namespace lockstep {

struct CpuTopology {
  int cores = 1;
  std::int64_t memory_bytes = 0;
  // Of what these are the smaller part:
  int affinity_cores = 1;
  std::optional<int> quota_cores{};  ///< of the control groups; nullopt: no limit
  std::int64_t machine_memory_bytes = 0;
};

/// The cores of this process's affinity mask, in order; {}: not known.
std::vector<int> allowed_cores();

/// The control groups of a process (`proc_cgroup`: its /proc/PID/cgroup) that limit `controller`, and their parents, as
/// directories below the usual mount points; v1 and v2.
std::vector<std::string> cgroup_folders(std::string_view proc_cgroup, std::string_view controller);

/// The lowest memory limit of these control groups, in bytes; nullopt: no limit.
std::optional<std::int64_t> memory_limit(std::span<const std::string> folders, const ReadText& read);

/// Reads /proc/meminfo, /proc/self/cgroup and the limits (v1 and v2) of every control group from this process's up to
/// the root.
CpuTopology read_cpu_topology(int affinity_cores, const ReadText& read);

/// With the affinity mask and files of this process.
CpuTopology probe_cpu_topology();

/// The NUMA node of a PCI device, with NVML's or the system's form of its address ("00000000:3B:00.0"); nullopt: the
/// system does not report it.
std::optional<int> numa_node_of(std::string_view pci_bus_id, const ReadText& read);

/// Cores of a quota, rounded up; nullopt: no limit. v2: cpu.max ("150000 100000"); v1: cpu.cfs_quota_us and
/// cpu.cfs_period_us.
std::optional<int> cores_of_cpu_max(std::string_view cpu_max);
std::optional<int> cores_of_quota(std::string_view quota_us, std::string_view period_us);

}  // namespace lockstep
