#include <dlfcn.h>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "gpu/device_probe.h"

namespace lockstep {

GpuMemory gpu_memory() {
  c10::cuda::device_synchronize();
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto device = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  const auto host = at::getHostAllocator(at::kCUDA)->get_stats();
  return {.allocated = device.allocated_bytes[kAll].current,
          .peak = device.allocated_bytes[kAll].peak,
          .reserved = device.reserved_bytes[kAll].current,
          .pinned = host.allocated_bytes.current};
}

void reset_peak() { c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device()); }

void fail_on_synchronization(bool on) {
  using Mode = c10::cuda::SyncDebugMode;
  c10::cuda::warning_state().set_sync_debug_mode(on ? Mode::L_ERROR : Mode::L_DISABLED);
}

// The mode is a variable of an inline function: each library could have its own.
bool synchronization_mode_is_shared() {
  constexpr const char* kVariable = "_ZZN3c104cuda13warning_stateEvE14warning_state_";
  for (const char* library : {"libc10_cuda.so", "libtorch_cuda.so"}) {
    void* const handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr || dlsym(handle, kVariable) != &c10::cuda::warning_state()) {
      return false;
    }
  }
  return true;
}

void occupy_current_stream(double milliseconds) {
  constexpr double kCyclesPerMillisecond = 2e6;
  at::cuda::sleep(static_cast<std::int64_t>(milliseconds * kCyclesPerMillisecond));
}

bool has_context_on(int gpu) { return c10::cuda::hasPrimaryContext(static_cast<c10::DeviceIndex>(gpu)); }

}  // namespace lockstep
