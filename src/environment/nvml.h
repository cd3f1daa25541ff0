// The GPUs of the machine according to NVML: needs no CUDA context and also finds GPUs that CUDA_VISIBLE_DEVICES hides.
// Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/environment/hardware.h>

namespace lockstep {

struct NvmlFacts {
  std::vector<Gpu> gpus{};  ///< in PCI bus order
  std::string note{};       ///< why there are none, or which GPU does not answer
};

/// Never throws: a missing driver or GPU is described in `note`.
NvmlFacts query_nvml(const char* library = "libnvidia-ml.so.1");

struct GpuProcess {
  std::int64_t pid = 0;
  std::int64_t bytes = 0;
};

enum class DriverState { absent, unusable, running };

enum class GpuComputeMode { shared, exclusive, prohibited };

/// A whole GPU, divided into instances or not.
struct GpuDetails {
  int number = 0;       ///< NVML's, in PCI bus order
  std::string error{};  ///< why it does not answer; the rest is then not known
  bool hidden = false;  ///< it belongs to others: this process has no permission
  std::string name{};
  std::string uuid{};
  std::string pci_bus_id{};
  std::string compute_capability{};  ///< "9.0"
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;
  GpuComputeMode compute_mode = GpuComputeMode::shared;
  std::optional<bool> ecc{};
  std::int64_t uncorrected_errors = 0;  ///< ECC errors since the driver was loaded
  std::optional<int> mig_instances{};   ///< nullopt: not in MIG mode
  std::optional<double> power_limit_w{};
  std::optional<double> default_power_limit_w{};
  int nvlinks = 0;  ///< active ones
  std::vector<GpuProcess> processes{};
};

/// Two GPUs of a machine.
struct GpuPair {
  int a = 0;
  int b = 0;
  /// What lies between them, in the words of nvidia-smi: "NVLink", "PIX" and "PXB" (PCI bridges), "PHB" (the CPU's
  /// bridge), "NODE", "SYS" (another NUMA node); "": not known.
  std::string path{};
  std::optional<bool> peer_access{};  ///< each can read the memory of the other
};

struct DriverDetails {
  DriverState state = DriverState::absent;
  std::string note{};          ///< why it is not running, or cannot count the GPUs
  std::string version{};       ///< "580.65.06"
  std::string cuda_version{};  ///< newest CUDA that it supports: "13.0"
  std::vector<GpuDetails> gpus{};
  std::vector<GpuPair> pairs{};  ///< of the GPUs that answer
};

/// All that a report on the machine needs. Never throws.
DriverDetails query_driver(const char* library = "libnvidia-ml.so.1");

/// What a GPU does at the moment; what it does not tell is empty.
struct GpuLoad {
  std::optional<double> percent{};  ///< of the time in which it computed, over the last second or less
  std::optional<double> power_w{};
  std::optional<double> celsius{};
};

/// Keeps the driver's library open, because starting it takes milliseconds.
class GpuLoadReader {
 public:
  explicit GpuLoadReader(const std::string& uuid, const char* library = "libnvidia-ml.so.1");
  ~GpuLoadReader();
  GpuLoadReader(const GpuLoadReader&) = delete;
  GpuLoadReader& operator=(const GpuLoadReader&) = delete;

  /// Never throws. All empty: there is no driver, or no such GPU.
  GpuLoad read() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The processes that use the GPU with this UUID; {}: none, or not known.
std::vector<GpuProcess> gpu_processes(const std::string& uuid, const char* library = "libnvidia-ml.so.1");

/// The processes without `pid`, which uses the GPU; {} if it is not listed: below a container the driver's numbers are
/// those of the host, and here they name other processes. Pure.
std::vector<GpuProcess> others_than(std::int64_t pid, std::vector<GpuProcess> processes);

}  // namespace lockstep
