#include "environment/nvml.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

// The few functions that are used, by their documented ABI: not every CUDA toolkit contains nvml.h.
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

struct Utilization {
  unsigned gpu;
  unsigned memory;
};

struct ProcessInfo {
  unsigned pid;
  unsigned long long memory;
};
constexpr unsigned long long kUnknownMemory = ~0ULL;

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
    find_if_there(get_mig_mode, "nvmlDeviceGetMigMode");
    find_if_there(get_mig_count, "nvmlDeviceGetMaxMigDeviceCount");
    find_if_there(get_mig_handle, "nvmlDeviceGetMigDeviceHandleByIndex");
    find_if_there(get_driver_version, "nvmlSystemGetDriverVersion");
    find_if_there(get_cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
    find_if_there(get_capability, "nvmlDeviceGetCudaComputeCapability");
    find_if_there(get_ecc_mode, "nvmlDeviceGetEccMode");
    find_if_there(get_ecc_errors, "nvmlDeviceGetTotalEccErrors");
    find_if_there(get_power_limit, "nvmlDeviceGetPowerManagementLimit");
    find_if_there(get_default_power_limit, "nvmlDeviceGetPowerManagementDefaultLimit");
    find_if_there(get_utilization, "nvmlDeviceGetUtilizationRates");
    find_if_there(get_power, "nvmlDeviceGetPowerUsage");
    find_if_there(get_temperature, "nvmlDeviceGetTemperature");
    find_if_there(get_nvlink_state, "nvmlDeviceGetNvLinkState");
    find_if_there(get_common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
    find_if_there(get_p2p_status, "nvmlDeviceGetP2PStatus");
  }

  const char* missing = nullptr;  ///< a function that this driver does not have

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
  Result (*get_processes)(Device, unsigned*, ProcessInfo*) = nullptr;
  // Since R450; null before.
  Result (*get_mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  Result (*get_mig_count)(Device, unsigned*) = nullptr;
  Result (*get_mig_handle)(Device, unsigned, Device*) = nullptr;
  // Only for reports; null in some drivers.
  Result (*get_driver_version)(char*, unsigned) = nullptr;
  Result (*get_cuda_version)(int*) = nullptr;
  Result (*get_capability)(Device, int*, int*) = nullptr;
  Result (*get_ecc_mode)(Device, int*, int*) = nullptr;
  Result (*get_ecc_errors)(Device, int, int, unsigned long long*) = nullptr;
  Result (*get_power_limit)(Device, unsigned*) = nullptr;
  Result (*get_default_power_limit)(Device, unsigned*) = nullptr;
  Result (*get_utilization)(Device, Utilization*) = nullptr;
  Result (*get_power)(Device, unsigned*) = nullptr;
  Result (*get_temperature)(Device, int, unsigned*) = nullptr;
  Result (*get_nvlink_state)(Device, unsigned, int*) = nullptr;
  Result (*get_common_ancestor)(Device, Device, int*) = nullptr;
  Result (*get_p2p_status)(Device, Device, int, int*) = nullptr;

 private:
  template <class Function>
  void find_if_there(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
  }
  template <class Function>
  void find(Function& function, const char* name) {
    find_if_there(function, name);
    if (function == nullptr) {
      missing = name;
    }
  }

  void* library_;
};

/// False: the driver does not support the question for this device.
template <class... Parameters, class... Arguments>
bool ask(Result (*function)(Parameters...), Arguments... arguments) {
  return function != nullptr && function(arguments...) == kSuccess;
}

bool has_processes(const Nvml& nvml, Device device) {
  unsigned count = 0;  // no room, so that NVML returns only the count
  const Result result = nvml.get_processes(device, &count, nullptr);
  return result == kInsufficientSize || (result == kSuccess && count > 0);
}

bool is_usable(const Nvml& nvml, Device device) {
  int mode = 0;
  if (!ask(nvml.get_compute_mode, device, &mode)) {
    return true;  // no restriction
  }
  return mode != kProhibited && !(mode == kExclusiveProcess && has_processes(nvml, device));
}

/// The instances of a GPU in MIG mode; nullopt: the GPU is whole.
std::optional<std::vector<Device>> instances_of(const Nvml& nvml, Device device) {
  unsigned mode = 0;
  unsigned pending = 0;
  unsigned most = 0;
  if (!ask(nvml.get_mig_mode, device, &mode, &pending) || mode == 0 || !ask(nvml.get_mig_count, device, &most)) {
    return std::nullopt;
  }
  std::vector<Device> instances;
  for (unsigned index = 0; index < most; ++index) {
    if (Device instance = nullptr; ask(nvml.get_mig_handle, device, index, &instance)) {
      instances.push_back(instance);
    }
  }
  return instances;
}

/// "9.0"; "": not known.
std::string compute_capability(const Nvml& nvml, Device device) {
  int major = 0;
  int minor = 0;
  return ask(nvml.get_capability, device, &major, &minor) ? fmt::format("{}.{}", major, minor) : std::string();
}

/// Sets what tells a GPU from others. `device`: the GPU `whole` or an instance of it.
template <class Facts>
Result identify(const Nvml& nvml, Device device, Device whole, Facts& gpu) {
  std::array<char, 96> text{};
  const auto text_size = static_cast<unsigned>(text.size());
  if (const Result result = nvml.get_uuid(device, text.data(), text_size); result != kSuccess) {
    return result;
  }
  gpu.uuid = text.data();
  if (ask(nvml.get_name, device, text.data(), text_size)) {
    gpu.name = text.data();
  }
  if (PciInfo pci{}; ask(nvml.get_pci_info, whole, &pci)) {
    gpu.pci_bus_id = pci.bus_id;
  }
  return kSuccess;
}

template <class Facts>
Result read_memory(const Nvml& nvml, Device device, Facts& gpu) {
  Memory memory{};
  const Result result = nvml.get_memory(device, &memory);
  if (result == kSuccess) {
    gpu.memory_bytes = static_cast<std::int64_t>(memory.total);
    gpu.free_bytes = static_cast<std::int64_t>(memory.free);
  }
  return result;
}

/// The answer for `whole`, or for its first instance, the only one that CUDA shows a process.
Result describe(const Nvml& nvml, Device whole, Gpu& gpu) {
  const auto instances = instances_of(nvml, whole);
  const Device device = instances && !instances->empty() ? instances->front() : whole;
  if (const Result result = identify(nvml, device, whole, gpu); result != kSuccess) {
    return result;
  }
  read_memory(nvml, device, gpu);
  gpu.usable = is_usable(nvml, whole);
  gpu.compute_capability = compute_capability(nvml, whole);
  return kSuccess;
}

std::vector<GpuProcess> list_processes(const Nvml& nvml, Device device) {
  std::array<ProcessInfo, 64> infos{};
  auto count = static_cast<unsigned>(infos.size());
  if (nvml.get_processes(device, &count, infos.data()) != kSuccess) {
    return {};
  }
  std::vector<GpuProcess> processes;
  for (const ProcessInfo& info : std::span(infos).first(std::min<std::size_t>(count, infos.size()))) {
    processes.push_back(
        {.pid = info.pid, .bytes = info.memory == kUnknownMemory ? 0 : static_cast<std::int64_t>(info.memory)});
  }
  return processes;
}

// NVML numbers GPUs by PCI bus; CUDA is configured to do the same (visible_devices.h).
NvmlFacts list_gpus(const Nvml& nvml) {
  NvmlFacts facts{};
  unsigned count = 0;
  if (const Result result = nvml.get_count(&count); result != kSuccess) {
    facts.note = fmt::format("the NVIDIA driver cannot count the GPUs: {}", nvml.error_string(result));
    return facts;
  }
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    Gpu gpu{};
    Result result = nvml.get_handle(index, &device);
    result = result == kSuccess ? describe(nvml, device, gpu) : result;
    if (result == kSuccess) {
      facts.gpus.push_back(std::move(gpu));
    } else if (result != kNoPermission) {  // without permission (a container's share of a machine) CUDA does not count
                                           // the GPU either
      facts.note = fmt::format("GPU {} does not answer: {}", index, nvml.error_string(result));
    }
  }
  if (facts.gpus.empty() && facts.note.empty()) {
    facts.note = "the NVIDIA driver finds no GPU";
  }
  return facts;
}

