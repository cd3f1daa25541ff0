#include "world/out_of_memory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/environment/hardware.h>

#include "base/limit_hint.h"
#include "environment/nvml.h"
#include "environment/port_owner.h"
#include "plan/memory_advice.h"

namespace lockstep {
namespace {

OutOfMemory gather_facts(const std::exception& error, const Plan& plan, std::size_t local) {
  OutOfMemory facts{.in_data_set = dynamic_cast<const DataError*>(&error) != nullptr};
  if (local >= plan.local_devices.size() || !plan.local_devices[local].id.gpu) {
    return facts;
  }
  const LocalDevice& device = plan.local_devices[local];
  facts.device = device.id;
  for (const auto& process : others_than(getpid(), gpu_processes(device.uuid))) {
    facts.tenants.push_back({.name = describe_process(static_cast<pid_t>(process.pid)), .bytes = process.bytes});
  }
  const Hardware hardware = probe_hardware();
  for (std::size_t gpu = 0; gpu < hardware.gpus.size(); ++gpu) {
    if (gpu_processes(hardware.gpus[gpu].uuid).empty()) {
      facts.free_gpus.push_back(static_cast<int>(gpu));
    }
  }
  return facts;
}

}  // namespace

// Only LibTorch's allocator for GPUs throws an error of its own. A DataError has the text of the error of a data set.
bool is_out_of_memory(const std::exception& error) noexcept {
  constexpr std::array<std::string_view, 8> kTexts{
      "std::bad_alloc",
      "CUDA out of memory",
      "DefaultCPUAllocator: can't allocate memory",
      "CUDA error: out of memory",   // page-locked memory, a context, a module of kernels
      "CUBLAS_STATUS_ALLOC_FAILED",  // the usual one where LibTorch's allocator has taken the whole GPU
      "CUDNN_STATUS_ALLOC_FAILED",
      "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
      "'out of memory'",  // NCCL: Cuda failure 2 'out of memory'
  };
  if (dynamic_cast<const LaunchError*>(&error) != nullptr) {
    return false;  // others have the memory before this rank has a batch
  }
  const std::string_view text = error.what();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         std::any_of(kTexts.begin(), kTexts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

std::string out_of_memory_hint(const std::exception& error, const Plan& plan, int local_rank) noexcept try {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
    return std::string("\n  hint: most likely a thread could not be made; ") + limit_hint(EAGAIN);
  }
  if (!is_out_of_memory(error)) {
    return {};
  }
  return "\n  hint: " + memory_advice(gather_facts(error, plan, static_cast<std::size_t>(local_rank)), plan);
} catch (const std::exception&) {
  return {};  // not enough memory for the hint
}

}  // namespace lockstep
