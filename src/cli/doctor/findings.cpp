#include "cli/doctor/findings.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "base/text.h"
#include "environment/visible_devices.h"
#include "launch/descriptor_limit.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// Collects the findings of one group.
class Judgement {
 public:
  Judgement(std::vector<Finding>& findings, std::string_view group) : findings_(findings), group_(group) {}

  void ok(std::string subject, std::string found) { add(FindingLevel::ok, std::move(subject), std::move(found), {}); }
  void warn(std::string subject, std::string found, std::string fix) {
    add(FindingLevel::warning, std::move(subject), std::move(found), std::move(fix));
  }
  void fail(std::string subject, std::string found, std::string fix) {
    add(FindingLevel::failure, std::move(subject), std::move(found), std::move(fix));
  }
  void add(FindingLevel level, std::string subject, std::string found, std::string fix) {
    findings_.push_back({.level = level,
                         .group = std::string(group_),
                         .subject = std::move(subject),
                         .found = std::move(found),
                         .fix = std::move(fix)});
  }

 private:
  std::vector<Finding>& findings_;
  std::string_view group_;
};

/// "580.65.06" -> 580, "13.0" -> 13; 0: no number.
int major_of(std::string_view version) {
  return static_cast<int>(parse_int(version.substr(0, version.find('.'))).value_or(0));
}

/// Whether version `a` ("12.8") is not older than `b` ("12.4").
bool at_least(std::string_view a, std::string_view b) {
  const auto minor_of = [](std::string_view version) {
    return parse_int(version.substr(std::min(version.find('.') + 1, version.size()))).value_or(0);
  };
  return std::pair(static_cast<std::int64_t>(major_of(a)), minor_of(a)) >=
         std::pair(static_cast<std::int64_t>(major_of(b)), minor_of(b));
}

// ---- versions

std::string libtorch_text(const BuildFacts& build) {
  if (build.libtorch.version.empty()) {
    return "none: only the tool was built (preset core)";
  }
  return fmt::format(
      "{}{}, {}", build.libtorch.version,
      build.libtorch.cuda_version.empty() ? "" : " for CUDA " + build.libtorch.cuda_version,
      build.cuda ? build.nccl ? "used with CUDA and NCCL" : "used with CUDA, without NCCL" : "used without CUDA");
}

void judge_driver_version(const Facts& facts, Judgement& judgement) {
  const DriverDetails& driver = facts.gpus.driver;
  if (driver.state != DriverState::running) {
    return;  // judged with the GPUs
  }
  const std::string& built = facts.build.libtorch.cuda_version;
  const std::string text =
      fmt::format("NVIDIA {}, supports CUDA {}", driver.version.empty() ? "of unknown version" : driver.version,
                  driver.cuda_version.empty() ? "of unknown version" : driver.cuda_version);
  if (built.empty() || driver.version.empty() || driver.cuda_version.empty() || at_least(driver.cuda_version, built)) {
    judgement.ok("driver", text);
    return;
  }
  const auto oldest = oldest_driver_for(built);
  if (oldest && major_of(driver.version) >= *oldest) {
    judgement.ok("driver", fmt::format("{}; runs LibTorch's CUDA {} by the compatibility of CUDA {}.x", text, built,
                                       major_of(built)));
    return;
  }
  const std::string needed = oldest ? fmt::format("driver {} or newer", *oldest) : fmt::format("a newer driver");
  judgement.fail(
      "driver", fmt::format("{}, too old: LibTorch was built for CUDA {}, which needs {}", text, built, needed),
      fmt::format("install {}, or build with a LibTorch for CUDA {}.x", needed, major_of(driver.cuda_version)));
}

void judge_cuda_library(const Facts& facts, std::string_view name, const LibraryFacts& library, Judgement& judgement) {
  if (!library.problem.empty()) {
    const bool is_needed = facts.gpus.driver.state == DriverState::running;
    judgement.add(
        is_needed ? FindingLevel::failure : FindingLevel::warning, std::string(name),
        library.file.empty() ? library.problem : fmt::format("{}: {}", library.file, library.problem),
        "ranks on GPUs need it: install LibTorch or lockstep again, or take other copies out of LD_LIBRARY_PATH");
  } else {
    judgement.ok(std::string(name),
                 library_text(facts.build, library) + (library.file.empty() ? "" : fmt::format(" ({})", library.file)));
  }
}

