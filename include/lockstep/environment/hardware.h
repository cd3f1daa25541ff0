// lockstep/environment/hardware.h
//
// Facts about this machine, without decisions. Torch-free; creates no CUDA context.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace [[gnu::visibility("default")]] lockstep {

/// One GPU, as NVML describes it.
struct Gpu {
  std::string name{};
  std::string uuid{};  ///< "GPU-..." or "MIG-..."
  std::string pci_bus_id{};
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
  bool usable = true;                ///< false: prohibited, or in exclusive mode and in use
  std::string compute_capability{};  ///< "9.0"; "": not known
};

/// What a machine has, and what of it this process may use.
struct Hardware {
  std::string host{};
  std::vector<Gpu> gpus{};                  ///< visible ones: after CUDA_VISIBLE_DEVICES, in PCI order
  int gpus_present = 0;                     ///< in the machine, visible or not
  std::string visible_devices{};            ///< text of CUDA_VISIBLE_DEVICES; "(unset)" when it is unset
  std::string device_order = "PCI_BUS_ID";  ///< CUDA_DEVICE_ORDER; this value if it is unset
  std::string gpu_note{};                   ///< why `gpus` is empty or shorter than expected: "no NVIDIA driver", ...
  int cores = 1;                            ///< usable by this process: affinity and cgroup limit
  int omp_threads = 0;                      ///< OMP_NUM_THREADS; 0: not set
  std::int64_t memory_bytes = 0;            ///< of the machine or the cgroup, whichever is smaller
  bool cuda_built = false;                  ///< lockstep was built with CUDA
  bool nccl_built = false;                  ///< lockstep was built with NCCL
};

/// Reads NVML (loaded at run time), the affinity mask, cgroups and /proc.
Hardware probe_hardware(const Variables& variables);
Hardware probe_hardware();  ///< reads the environment of this process

/// Reads a machine description (JSON): {"host":..., "cores":16, "memory":"128GiB", "cuda":true, "nccl":true,
/// "visible_devices":"0,1", "gpus":[{"name":..., "uuid":..., "memory":"80GiB", "free":"79GiB", "usable":true,
/// "compute_capability":"9.0"}, ...]}
/// "gpus" are the GPUs of the machine; "visible_devices" selects from them. Only "gpus" and "cores" are required
/// ("cuda" and "nccl" default to true). Throws: ConfigError naming the file and every invalid key.
Hardware read_hardware(const std::filesystem::path& file);

}  // namespace lockstep
