#include "environment/cpu_topology.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

#include "base/text.h"
#include "environment/cpu_set.h"

namespace lockstep {
namespace {

int affinity_cores() {
  const auto cores = static_cast<int>(allowed_cores().size());
  return cores > 0 ? cores : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// "/a/b" -> "/a/b", "/a", "": the limit of a parent applies to its children.
std::vector<std::string> self_and_parents(std::string path) {
  std::vector<std::string> paths;
  while (!path.empty() && path != "/") {
    paths.push_back(path);
    path.resize(path.rfind('/'));
  }
  paths.emplace_back();
  return paths;
}

/// Converts NVML's "00000000:3B:00.0" to the form of sysfs, "0000:3b:00.0".
std::string sysfs_name(std::string_view pci_bus_id) {
  constexpr std::size_t kDomainDigits = 4;
  const std::size_t colon = pci_bus_id.find(':');
  const std::size_t extra = colon != std::string_view::npos && colon > kDomainDigits ? colon - kDomainDigits : 0;
  return to_lower(pci_bus_id.substr(extra));
}

}  // namespace

std::vector<int> allowed_cores() {
  constexpr int kMaxCores = 1 << 14;  // more than cpu_set_t can hold
  const CpuSet set(CPU_ALLOC(kMaxCores));
  const std::size_t size = CPU_ALLOC_SIZE(kMaxCores);
  std::vector<int> cores;
  if (set && sched_getaffinity(0, size, set.get()) == 0) {
    for (int core = 0; core < kMaxCores; ++core) {
      if (CPU_ISSET_S(static_cast<std::size_t>(core), size, set.get())) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

std::vector<std::string> cgroup_folders(std::string_view proc_cgroup, std::string_view controller) {
  std::vector<std::string> folders;
  for (const std::string& line : split(proc_cgroup, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) {
      continue;
    }
    const std::vector<std::string> controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool unified = second == first + 1;
    if (!unified && std::ranges::find(controllers, controller) == controllers.end()) {
      continue;
    }
    const std::string mount = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + std::string(controller);
    for (const std::string& path : self_and_parents(line.substr(second + 1))) {
      folders.push_back(mount + path);
    }
  }
  return folders;
}

std::optional<std::int64_t> memory_limit(std::span<const std::string> folders, const ReadText& read) {
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // v1 has a huge number instead of "max"
  std::int64_t lowest = kNoLimit;
  for (const std::string& folder : folders) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      lowest = std::min(lowest, parse_int(trim(read(folder + name).value_or(""))).value_or(kNoLimit));
    }
  }
  return lowest < kNoLimit ? std::optional(lowest) : std::nullopt;
}

std::optional<int> cores_of_quota(std::string_view quota_us, std::string_view period_us) {
  const auto quota = parse_int(trim(quota_us));
  const auto period = parse_int(trim(period_us));
  if (!quota || !period || *quota <= 0 || *period <= 0) {
    return std::nullopt;  // "max" and -1: no limit
  }
  constexpr std::int64_t kMany = 1 << 20;
  return static_cast<int>(std::min(kMany, (*quota - 1) / *period + 1));
}

std::optional<int> cores_of_cpu_max(std::string_view cpu_max) {
  const std::string_view text = trim(cpu_max);
  const std::size_t space = text.find(' ');
  return space == std::string_view::npos ? std::nullopt : cores_of_quota(text.substr(0, space), text.substr(space + 1));
}

CpuTopology read_cpu_topology(int affinity_cores, const ReadText& read) {
  const std::int64_t machine_memory = 1024 * number_after(read("/proc/meminfo").value_or(""), "MemTotal:");
  CpuTopology topology{
      .memory_bytes = machine_memory, .affinity_cores = affinity_cores, .machine_memory_bytes = machine_memory};
  const std::string groups = read("/proc/self/cgroup").value_or("");
  const auto limit_cores = [&](std::optional<int> cores) {
    if (cores) {
      topology.quota_cores = std::min(*cores, topology.quota_cores.value_or(*cores));
    }
  };
  for (const std::string& folder : cgroup_folders(groups, "cpu")) {
    limit_cores(cores_of_cpu_max(read(folder + "/cpu.max").value_or("")));
    limit_cores(cores_of_quota(read(folder + "/cpu.cfs_quota_us").value_or(""),
                               read(folder + "/cpu.cfs_period_us").value_or("")));
  }
  topology.cores = std::max(1, std::min(affinity_cores, topology.quota_cores.value_or(affinity_cores)));
  const auto limit = memory_limit(cgroup_folders(groups, "memory"), read);
  if (limit && *limit > 0 && (machine_memory == 0 || *limit < machine_memory)) {
    topology.memory_bytes = *limit;
  }
  return topology;
}

std::optional<int> numa_node_of(std::string_view pci_bus_id, const ReadText& read) {
  const auto node =
      parse_int(trim(read(fmt::format("/sys/bus/pci/devices/{}/numa_node", sysfs_name(pci_bus_id))).value_or("")));
  return node && *node >= 0 ? std::optional(static_cast<int>(*node)) : std::nullopt;
}

CpuTopology probe_cpu_topology() { return read_cpu_topology(affinity_cores(), read_text_file); }

}  // namespace lockstep