void judge_versions(const Facts& facts, Judgement judgement) {
  const BuildFacts& build = facts.build;
  judgement.ok("lockstep", fmt::format("{}, built with {}", build.version, build.compiler));
  if (build.libtorch.version.empty() || build.libtorch_found) {
    judgement.ok("LibTorch", libtorch_text(build));
  } else {
    judgement.warn(
        "LibTorch",
        fmt::format("{} was in {} when lockstep was built, and is not there now", build.libtorch.version,
                    build.libtorch.folder),
        "programs look for it there: put it back, or build again with LOCKSTEP_LIBTORCH set to its directory");
  }
  judge_cuda_library(facts, "NCCL", build.libraries.nccl, judgement);
  judge_cuda_library(facts, "cuDNN", build.libraries.cudnn, judgement);
  judgement.ok("system", fmt::format("{}, {}", facts.machine.kernel, facts.machine.libc));
  judge_driver_version(facts, judgement);
}

// ---- machine

void judge_cores(const Facts& facts, Judgement& judgement) {
  const CpuTopology& cpu = facts.machine.cpu;
  std::string text = fmt::format("{} of {} usable", cpu.cores, facts.machine.cores_present);
  if (cpu.affinity_cores < facts.machine.cores_present) {
    text += fmt::format(", {} in the affinity mask", cpu.affinity_cores);
  }
  if (cpu.quota_cores) {
    text += fmt::format(", {} in the quota of the control group", *cpu.quota_cores);
  }
  if (cpu.cores < facts.ranks) {
    judgement.warn("cores", fmt::format("{}, fewer than {}", text, counted(facts.ranks, "rank")),
                   "use fewer ranks, or give the job more cores (srun --cpus-per-task, docker --cpus)");
  } else {
    judgement.ok("cores", std::move(text));
  }
}

void judge_memory(const Facts& facts, Judgement& judgement) {
  const MachineFacts& machine = facts.machine;
  std::string text = fmt::format("{}, {} available", human_bytes(machine.cpu.memory_bytes),
                                 human_bytes(machine.available_memory_bytes));
  if (machine.cpu.memory_bytes < machine.cpu.machine_memory_bytes) {
    text += fmt::format("; the machine has {}, the rest is limited by the control group",
                        human_bytes(machine.cpu.machine_memory_bytes));
  }
  if (machine.available_memory_bytes < kGiB * facts.ranks) {
    judgement.warn("memory", fmt::format("{}: less than a GiB for each of {}", text, counted(facts.ranks, "rank")),
                   "end other programs, use fewer ranks, or give the job more memory (--mem, docker --memory)");
  } else {
    judgement.ok("memory", std::move(text));
  }
}

void judge_shared_memory(const Facts& facts, Judgement& judgement) {
  const auto& size = facts.machine.shared_memory_bytes;
  const std::string text = size ? human_bytes(*size) : "missing, or not writable";
  if (facts.ranks > 1 && !facts.gpus.driver.gpus.empty() && size.value_or(0) < kGiB) {
    judgement.warn("/dev/shm", fmt::format("{}; NCCL connects ranks of one machine over it", text),
                   "give the container 1 GiB or more: docker run --shm-size=1g, or --ipc=host");
  } else {
    judgement.ok("/dev/shm", text);
  }
}

void judge_limits(const Facts& facts, Judgement& judgement) {
  const MachineFacts& machine = facts.machine;
  judgement.ok("limits",
               fmt::format("open files {} (at most {}), processes {}, tasks of the control group {}, locked memory {}, "
                           "address space {}, file size {}",
                           limit_text(machine.open_files.soft), limit_text(machine.open_files.hard),
                           limit_text(machine.processes.soft), limit_text(machine.max_tasks),
                           byte_limit_text(machine.locked_memory.soft), byte_limit_text(machine.address_space.soft),
                           byte_limit_text(machine.file_size.soft)));
  const auto& identity = facts.launcher.identity;
  const int world_size = std::max(facts.ranks, identity ? identity->world_size : 1);
  const std::int64_t files = needed_descriptors(facts.ranks, world_size);
  if (machine.open_files.hard && *machine.open_files.hard < files) {
    judgement.fail("open files",
                   fmt::format("the hard limit is {}, {} need up to {}", *machine.open_files.hard,
                               counted(facts.ranks, "rank"), files),
                   "raise it: ulimit -Hn, LimitNOFILE=, docker --ulimit nofile=");
  }
  // A CPU rank of example 02 has 7 threads; more compute threads, workers of the loader and CUDA add to them.
  constexpr std::int64_t kFewestTasks = 8;
  constexpr std::int64_t kUsualTasks = 32;
  std::optional<std::int64_t> tasks = machine.root ? std::nullopt : machine.processes.soft;
  if (machine.max_tasks) {
    tasks = std::min(*machine.max_tasks - machine.tasks, tasks.value_or(*machine.max_tasks));
  }
  if (tasks && *tasks < kUsualTasks * facts.ranks) {
    judgement.add(*tasks < kFewestTasks * facts.ranks ? FindingLevel::failure : FindingLevel::warning, "processes",
                  fmt::format("{} more processes and threads are allowed; a rank needs at least 7, and {} are planned",
                              *tasks, counted(facts.ranks, "rank")),
                  "raise ulimit -u, or pids.max of the container (docker --pids-limit)");
  }
  if (!machine.infiniband.empty() && machine.locked_memory.soft) {
    judgement.warn("locked memory",
                   fmt::format("limited to {}; InfiniBand needs memory that stays in place",
                               human_bytes(*machine.locked_memory.soft)),
                   "ulimit -l unlimited, LimitMEMLOCK=infinity, docker --ulimit memlock=-1");
  }
  if (machine.address_space.soft) {
    const std::string text = fmt::format("limited to {}", human_bytes(*machine.address_space.soft));
    if (facts.gpus.driver.gpus.empty()) {
      judgement.warn("address space", text + "; LibTorch maps several GiB that it does not use",
                     "ulimit -v unlimited; limit the memory with a control group instead");
    } else {
      judgement.fail("address space", text + "; CUDA reserves addresses for the memory of the machine and of all GPUs",
                     "ulimit -v unlimited; limit the memory with a control group instead");
    }
  }
  if (machine.file_size.soft) {
    judgement.warn(
        "file size",
        fmt::format("limited to {}: a larger checkpoint cannot be saved", human_bytes(*machine.file_size.soft)),
        "ulimit -f unlimited");
  }
}

