#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/descriptor.h"
#include "base/text.h"
#include "cli/doctor/facts.h"
#include "environment/port_owner.h"

namespace lockstep {
namespace {

namespace stdfs = std::filesystem;

std::vector<stdfs::path> entries_of(const stdfs::path& folder) {
  std::vector<stdfs::path> entries;
  std::error_code error;
  for (stdfs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  std::ranges::sort(entries);
  return entries;
}

/// nvidia0, nvidiactl, nvidia-uvm: those that CUDA opens.
bool is_device_of_cuda(std::string_view name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name == "nvidiactl" || name == "nvidia-uvm" ||
         (name.starts_with(kPrefix) && parse_int(name.substr(kPrefix.size())).has_value());
}

std::vector<DeviceFile> device_files() {
  std::vector<DeviceFile> files;
  for (const stdfs::path& path : entries_of("/dev")) {
    if (is_device_of_cuda(path.filename().string())) {
      const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
      files.push_back({.path = path.string(), .error = file.is_open() ? "" : std::strerror(errno)});
    }
  }
  return files;
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ..." -> "580.65.06"
std::string kernel_module_version() {
  const std::string text = read_text_file("/proc/driver/nvidia/version").value_or("");
  for (const std::string& word : split(first_line(text), ' ')) {
    if (!word.empty() && word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos) {
      return word;
    }
  }
  return {};
}

int count_pci_gpus() {
  constexpr std::string_view kNvidia = "0x10de";
  constexpr std::string_view kDisplayController = "0x03";
  int count = 0;
  for (const stdfs::path& device : entries_of("/sys/bus/pci/devices")) {
    const bool found = trim(read_text_file(device / "vendor").value_or("")) == kNvidia &&
                       read_text_file(device / "class").value_or("").starts_with(kDisplayController);
    count += found ? 1 : 0;
  }
  return count;
}

std::vector<std::string> describe_processes(const std::vector<GpuProcess>& processes) {
  std::vector<std::string> texts;
  for (const GpuProcess& process : processes) {
    std::error_code error;
    const bool is_here = stdfs::exists(fmt::format("/proc/{}", process.pid), error);  // else outside of this container
    texts.push_back(is_here ? describe_process(static_cast<pid_t>(process.pid))
                            : fmt::format("pid {} (not visible here)", process.pid));
  }
  return texts;
}

}  // namespace

GpuFacts collect_gpu_facts(const Variables& variables) {
  const Hardware hardware = probe_hardware(variables);
  GpuFacts facts{.driver = query_driver(),
                 .kernel_module = kernel_module_version(),
                 .device_files = device_files(),
                 .pci_gpus = count_pci_gpus(),
                 .visible_devices = hardware.visible_devices,
                 .device_order = hardware.device_order};
  for (const GpuDetails& gpu : facts.driver.gpus) {
    facts.numa_nodes.push_back(gpu.pci_bus_id.empty() ? std::nullopt : numa_node_of(gpu.pci_bus_id, read_text_file));
    facts.processes.push_back(describe_processes(gpu.processes));
  }
  for (const Gpu& gpu : hardware.gpus) {
    facts.visible_uuids.push_back(gpu.uuid);
  }
  return facts;
}

}  // namespace lockstep