std::optional<double> watts(Result (*function)(Device, unsigned*), Device device) {
  unsigned milliwatts = 0;
  return ask(function, device, &milliwatts) ? std::optional(milliwatts / 1000.0) : std::nullopt;
}

int count_nvlinks(const Nvml& nvml, Device device) {
  constexpr unsigned kMaxLinks = 64;  // more than any GPU has
  int active_links = 0;
  int active = 0;
  for (unsigned link = 0; link < kMaxLinks && ask(nvml.get_nvlink_state, device, link, &active); ++link) {
    active_links += active != 0 ? 1 : 0;
  }
  return active_links;
}

/// The answer of the GPU itself; of the rest some GPUs support only a part.
Result examine(const Nvml& nvml, Device device, GpuDetails& gpu) {
  constexpr int kUncorrected = 1;
  constexpr int kSinceLoaded = 0;
  if (const Result result = identify(nvml, device, device, gpu); result != kSuccess) {
    return result;
  }
  if (const Result result = read_memory(nvml, device, gpu); result != kSuccess) {
    return result;
  }
  gpu.compute_capability = compute_capability(nvml, device);
  if (int mode = 0; ask(nvml.get_compute_mode, device, &mode)) {
    gpu.compute_mode = mode == kProhibited         ? GpuComputeMode::prohibited
                       : mode == kExclusiveProcess ? GpuComputeMode::exclusive
                                                   : GpuComputeMode::shared;
  }
  int enabled = 0;
  int pending = 0;
  if (ask(nvml.get_ecc_mode, device, &enabled, &pending)) {
    gpu.ecc = enabled != 0;
  }
  if (unsigned long long errors = 0; ask(nvml.get_ecc_errors, device, kUncorrected, kSinceLoaded, &errors)) {
    gpu.uncorrected_errors = static_cast<std::int64_t>(errors);
  }
  if (const auto instances = instances_of(nvml, device)) {
    gpu.mig_instances = static_cast<int>(instances->size());
  }
  gpu.power_limit_w = watts(nvml.get_power_limit, device);
  gpu.default_power_limit_w = watts(nvml.get_default_power_limit, device);
  gpu.nvlinks = count_nvlinks(nvml, device);
  gpu.processes = list_processes(nvml, device);
  return kSuccess;
}