void judge_machine(const Facts& facts, Judgement judgement) {
  judge_cores(facts, judgement);
  judge_memory(facts, judgement);
  judge_shared_memory(facts, judgement);
  judge_limits(facts, judgement);
  judgement.ok("user", facts.machine.root ? "root" : "not root");
}

// ---- GPUs

std::string gpu_text(const GpuDetails& gpu, const std::optional<int>& numa_node) {
  std::vector<std::string> parts{
      gpu.name, fmt::format("{} ({} free)", human_bytes(gpu.memory_bytes), human_bytes(gpu.free_bytes))};
  if (!gpu.compute_capability.empty()) {
    parts.push_back("compute " + gpu.compute_capability);
  }
  if (gpu.ecc) {
    parts.emplace_back(*gpu.ecc ? "ECC" : "ECC off");
  }
  if (gpu.mig_instances) {
    parts.push_back(counted(*gpu.mig_instances, "MIG instance"));
  }
  if (gpu.compute_mode == GpuComputeMode::exclusive) {
    parts.emplace_back("one process only");
  }
  if (gpu.power_limit_w) {
    parts.push_back(fmt::format("{:.0f} W", *gpu.power_limit_w));
  }
  if (gpu.nvlinks > 0) {
    parts.push_back(counted(gpu.nvlinks, "NVLink"));
  }
  if (numa_node) {
    parts.push_back(fmt::format("NUMA node {}", *numa_node));
  }
  parts.push_back(gpu.pci_bus_id);
  parts.push_back(gpu.uuid);
  return join(parts, ", ");
}

void judge_gpu_use(const GpuDetails& gpu, const std::vector<std::string>& processes, Judgement& judgement) {
  const std::string subject = fmt::format("GPU {}", gpu.number);
  const std::int64_t used = gpu.memory_bytes - gpu.free_bytes;
  if (!processes.empty()) {
    judgement.warn(subject, fmt::format("{} used by {}", human_bytes(used), join(processes, ", ")),
                   "end that program, or choose other GPUs: --devices free:N");
  } else if (used > gpu.memory_bytes / 10 && gpu.memory_bytes > 0) {
    judgement.warn(subject,
                   fmt::format("{} of its memory are used by processes that are not visible here", human_bytes(used)),
                   "look for them outside of this container, or choose other GPUs: --devices free:N");
  }
}

void judge_gpu_state(const GpuDetails& gpu, int most_nvlinks, Judgement& judgement) {
  const std::string subject = fmt::format("GPU {}", gpu.number);
  if (gpu.compute_mode == GpuComputeMode::prohibited) {
    judgement.warn(subject, "its compute mode is prohibited: no program may use it",
                   fmt::format("nvidia-smi -i {} -c 0 (as root), or choose other GPUs: --devices", gpu.number));
  }
  if (gpu.uncorrected_errors > 0) {
    judgement.warn(subject,
                   fmt::format("{} that ECC could not correct, since the driver was loaded",
                               counted(gpu.uncorrected_errors, "memory error")),
                   "reset the GPU while nobody uses it; if it happens again, have it replaced");
  }
  if (gpu.mig_instances && *gpu.mig_instances == 0) {
    judgement.warn(
        subject, "it is in MIG mode and has no instance, so no program can use it",
        fmt::format("create instances (nvidia-smi mig -cgi ... -C), or nvidia-smi -i {} -mig 0", gpu.number));
  }
  if (gpu.power_limit_w && gpu.default_power_limit_w && *gpu.power_limit_w < 0.9 * *gpu.default_power_limit_w) {
    judgement.warn(
        subject,
        fmt::format("its power is limited to {:.0f} W, the default is {:.0f} W: all ranks wait for the slowest",
                    *gpu.power_limit_w, *gpu.default_power_limit_w),
        fmt::format("nvidia-smi -i {} -pl {:.0f} (as root), if the limit is not intended", gpu.number,
                    *gpu.default_power_limit_w));
  }
  if (gpu.nvlinks < most_nvlinks) {
    judgement.warn(
        subject,
        fmt::format("{} active, another GPU of this kind has {}", counted(gpu.nvlinks, "NVLink"), most_nvlinks),
        fmt::format("nvidia-smi nvlink -s -i {} names the link that is down", gpu.number));
  }
}

