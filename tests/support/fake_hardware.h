// Fake machines for tests of plans. Torch-free.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <lockstep/environment/hardware.h>
#include <lockstep/environment/identity.h>

#include "environment/visible_devices.h"

namespace lockstep {

inline constexpr std::int64_t kGiB = std::int64_t{1} << 30;

inline Gpu fake_gpu(int number, std::int64_t free_gib = 80) {
  return {.name = "Test GPU",
          .uuid = "GPU-" + std::to_string(number) + "0000000",
          .pci_bus_id = "00000000:0" + std::to_string(number) + ":00.0",
          .memory_bytes = 80 * kGiB,
          .free_bytes = free_gib * kGiB};
}

/// A machine with CUDA and NCCL on which all GPUs are visible.
inline Hardware machine_with(int gpus, int cores = 16) {
  Hardware hardware{.host = "test",
                    .gpus_present = gpus,
                    .visible_devices = "(unset)",
                    .gpu_note = gpus == 0 ? "no NVIDIA driver" : "",
                    .cores = cores,
                    .memory_bytes = 64 * kGiB,
                    .cuda_built = true,
                    .nccl_built = true};
  for (int number = 0; number < gpus; ++number) {
    hardware.gpus.push_back(fake_gpu(number));
  }
  return hardware;
}

inline Hardware no_gpu() { return machine_with(0); }
inline Hardware one_gpu() { return machine_with(1); }
inline Hardware eight_gpus() { return machine_with(8); }

/// The same machine seen through CUDA_VISIBLE_DEVICES.
inline Hardware seen_through(Hardware hardware, const std::string& visible_devices) {
  const std::vector<Gpu> all = std::exchange(hardware.gpus, {});
  for (const int position : visible_gpus(all, visible_devices)) {
    hardware.gpus.push_back(all[static_cast<std::size_t>(position)]);
  }
  hardware.visible_devices = visible_devices;
  if (hardware.gpus.size() < all.size()) {
    hardware.gpu_note = "CUDA_VISIBLE_DEVICES=\"" + visible_devices + "\" hides some";
  }
  return hardware;
}

/// One rank of a launch over `nodes` equal nodes.
inline Identity launched(int rank, int world_size, int nodes = 1) {
  const int local = world_size / nodes;
  return {.rank = rank,
          .world_size = world_size,
          .local_rank = rank % local,
          .local_world_size = local,
          .node = rank / local,
          .nodes = nodes,
          .launcher = "torchrun",
          .variables = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
          .master_port = 29500};
}

}  // namespace lockstep