GpuPair examine_pair(const Nvml& nvml, Device a, Device b) {
  enum Question : int { kRead = 0, kNvlink = 2 };
  GpuPair pair{};
  int status = 0;  // 0: yes
  if (ask(nvml.get_p2p_status, a, b, static_cast<int>(kRead), &status)) {
    pair.peer_access = status == 0;
  }
  int level = 0;
  if (ask(nvml.get_p2p_status, a, b, static_cast<int>(kNvlink), &status) && status == 0) {
    pair.path = "NVLink";
  } else if (ask(nvml.get_common_ancestor, a, b, &level)) {
    pair.path = level <= 10 ? "PIX" : level <= 20 ? "PXB" : level <= 30 ? "PHB" : level <= 40 ? "NODE" : "SYS";
  }
  return pair;
}

void examine_all(const Nvml& nvml, DriverDetails& driver) {
  std::array<char, 96> text{};
  if (ask(nvml.get_driver_version, text.data(), static_cast<unsigned>(text.size()))) {
    driver.version = text.data();
  }
  if (int version = 0; ask(nvml.get_cuda_version, &version)) {
    driver.cuda_version = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  }
  unsigned count = 0;
  if (const Result result = nvml.get_count(&count); result != kSuccess) {
    driver.note = fmt::format("the NVIDIA driver cannot count the GPUs: {}", nvml.error_string(result));
    return;
  }
  std::vector<std::pair<int, Device>> answering;
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    GpuDetails gpu{.number = static_cast<int>(index)};
    Result result = nvml.get_handle(index, &device);
    result = result == kSuccess ? examine(nvml, device, gpu) : result;
    if (result == kSuccess) {
      answering.emplace_back(gpu.number, device);
    } else if (result == kNoPermission) {
      gpu.hidden = true;
    } else {
      gpu.error = nvml.error_string(result);
    }
    driver.gpus.push_back(std::move(gpu));
  }
  for (auto a = answering.begin(); a != answering.end(); ++a) {
    for (auto b = std::next(a); b != answering.end(); ++b) {
      GpuPair pair = examine_pair(nvml, a->second, b->second);
      pair.a = a->first;
      pair.b = b->first;
      driver.pairs.push_back(std::move(pair));
    }
  }
}