void judge_each_gpu(const GpuFacts& facts, Judgement& judgement) {
  std::vector<int> hidden;
  const std::vector<GpuDetails>& gpus = facts.driver.gpus;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const GpuDetails& gpu = gpus[i];
    if (gpu.hidden) {
      hidden.push_back(gpu.number);
      continue;
    }
    if (!gpu.error.empty()) {
      judgement.fail(fmt::format("GPU {}", gpu.number), "it does not answer: " + gpu.error,
                     "dmesg shows its last error (Xid); reset it or reboot; until then leave it out with --devices or "
                     "CUDA_VISIBLE_DEVICES");
      continue;
    }
    judgement.ok(fmt::format("GPU {}", gpu.number), gpu_text(gpu, facts.numa_nodes[i]));
    int most_nvlinks = 0;
    for (const GpuDetails& other : gpus) {
      most_nvlinks = std::max(most_nvlinks, other.name == gpu.name ? other.nvlinks : 0);
    }
    judge_gpu_use(gpu, facts.processes[i], judgement);
    judge_gpu_state(gpu, most_nvlinks, judgement);
  }
  if (!hidden.empty() && hidden.size() == gpus.size()) {
    judgement.fail("permission", fmt::format("this user may use none of {}", counted(std::ssize(gpus), "GPU")),
                   "ask the scheduler for GPUs (--gres=gpu:N), or give the container its devices (docker --gpus)");
  } else if (!hidden.empty()) {
    judgement.ok("permission", fmt::format("GPUs {} belong to others", format_ranges(hidden)));
  }
}

/// Names of the GPUs that answer.
std::set<std::string> kinds_of(const GpuFacts& facts) {
  std::set<std::string> kinds;
  for (const GpuDetails& gpu : facts.driver.gpus) {
    if (!gpu.hidden && gpu.error.empty()) {
      kinds.insert(gpu.name);
    }
  }
  return kinds;
}

void judge_visible_gpus(const GpuFacts& facts, Judgement& judgement) {
  const auto answering = std::count_if(facts.driver.gpus.begin(), facts.driver.gpus.end(),
                                       [](const GpuDetails& gpu) { return !gpu.hidden && gpu.error.empty(); });
  const auto visible = std::ssize(facts.visible_uuids);
  if (kinds_of(facts).size() > 1) {
    judgement.warn("kinds", "the GPUs differ: all ranks wait for the slowest", "choose equal ones with --devices");
    if (facts.device_order != kPciOrder) {
      judgement.warn(kDeviceOrder,
                     fmt::format("{}: CUDA counts these GPUs in another order than nvidia-smi", facts.device_order),
                     "unset it, or set it to PCI_BUS_ID");
    }
  }
  if (facts.visible_devices == kUnset) {
    return;
  }
  const auto entries = std::ssize(split(facts.visible_devices, ','));
  const std::string text =
      fmt::format("\"{}\" shows {} of {}", facts.visible_devices, visible, counted(answering, "GPU"));
  if (visible == 0 && answering > 0) {
    judgement.warn("CUDA_VISIBLE_DEVICES", text, "unset it if the run shall use GPUs");
  } else if (visible < entries && answering > 0) {
    judgement.warn("CUDA_VISIBLE_DEVICES", fmt::format("{}; the first entry that fits no GPU ends the list", text),
                   "use numbers or UUIDs of GPUs of this machine");
  } else {
    judgement.ok("CUDA_VISIBLE_DEVICES", text);
  }
}

void judge_links(const std::vector<GpuPair>& pairs, Judgement& judgement) {
  if (pairs.empty()) {
    return;
  }
  const auto nvlink = std::count_if(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.path == "NVLink"; });
  const auto apart = std::count_if(pairs.begin(), pairs.end(),
                                   [](const auto& pair) { return pair.peer_access && !*pair.peer_access; });
  judgement.ok("links", fmt::format("{} of {} connected by NVLink; {}", nvlink, counted(std::ssize(pairs), "pair"),
                                    apart == 0 ? "every GPU can read the others' memory"
                                               : fmt::format("{} without access to each other's memory, so that NCCL "
                                                             "copies through the host",
                                                             counted(apart, "pair"))));
}

