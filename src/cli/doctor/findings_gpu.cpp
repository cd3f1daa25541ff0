#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "cli/doctor/judgement.h"
#include "environment/visible_devices.h"

namespace lockstep {
namespace {

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
  const auto answering =
      std::ranges::count_if(facts.driver.gpus, [](const GpuDetails& gpu) { return !gpu.hidden && gpu.error.empty(); });
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
  const auto nvlink = std::ranges::count_if(pairs, [](const auto& pair) { return pair.path == "NVLink"; });
  const auto apart =
      std::ranges::count_if(pairs, [](const auto& pair) { return pair.peer_access && !*pair.peer_access; });
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
             std::ranges::none_of(facts.device_files,
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

}  // namespace

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

}  // namespace lockstep