struct WhyNot {
  DriverState state = DriverState::absent;
  std::string text{};
};

/// The library with NVML started, or the reason why there is none.
class Driver {
 public:
  explicit Driver(const char* library) : handle_(dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) {
      why_not_ = {DriverState::absent, fmt::format("no NVIDIA driver ({} cannot be loaded)", library)};
      return;
    }
    nvml_.emplace(handle_.get());
    if (nvml_->missing != nullptr) {
      why_not_ = {DriverState::unusable,
                  fmt::format("the NVIDIA driver is too old ({} has no {})", library, nvml_->missing)};
      nvml_.reset();
    } else if (const Result result = nvml_->init(); result != kSuccess) {
      why_not_ = {DriverState::unusable,
                  fmt::format("the NVIDIA driver does not start: {}", nvml_->error_string(result))};
      nvml_.reset();
    }
  }
  ~Driver() {
    if (nvml_) {
      nvml_->shutdown();
    }
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const Nvml* nvml() const noexcept { return nvml_ ? &*nvml_ : nullptr; }
  const WhyNot& why_not() const noexcept { return why_not_; }

 private:
  std::unique_ptr<void, CloseLibrary> handle_;
  std::optional<Nvml> nvml_{};
  WhyNot why_not_{};
};

/// Null: there is none with this UUID.
Device find_gpu(const Nvml& nvml, const std::string& uuid) {
  unsigned gpus = 0;
  nvml.get_count(&gpus);
  for (unsigned index = 0; index < gpus; ++index) {
    Device device = nullptr;
    Gpu gpu{};
    if (nvml.get_handle(index, &device) == kSuccess && describe(nvml, device, gpu) == kSuccess && gpu.uuid == uuid) {
      return device;
    }
  }
  return nullptr;
}

}  // namespace

NvmlFacts query_nvml(const char* library) {
  const Driver driver(library);
  return driver.nvml() != nullptr ? list_gpus(*driver.nvml()) : NvmlFacts{.note = driver.why_not().text};
}

DriverDetails query_driver(const char* library) {
  const Driver driver(library);
  DriverDetails details{.state = DriverState::running};
  if (driver.nvml() != nullptr) {
    examine_all(*driver.nvml(), details);
  } else {
    details.state = driver.why_not().state;
    details.note = driver.why_not().text;
  }
  return details;
}

std::vector<GpuProcess> gpu_processes(const std::string& uuid, const char* library) {
  const Driver driver(library);
  const Device device = driver.nvml() != nullptr ? find_gpu(*driver.nvml(), uuid) : nullptr;
  return device != nullptr ? list_processes(*driver.nvml(), device) : std::vector<GpuProcess>();
}

struct GpuLoadReader::Impl {
  explicit Impl(const char* library) : driver(library) {}
  Driver driver;
  Device device = nullptr;  // null: no such GPU
};

GpuLoadReader::GpuLoadReader(const std::string& uuid, const char* library) : impl_(std::make_unique<Impl>(library)) {
  if (const Nvml* nvml = impl_->driver.nvml()) {
    impl_->device = find_gpu(*nvml, uuid);
  }
}

GpuLoadReader::~GpuLoadReader() = default;

GpuLoad GpuLoadReader::read() const {
  constexpr int kOfTheGpu = 0;
  GpuLoad load{};
  if (impl_->device == nullptr) {
    return load;
  }
  const Nvml& nvml = *impl_->driver.nvml();
  if (Utilization used{}; ask(nvml.get_utilization, impl_->device, &used)) {
    load.percent = used.gpu;
  }
  load.power_w = watts(nvml.get_power, impl_->device);
  if (unsigned celsius = 0; ask(nvml.get_temperature, impl_->device, kOfTheGpu, &celsius)) {
    load.celsius = celsius;
  }
  return load;
}

std::vector<GpuProcess> others_than(std::int64_t pid, std::vector<GpuProcess> processes) {
  const bool is_listed = std::erase_if(processes, [&](const GpuProcess& process) { return process.pid == pid; }) > 0;
  return is_listed ? processes : std::vector<GpuProcess>();
}

}  // namespace lockstep
