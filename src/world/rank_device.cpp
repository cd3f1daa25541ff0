#include "world/rank_device.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <lockstep/base/error.h>

#include "environment/cuda_driver.h"
#include "environment/visible_devices.h"
#include "world/peer_errors.h"
#include "world/process_group.h"

namespace lockstep {

c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

c10::Device start_gpu(c10::Device device, const std::vector<std::string>& uuids, std::size_t local) {
  const ScopedVariable order(kDeviceOrder, kPciOrder);  // the order in which the plan numbers GPUs
  load_cuda();
  try {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    // The numbers differ if the user has chosen another order, or if a GPU answers only one of NVML and CUDA.
    if (const auto indices = cuda_indices(uuids, cuda_gpus()); !indices.empty()) {
      device.set_index(static_cast<c10::DeviceIndex>(indices[local]));
    }
    device = with_index(device);
    const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
    cuda.setDevice(device);
    at::ones({1}, at::device(device));  // a kernel: LibTorch may have none for this kind of GPU
    cuda.synchronizeDevice(device.index());
    return device;
  } catch (const c10::Error& error) {
    throw LaunchError(fmt::format("cannot use {}: {}", device.str(), plain_text(error)),
                      "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --compute_setup cpu");
  }
}

// A wait of the driver would last as long as NCCL waits for a lost peer. The pauses are far shorter than a step, and
// the device has work for a whole step while the host waits.
void wait_for_event(const c10::Event& event, const std::function<void()>& check) {
  constexpr std::chrono::microseconds kLongestPause{500};
  for (std::chrono::microseconds pause{10}; !event.query(); pause = std::min(2 * pause, kLongestPause)) {
    check();
    std::this_thread::sleep_for(pause);
  }
  check();
}

}  // namespace lockstep
