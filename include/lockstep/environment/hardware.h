// lockstep/environment/hardware.h
//
// What this machine is: facts, no decisions. Torch-free; no CUDA context is made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>

namespace [[gnu::visibility("default")]] lockstep {

struct Gpu {
  std::string name{};
  std::string uuid{};  ///< "GPU-..." or "MIG-..."
  std::string pci_bus_id{};
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
  bool usable = true;  ///< false: prohibited, or in exclusive mode and taken
};

struct Hardware {
  std::string host{};
  std::vector<Gpu> gpus{};                  ///< visible ones: after CUDA_VISIBLE_DEVICES, in PCI order
  int gpus_present = 0;                     ///< in the machine, visible or not
  std::string visible_devices{};            ///< text of CUDA_VISIBLE_DEVICES; "(unset)" when it is unset
  std::string device_order = "PCI_BUS_ID";  ///< CUDA_DEVICE_ORDER; ours, where nobody set it
  std::string gpu_note{};                   ///< why `gpus` is empty or shorter than expected: "no NVIDIA driver", ...
  int cores = 1;                            ///< affinity and cgroup limit of this process
  int omp_threads = 0;                      ///< OMP_NUM_THREADS; 0: not set
  std::int64_t memory_bytes = 0;            ///< of the machine or the cgroup, whichever is smaller
  bool cuda_built = false;                  ///< this lockstep was built with CUDA
  bool nccl_built = false;                  ///< ... and with NCCL
};

/// Asks NVML (loaded at run time), the affinity mask, cgroups and /proc.
Hardware probe_hardware(const Variables& variables);
Hardware probe_hardware();  ///< with this process's environment

/// Reads a machine description (JSON): {"host":..., "cores":16, "memory":"128GiB", "cuda":true, "nccl":true,
/// "visible_devices":"0,1", "gpus":[{"name":..., "uuid":..., "memory":"80GiB", "free":"79GiB", "usable":true}, ...]}
/// "gpus" are those of the machine, from which "visible_devices" chooses. Everything but "gpus" and "cores" is optional
/// ("cuda" and "nccl": true). Throws: ConfigError naming the file and every key that is wrong.
Hardware read_hardware(const std::filesystem::path& file);

/// CUDA's rules for CUDA_VISIBLE_DEVICES ("(unset)": all) over the GPUs of a machine: indices in any order, or UUIDs
/// and unique prefixes of them, or MIG names (of which a process sees the first), not mixed; the first invalid entry
/// ends the list, and a GPU named twice leaves none. Returns positions in `all`.
std::vector<int> visible_gpus(const std::vector<Gpu>& all, const std::string& visible_devices);

}  // namespace lockstep