/// Not the files of single GPUs that a scheduler keeps for others.
void judge_device_files(const GpuFacts& facts, Judgement& judgement) {
  std::vector<std::string> refused;
  bool any_gpu = false;
  bool any_gpu_opens = false;
  for (const DeviceFile& file : facts.device_files) {
    const bool shared = file.path == "/dev/nvidiactl" || file.path == "/dev/nvidia-uvm";
    any_gpu = any_gpu || !shared;
    any_gpu_opens = any_gpu_opens || (!shared && file.error.empty());
    if (shared && !file.error.empty()) {
      refused.push_back(fmt::format("{} ({})", file.path, file.error));
    }
  }
  if (any_gpu && !any_gpu_opens) {
    refused.emplace_back("/dev/nvidia0 and all others");
  }
  if (!refused.empty()) {
    judgement.fail(
        "device files", "cannot open " + join(refused, ", "),
        "ask the scheduler for GPUs, give the container its devices, or correct the permissions of the files");
  } else if (!facts.device_files.empty() && facts.driver.state == DriverState::running &&
             std::none_of(facts.device_files.begin(), facts.device_files.end(),
                          [](const DeviceFile& file) { return file.path == "/dev/nvidia-uvm"; })) {
    judgement.warn("device files", "/dev/nvidia-uvm is missing; CUDA needs it",
                   "nvidia-modprobe -u -c 0 creates it; a container has to get it as well");
  }
}

std::string fix_for_driver_that_does_not_start(const GpuFacts& facts) {
  if (to_lower(facts.driver.note).find("mismatch") != std::string::npos) {
    return fmt::format("the kernel still has the driver {}: reboot, or unload and load its modules",
                       facts.kernel_module.empty() ? "of before" : facts.kernel_module);
  }
  return facts.kernel_module.empty() ? "load the kernel module (modprobe nvidia); dmesg says why it cannot be loaded"
                                     : "nvidia-smi shows the same error, and dmesg its cause";
}

void judge_absent_driver(const Facts& facts, Judgement& judgement) {
  const FindingLevel level = facts.build.cuda ? FindingLevel::failure : FindingLevel::warning;
  const auto oldest = oldest_driver_for(facts.build.libtorch.cuda_version);
  if (!facts.gpus.kernel_module.empty()) {
    judgement.add(level, "driver",
                  fmt::format("the kernel has NVIDIA's driver {}, but its library libnvidia-ml.so.1 cannot be loaded",
                              facts.gpus.kernel_module),
                  "start the container with GPUs (docker run --gpus all, apptainer --nv), or install the libraries of "
                  "that driver");
  } else if (facts.gpus.pci_gpus > 0) {
    judgement.add(level, "driver",
                  fmt::format("{} of NVIDIA on the PCI bus, but no driver", counted(facts.gpus.pci_gpus, "GPU")),
                  oldest ? fmt::format("install NVIDIA's driver, {} or newer", *oldest) : "install NVIDIA's driver");
  } else {
    judgement.ok("GPUs", "none, and no NVIDIA driver: runs use the CPU");
  }
}

void judge_gpus(const Facts& facts, Judgement judgement) {
  const DriverDetails& driver = facts.gpus.driver;
  if (driver.state == DriverState::absent) {
    judge_absent_driver(facts, judgement);
  } else if (driver.state == DriverState::unusable) {
    judgement.fail("driver", driver.note, fix_for_driver_that_does_not_start(facts.gpus));
  } else if (!driver.note.empty()) {
    judgement.fail("driver", driver.note, "nvidia-smi shows the same error, and dmesg its cause");
  } else if (driver.gpus.empty()) {
    judgement.warn("driver", "the NVIDIA driver runs, but finds no GPU",
                   "lspci lists the GPUs of the machine, and dmesg says why one is missing");
  } else if (!facts.build.cuda) {
    judgement.warn("build", "this lockstep was built without CUDA: its runs use the CPU",
                   "build it with a LibTorch for CUDA, and CUDA's headers (cmake/setup.sh)");
  }
  judge_device_files(facts.gpus, judgement);
  judge_each_gpu(facts.gpus, judgement);
  judge_links(driver.pairs, judgement);
  if (!driver.gpus.empty()) {
    judge_visible_gpus(facts.gpus, judgement);
  }
}

// ---- network

