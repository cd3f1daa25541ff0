#include <algorithm>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <lockstep/version.h>

#include "base/text.h"
#include "cli/doctor/facts.h"
#include "cli/installed_files.h"
#include "environment/text_file.h"

namespace lockstep {
namespace {

namespace stdfs = std::filesystem;

std::string kernel_name() {
  utsname name{};
  return uname(&name) == 0 ? fmt::format("{} {} {}", name.sysname, name.release, name.machine) : "unknown";
}

std::optional<std::int64_t> bounded(rlim_t value) {
  return value == RLIM_INFINITY || value > static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max())
             ? std::nullopt
             : std::optional(static_cast<std::int64_t>(value));
}

ResourceLimit limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) {
    return {};
  }
  return {.soft = bounded(limit.rlim_cur), .hard = bounded(limit.rlim_max)};
}

std::int64_t number_in(const std::string& file) {
  return parse_int(trim(read_text_file(file).value_or(""))).value_or(0);
}

/// Free memory of the machine, or what is left of the limit of a control group. Its page cache counts as free.
std::int64_t available_memory(const std::string& groups) {
  std::int64_t available = 1024 * number_after(read_text_file("/proc/meminfo").value_or(""), "MemAvailable:");
  struct Names {
    const char* limit;
    const char* used;
    const char* cache;
  };
  constexpr Names kVersions[] = {{"/memory.max", "/memory.current", "inactive_file "},
                                 {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file "}};
  for (const std::string& folder : cgroup_folders(groups, "memory")) {
    for (const Names& names : kVersions) {
      if (const std::int64_t limit = number_in(folder + names.limit); limit > 0) {
        const std::int64_t cache = number_after(read_text_file(folder + "/memory.stat").value_or(""), names.cache);
        available = std::min(available, std::max<std::int64_t>(0, limit - number_in(folder + names.used) + cache));
      }
    }
  }
  return available;
}

std::optional<std::int64_t> shared_memory_size() {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0 || access("/dev/shm", W_OK) != 0) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(status.f_blocks) * static_cast<std::int64_t>(status.f_frsize);
}

void find_task_limit(const std::string& groups, MachineFacts& facts) {
  for (const std::string& folder : cgroup_folders(groups, "pids")) {
    const std::int64_t most = number_in(folder + "/pids.max");
    const std::int64_t now = number_in(folder + "/pids.current");
    if (most > 0 && (!facts.max_tasks || most - now < *facts.max_tasks - facts.tasks)) {
      facts.max_tasks = most;
      facts.tasks = now;
    }
  }
}

std::vector<std::string> infiniband_ports() {
  std::vector<std::string> ports;
  std::error_code error;
  for (stdfs::directory_iterator device("/sys/class/infiniband", error), end; !error && device != end;
       device.increment(error)) {
    std::error_code unreadable;
    for (stdfs::directory_iterator port(device->path() / "ports", unreadable); !unreadable && port != end;
         port.increment(unreadable)) {
      const std::string state = read_text_file((port->path() / "state").string()).value_or("");
      ports.push_back(fmt::format("{} port {}: {}", device->path().filename().string(),
                                  port->path().filename().string(), trim(state.substr(state.find(':') + 1))));
    }
  }
  std::ranges::sort(ports);
  return ports;
}

}  // namespace

BuildFacts collect_build_facts() {
  BuildFacts facts{.version = LOCKSTEP_VERSION,
                   .build_id = program_build_id(),
                   .compiler = compiler(),
                   .libtorch = libtorch_build(),
                   .cuda = built_with_cuda(),
                   .nccl = built_with_nccl()};
  if (!facts.libtorch.version.empty()) {
    facts.libtorch_library = collect_libtorch_library(beside_this_program(LOCKSTEP_PROBE));
  }
  if (facts.cuda) {
    facts.libraries = collect_cuda_libraries(beside_this_program(LOCKSTEP_CUDA_LIBRARY));
  }
  return facts;
}

MachineFacts collect_machine_facts() {
  const std::string groups = read_text_file("/proc/self/cgroup").value_or("");
  MachineFacts facts{.kernel = kernel_name(),
                     .libc = fmt::format("glibc {}", gnu_get_libc_version()),
                     .root = geteuid() == 0,
                     .cores_present = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))),
                     .cpu = probe_cpu_topology(),
                     .available_memory_bytes = available_memory(groups),
                     .shared_memory_bytes = shared_memory_size(),
                     .open_files = limit_of(RLIMIT_NOFILE),
                     .processes = limit_of(RLIMIT_NPROC),
                     .locked_memory = limit_of(RLIMIT_MEMLOCK),
                     .address_space = limit_of(RLIMIT_AS),
                     .file_size = limit_of(RLIMIT_FSIZE),
                     .infiniband = infiniband_ports()};
  find_task_limit(groups, facts);
  return facts;
}

}  // namespace lockstep
