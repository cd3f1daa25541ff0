#include "environment/nvml.h"

#include <array>
#include <memory>

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

// The few functions used, by their documented ABI: nvml.h is not part of every CUDA toolkit.
using Device = void*;
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kNoPermission = 4;
constexpr Result kInsufficientSize = 7;

enum ComputeMode : int { kProhibited = 2, kExclusiveProcess = 3 };

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

struct CloseLibrary {
  void operator()(void* handle) const noexcept { dlclose(handle); }
};

class Nvml {
 public:
  explicit Nvml(void* library) : library_(library) {
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(get_count, "nvmlDeviceGetCount_v2");
    find(get_handle, "nvmlDeviceGetHandleByIndex_v2");
    find(get_name, "nvmlDeviceGetName");
    find(get_uuid, "nvmlDeviceGetUUID");
    find(get_pci_info, "nvmlDeviceGetPciInfo_v3");
    find(get_memory, "nvmlDeviceGetMemoryInfo");
    find(get_compute_mode, "nvmlDeviceGetComputeMode");
    find(get_processes, "nvmlDeviceGetComputeRunningProcesses");
  }

  const char* missing = nullptr;  ///< a function this driver does not have

  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*get_count)(unsigned*) = nullptr;
  Result (*get_handle)(unsigned, Device*) = nullptr;
  Result (*get_name)(Device, char*, unsigned) = nullptr;
  Result (*get_uuid)(Device, char*, unsigned) = nullptr;
  Result (*get_pci_info)(Device, PciInfo*) = nullptr;
  Result (*get_memory)(Device, Memory*) = nullptr;
  Result (*get_compute_mode)(Device, int*) = nullptr;
  Result (*get_processes)(Device, unsigned*, void*) = nullptr;

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) {
      missing = name;
    }
  }

  void* library_;
};

bool has_processes(const Nvml& nvml, Device device) {
  unsigned count = 0;  // room for none: only the count is wanted
  const Result result = nvml.get_processes(device, &count, nullptr);
  return result == kInsufficientSize || (result == kSuccess && count > 0);
}

bool is_usable(const Nvml& nvml, Device device) {
  int mode = 0;
  if (nvml.get_compute_mode(device, &mode) != kSuccess) {
    return true;  // not supported on this GPU: no restriction
  }
  return mode != kProhibited && !(mode == kExclusiveProcess && has_processes(nvml, device));
}

Gpu describe(const Nvml& nvml, Device device) {
  Gpu gpu{};
  std::array<char, 96> text{};
  const auto text_size = static_cast<unsigned>(text.size());
  if (nvml.get_name(device, text.data(), text_size) == kSuccess) {
    gpu.name = text.data();
  }
  if (nvml.get_uuid(device, text.data(), text_size) == kSuccess) {
    gpu.uuid = text.data();
  }
  PciInfo pci{};
  if (nvml.get_pci_info(device, &pci) == kSuccess) {
    gpu.pci_bus_id = pci.bus_id;
  }
  Memory memory{};
  if (nvml.get_memory(device, &memory) == kSuccess) {
    gpu.memory_bytes = static_cast<std::int64_t>(memory.total);
    gpu.free_bytes = static_cast<std::int64_t>(memory.free);
  }
  gpu.usable = is_usable(nvml, device);
  return gpu;
}

// NVML numbers GPUs by PCI bus. CUDA does so only under CUDA_DEVICE_ORDER=PCI_BUS_ID; its default, FASTEST_FIRST, is
// the same order wherever all GPUs are of one kind, and cannot be told from here where they are not. PCI order is kept:
// the UUID and the bus id say which GPU is meant.
NvmlFacts list_gpus(const Nvml& nvml) {
  NvmlFacts facts{};
  unsigned count = 0;
  if (const Result result = nvml.get_count(&count); result != kSuccess) {
    facts.note = fmt::format("the NVIDIA driver does not count GPUs: {}", nvml.error_string(result));
    return facts;
  }
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    const Result result = nvml.get_handle(index, &device);
    if (result == kSuccess) {
      facts.gpus.push_back(describe(nvml, device));
    } else if (result != kNoPermission) {  // not ours (a container's share of a machine): CUDA does not count it either
      facts.note = fmt::format("GPU {} does not answer: {}", index, nvml.error_string(result));
    }
  }
  if (facts.gpus.empty() && facts.note.empty()) {
    facts.note = "the NVIDIA driver finds no GPU";
  }
  return facts;
}

}  // namespace

NvmlFacts query_nvml(const char* library) {
  const std::unique_ptr<void, CloseLibrary> handle(dlopen(library, RTLD_NOW | RTLD_LOCAL));
  if (!handle) {
    return {.note = fmt::format("no NVIDIA driver ({} cannot be loaded)", library)};
  }
  const Nvml nvml(handle.get());
  if (nvml.missing != nullptr) {
    return {.note = fmt::format("the NVIDIA driver is too old ({} has no {})", library, nvml.missing)};
  }
  if (const Result result = nvml.init(); result != kSuccess) {
    return {.note = fmt::format("the NVIDIA driver does not start: {}", nvml.error_string(result))};
  }
  NvmlFacts facts = list_gpus(nvml);
  nvml.shutdown();
  return facts;
}

}  // namespace lockstep