const NetworkInterface* find_interface(const NetworkFacts& facts, std::string_view name) {
  const auto found = std::find_if(facts.interfaces.begin(), facts.interfaces.end(),
                                  [&](const auto& interface) { return interface.name == name; });
  return found == facts.interfaces.end() ? nullptr : &*found;
}

std::string interface_with(const NetworkFacts& facts, const std::string& address) {
  for (const NetworkInterface& interface : facts.interfaces) {
    if (std::ranges::find(interface.addresses, address) != interface.addresses.end()) {
      return interface.name;
    }
  }
  return {};
}

std::string names_of(const std::vector<NetworkInterface>& interfaces) {
  std::vector<std::string> names;
  for (const NetworkInterface& interface : interfaces) {
    names.push_back(interface.name);
  }
  return join(names, ", ");
}

void judge_interfaces(const NetworkFacts& facts, Judgement& judgement) {
  std::vector<std::string> texts;
  std::int64_t silent = 0;
  bool loopback = false;
  for (const NetworkInterface& interface : facts.interfaces) {
    std::vector<std::string> addresses = interface.addresses;
    std::erase_if(addresses, [](const std::string& address) { return address.starts_with("fe80:"); });
    loopback = loopback || (interface.loopback && interface.up && !addresses.empty());
    if (interface.up && !addresses.empty()) {
      texts.push_back(fmt::format("{} {}", interface.name, join(addresses, " ")));
    } else {
      ++silent;
    }
  }
  if (silent > 0) {
    texts.push_back(fmt::format("{} without an address or down", silent));
  }
  judgement.ok("interfaces", join(texts, "; "));
  if (!loopback) {
    judgement.fail("loopback", "no loopback interface is up; the ranks of a machine connect over it",
                   "ip link set lo up");
  }
}

void judge_host(const NetworkFacts& facts, Judgement& judgement) {
  const ResolvedHost& host = facts.host;
  constexpr const char* kFix = "add the name with an address of this machine to /etc/hosts, or set GLOO_SOCKET_IFNAME";
  if (!host.error.empty()) {
    judgement.warn("host name",
                   fmt::format("{} cannot be resolved ({}); lockstep does not need it, other programs that use Gloo do",
                               host.name, host.error),
                   kFix);
  } else if (!host.here) {
    judgement.warn("host name",
                   fmt::format("{} is {}, not an address of this machine; lockstep does not need it, other programs "
                               "that use Gloo do",
                               host.name, join(host.addresses, ", ")),
                   kFix);
  } else {
    judgement.ok("host name", fmt::format("{}, resolves to {}", host.name, join(host.addresses, ", ")));
  }
}

void judge_gloo(const NetworkFacts& facts, Judgement& judgement) {
  if (facts.gloo_interface.empty()) {
    const std::string interface = interface_with(facts, facts.route_address);
    const std::string way = facts.route_address.empty() || !facts.master || facts.master->here
                                ? "several machines the address on the way to machine 0"
                                : fmt::format("several machines {}{}", facts.route_address,
                                              interface.empty() ? "" : fmt::format(" ({})", interface));
    judgement.ok("Gloo", fmt::format("the ranks of one machine use 127.0.0.1, those of {}", way));
    return;
  }
  for (const std::string& name : split(facts.gloo_interface, ',')) {
    const NetworkInterface* const interface = find_interface(facts, name);
    if (interface == nullptr || !interface->up || interface->addresses.empty()) {
      judgement.fail("GLOO_SOCKET_IFNAME",
                     fmt::format("{}: {}", name,
                                 interface == nullptr ? "this machine has no such interface"
                                                      : "the interface is down or has no address"),
                     fmt::format("use one of {}, or unset it", names_of(facts.interfaces)));
      return;
    }
  }
  judgement.ok("Gloo", fmt::format("the ranks of several machines use {} (GLOO_SOCKET_IFNAME)", facts.gloo_interface));
}

void judge_nccl(const NetworkFacts& facts, Judgement& judgement) {
  if (facts.nccl_interface.empty()) {
    return;
  }
  const bool any = std::ranges::any_of(facts.interfaces, [&](const NetworkInterface& interface) {
    return interface.up && nccl_would_use(facts.nccl_interface, interface.name);
  });
  if (any) {
    judgement.ok("NCCL", fmt::format("uses interfaces of NCCL_SOCKET_IFNAME={}", facts.nccl_interface));
  } else {
    judgement.fail("NCCL_SOCKET_IFNAME", fmt::format("{}: it fits no interface that is up", facts.nccl_interface),
                   fmt::format("use one of {}, or unset it", names_of(facts.interfaces)));
  }
}

void judge_master(const Facts& facts, Judgement& judgement) {
  const auto& master = facts.network.master;
  if (master && !master->error.empty()) {
    judgement.fail("MASTER_ADDR", fmt::format("{} cannot be resolved: {}", master->name, master->error),
                   "use a name or an address of the machine of rank 0 that every machine can resolve");
  } else if (master) {
    judgement.ok("MASTER_ADDR",
                 fmt::format("{}, {}", master->name, master->here ? "this machine" : join(master->addresses, ", ")));
  }
  const auto& identity = facts.launcher.identity;
  const NetworkFacts& network = facts.network;
  const std::string port = fmt::format("{} ({})", network.port, network.port_source);
  if (identity && identity->agent_store) {
    judgement.ok("port", fmt::format("{}, served by the launcher", port));
  } else if (network.port_source != "--port" && master && !master->here) {
    judgement.ok("port", fmt::format("{}, on another machine", port));
  } else if (network.port_problem.empty()) {
    judgement.ok("port", port + ", free");
  } else if (network.port_is_chosen) {
    judgement.fail("port", fmt::format("{}: {}", port, network.port_problem),
                   "end that process, or use another port everywhere (MASTER_PORT, --master-port)");
  } else {
    judgement.warn("port", fmt::format("{}: {}; only launches on several machines use it", port, network.port_problem),
                   "use another port on every machine: --master-port");
  }
}

void judge_network(const Facts& facts, Judgement judgement) {
  judge_interfaces(facts.network, judgement);
  judge_host(facts.network, judgement);
  judge_gloo(facts.network, judgement);
  judge_nccl(facts.network, judgement);
  judge_master(facts, judgement);
  if (!facts.machine.infiniband.empty()) {
    judgement.ok("InfiniBand", join(facts.machine.infiniband, ", "));
  }
}

// ---- launch

struct SlowVariable {
  std::string_view name;
  std::string_view value;
  std::string_view effect;
};

constexpr SlowVariable kSlowVariables[] = {
    {"CUDA_LAUNCH_BLOCKING", "1", "the host waits for every kernel"},
    {"NCCL_P2P_DISABLE", "1", "GPUs of one machine do not copy directly"},
    {"NCCL_SHM_DISABLE", "1", "ranks of one machine connect over the network"},
    {"NCCL_IB_DISABLE", "1", "machines connect over TCP instead of InfiniBand"},
    {"NVIDIA_TF32_OVERRIDE", "0", "TF32 is off, whatever --matmul_precision says"},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "every tensor allocates memory of the GPU"},
    {"TORCH_DISTRIBUTED_DEBUG", "DETAIL", "every collective is checked on all ranks"},
};

std::optional<std::string> value_of(const LauncherFacts& facts, std::string_view name) {
  for (const auto& [known, value] : facts.variables) {
    if (known == name) {
      return value;
    }
  }
  return std::nullopt;
}

void judge_variables(const Facts& facts, Judgement& judgement) {
  const LauncherFacts& launcher = facts.launcher;
  std::vector<std::string> set;
  for (const auto& [name, value] : launcher.variables) {
    set.push_back(fmt::format("{}={}", name, value));
  }
  if (!set.empty()) {
    judgement.ok("variables", join(set, ", "));
  }
  for (const SlowVariable& slow : kSlowVariables) {
    if (value_of(launcher, slow.name) == slow.value) {
      judgement.warn(std::string(slow.name), fmt::format("{}: {}, which is slow", slow.value, slow.effect),
                     "unset it, if you do not look for a fault with it");
    }
  }
  const auto threads = parse_int(value_of(launcher, "OMP_NUM_THREADS").value_or(""));
  if (threads && *threads * facts.ranks > facts.machine.cpu.cores && *threads > 1) {
    judgement.warn("OMP_NUM_THREADS",
                   fmt::format("{} threads in each of {}, on {}", *threads, counted(facts.ranks, "rank"),
                               counted(facts.machine.cpu.cores, "core")),
                   fmt::format("unset it, or set it to {}", std::max(1, facts.machine.cpu.cores / facts.ranks)));
  }
  if (!launcher.settings.empty()) {
    judgement.ok("settings", fmt::format("changed by {}", join(launcher.settings, ", ")));
  }
}

void judge_launch(const Facts& facts, Judgement judgement) {
  const LauncherFacts& launcher = facts.launcher;
  for (const Problem& problem : launcher.problems) {
    judgement.fail(
        "launcher", problem.what,
        problem.hint.empty() ? "correct the variable, or unset all variables of that launcher" : problem.hint);
  }
  if (const auto& identity = launcher.identity; identity && identity->launcher != "single") {
    judgement.ok("launcher", identity->starts_ranks
                                 ? fmt::format("{}, node {} of {}: this process would start the ranks of its node",
                                               identity->launcher, identity->node, identity->nodes)
                                 : fmt::format("{}, rank {} of {}, from {}", identity->launcher, identity->rank,
                                               identity->world_size, join(identity->variables, ", ")));
  } else if (launcher.problems.empty()) {
    judgement.ok("launcher", "none: a program starts its ranks itself");
  }
  if (launcher.identity) {
    for (const std::string& hint : launcher.identity->hints) {
      judgement.warn("launcher", hint, "start the program as this line says, if one rank is not intended");
    }
  }
  if (!launcher.job.empty()) {
    judgement.ok("job",
                 launcher.job +
                     (launcher.job_seconds ? ", ends in " + human_duration(std::max(0.0, *launcher.job_seconds)) : ""));
  }
  judge_variables(facts, judgement);
}

// ---- run directory

void judge_directory(const DirectoryFacts& facts, Judgement judgement) {
  std::string place = printable(facts.checked.string());
  if (facts.asked != facts.checked && facts.asked != ".") {
    place = fmt::format("{}, checked in {}", printable(facts.asked.string()), place);
  }
  const std::string kind = facts.file_system.empty() ? "of unknown kind" : facts.file_system;
  constexpr const char* kAnother = "use a directory that this user may write, on a disk with space: --run_dir";
  if (!facts.failed.empty()) {
    judgement.fail("writing", fmt::format("{} ({}): cannot {}: {}", place, kind, facts.failed, facts.error), kAnother);
    return;
  }
  judgement.ok("writing", fmt::format("{} ({}), {} free, renames files", place, kind, human_bytes(facts.free_bytes)));
  if (facts.free_bytes < 5 * kGiB) {
    judgement.warn(
        "space", fmt::format("{} free", human_bytes(facts.free_bytes)),
        "a save needs the size of a checkpoint, beside the checkpoints that are kept: free space, or --run_dir");
  }
  if (facts.file_system == "tmpfs" || facts.file_system == "ramfs") {
    judgement.warn("file system", fmt::format("{} is memory: checkpoints use it up, and a reboot deletes them", kind),
                   "use a directory on a disk: --run_dir");
  } else if (facts.file_system == "overlay") {
    judgement.warn("file system", "overlay: checkpoints are deleted with this container",
                   "use a directory that is mounted into the container (docker -v): --run_dir");
  }
  if (!facts.lock_problem.empty()) {
    judgement.fail("lock", fmt::format("{}; two runs could write to one directory", facts.lock_problem),
                   "mount the file system with locks (NFS without nolock, Lustre with flock), or use another one");
  } else {
    judgement.ok("lock", "works: a second run in the directory is refused");
  }
  constexpr double kSlowSync = 0.25;
  const std::string sync = fmt::format("{:.1f} ms", 1000 * facts.sync_seconds);
  if (facts.sync_seconds > kSlowSync) {
    judgement.warn("fsync", fmt::format("{}; a save needs several", sync),
                   "use a faster disk, or save less often (--checkpoint.every_steps)");
  } else {
    judgement.ok("fsync", sync);
  }
  if (std::abs(facts.clock_skew_seconds) > 1) {
    judgement.warn("clock",
                   fmt::format("new files are {:.1f} s {} than the clock of this machine",
                               std::abs(facts.clock_skew_seconds), facts.clock_skew_seconds > 0 ? "later" : "earlier"),
                   "set the clocks of this machine and of the file server by NTP");
  } else {
    judgement.ok("clock", "new files have the time of this machine");
  }
}

}  // namespace

std::optional<int> oldest_driver_for(std::string_view cuda_version) {
  // NVIDIA's table of minor version compatibility.
  switch (major_of(cuda_version)) {
    case 13:
      return 580;
    case 12:
      return 525;
    case 11:
      return 450;
    default:
      return std::nullopt;
  }
}

bool nccl_would_use(std::string_view wanted, std::string_view interface) {
  const bool exclude = wanted.starts_with('^');
  wanted.remove_prefix(exclude ? 1 : 0);
  const bool exact = wanted.starts_with('=');
  wanted.remove_prefix(exact ? 1 : 0);
  const std::vector<std::string> names = split(wanted, ',');
  const bool listed = std::ranges::any_of(
      names, [&](const std::string& name) { return exact ? interface == name : interface.starts_with(name); });
  return listed != exclude;
}

std::vector<Finding> judge(const Facts& facts) {
  std::vector<Finding> findings;
  judge_versions(facts, Judgement(findings, kFindingGroups[0]));
  judge_machine(facts, Judgement(findings, kFindingGroups[1]));
  judge_gpus(facts, Judgement(findings, kFindingGroups[2]));
  judge_network(facts, Judgement(findings, kFindingGroups[3]));
  judge_launch(facts, Judgement(findings, kFindingGroups[4]));
  if (facts.directory) {
    judge_directory(*facts.directory, Judgement(findings, kFindingGroups[5]));
  }
  return findings;
}

}  // namespace lockstep
