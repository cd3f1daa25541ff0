// What `lockstep doctor` and `lockstep system` know about this machine, without judgement. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/variables.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/environment/identity.h>

#include "environment/build_info.h"
#include "environment/cpu_topology.h"
#include "environment/nvml.h"

namespace lockstep {

/// A library that programs of this build load.
struct LibraryFacts {
  std::string version{};  ///< "2.28.9"; "": not known
  std::string file{};     ///< "": none, or it is a part of LibTorch
  std::string problem{};  ///< why the version is not known
};

struct CudaLibraries {
  LibraryFacts nccl{};
  LibraryFacts cudnn{};
};

struct BuildFacts {
  std::string version{};
  std::string build_id{};
  std::string compiler{};
  LibTorchBuild libtorch{};
  LibraryFacts libtorch_library{};  ///< for the ranks of `lockstep test`; without a version
  bool cuda = false;
  bool nccl = false;
  CudaLibraries libraries{};  ///< if `cuda`
};

/// nullopt: unlimited.
struct ResourceLimit {
  std::optional<std::int64_t> soft{};
  std::optional<std::int64_t> hard{};
};

struct MachineFacts {
  std::string kernel{};  ///< "Linux 6.1.0-18-amd64 x86_64"
  std::string libc{};    ///< "glibc 2.36"
  bool root = false;
  int cores_present = 1;
  CpuTopology cpu{};
  std::int64_t available_memory_bytes = 0;            ///< of the machine or the control groups, whichever is smaller
  std::optional<std::int64_t> shared_memory_bytes{};  ///< size of /dev/shm; nullopt: it cannot be used
  ResourceLimit open_files{};
  ResourceLimit processes{};
  ResourceLimit locked_memory{};
  ResourceLimit address_space{};
  ResourceLimit file_size{};
  std::optional<std::int64_t> max_tasks{};  ///< pids.max of the control groups; nullopt: unlimited
  std::int64_t tasks = 0;                   ///< pids.current of that control group
  std::vector<std::string> infiniband{};    ///< "mlx5_0 port 1: ACTIVE"
};

struct DeviceFile {
  std::string path{};
  std::string error{};  ///< why it cannot be opened; "": it can
};

struct GpuFacts {
  DriverDetails driver{};
  std::vector<std::optional<int>> numa_nodes{};       ///< of `driver.gpus`
  std::vector<std::vector<std::string>> processes{};  ///< of `driver.gpus`: "pid 71 'train' (user x)"
  std::string kernel_module{};                        ///< version of the loaded one; "": none is loaded
  std::vector<DeviceFile> device_files{};             ///< /dev/nvidia*
  int pci_gpus = 0;                                   ///< NVIDIA's display controllers on the PCI bus
  std::vector<std::string> visible_uuids{};           ///< after CUDA_VISIBLE_DEVICES
  std::string visible_devices{};                      ///< its text; "(unset)"
  std::string device_order{};
};

struct NetworkInterface {
  std::string name{};
  std::vector<std::string> addresses{};
  bool up = false;
  bool loopback = false;
};

/// A host name or an address, as this machine resolves it.
struct ResolvedHost {
  std::string name{};
  std::vector<std::string> addresses{};
  std::string error{};
  bool here = false;  ///< one of the addresses belongs to this machine
};

struct NetworkFacts {
  std::vector<NetworkInterface> interfaces{};
  ResolvedHost host{};
  std::optional<ResolvedHost> master{};  ///< MASTER_ADDR, or what the launcher gives
  std::string route_address{};           ///< this machine's address on the way to `master`; "": not known
  std::string gloo_interface{};          ///< GLOO_SOCKET_IFNAME
  std::string nccl_interface{};          ///< NCCL_SOCKET_IFNAME
  int port = 0;
  std::string port_source{};    ///< "--port", a variable, or "default"
  bool port_is_chosen = false;  ///< not the default
  std::string port_problem{};   ///< why it cannot be used; "": it can
  std::string wrong_port{};     ///< MASTER_PORT, if it is no port and nothing needs it yet
};

struct LauncherFacts {
  std::optional<Identity> identity{};
  std::vector<Problem> problems{};                               ///< of its variables
  std::string job{};                                             ///< batch job of the scheduler; "": none
  std::optional<double> job_left_s{};                            ///< until its end
  std::vector<std::pair<std::string, std::string>> variables{};  ///< those of known_variables() that are set
  std::vector<std::string> settings{};                           ///< names of LOCKSTEP_CFG_*
  std::vector<Problem> setting_problems{};                       ///< for which each program refuses them
};
std::vector<std::string> variable_texts(const LauncherFacts& facts);  ///< "NAME=value"

struct DirectoryFacts {
  std::filesystem::path asked{};
  std::filesystem::path checked{};  ///< the nearest directory that exists
  std::string file_system{};        ///< "ext4", "nfs4"; "": not known
  std::int64_t free_bytes = 0;
  std::string failed{};        ///< the first operation that failed, "create a directory"; "": none
  std::string error{};         ///< its error
  std::string lock_problem{};  ///< "": a second lock was refused, as it should be
  double sync_s = 0;           ///< fsync of a MiB, the median of three
  double clock_skew_s = 0;     ///< the time of a new file minus the time of this machine
};

struct Facts {
  BuildFacts build{};
  MachineFacts machine{};
  GpuFacts gpus{};
  NetworkFacts network{};
  LauncherFacts launcher{};
  std::optional<DirectoryFacts> directory{};
  int ranks = 1;  ///< on this machine, for which the limits should suffice
};

struct FactsRequest {
  std::optional<std::filesystem::path> run_dir{};  ///< nullopt: only what `lockstep system` prints
  int ranks = 0;                                   ///< 0: those of the launcher, else one per visible GPU
  int port = 0;                                    ///< 0: that of the launcher, else torchrun's default
};

/// "2.28.9", or why there is no version; without directories.
std::string library_text(const BuildFacts& build, const LibraryFacts& library);
/// What ranks of programs of this build can use here.
std::vector<std::string> available_backends(const Facts& facts);
/// "gloo, shm; nccl: no GPU".
std::string backends_text(const Facts& facts);
/// "ext4", "a file system of unknown kind".
std::string file_system_text(const DirectoryFacts& directory);
/// "1024", "unlimited".
std::string limit_text(const std::optional<std::int64_t>& limit);
/// "8.0 GiB", "unlimited".
std::string byte_limit_text(const std::optional<std::int64_t>& bytes);

Facts collect_facts(const FactsRequest& request, const Variables& variables);

// Its parts.
BuildFacts collect_build_facts();
/// Of the program `user`, which is linked to it.
LibraryFacts collect_libtorch_library(const std::filesystem::path& user);
/// Of the library `user`, which is linked to them.
CudaLibraries collect_cuda_libraries(const std::filesystem::path& user);
MachineFacts collect_machine_facts();
GpuFacts collect_gpu_facts(const Variables& variables);
std::vector<NetworkInterface> collect_interfaces();
NetworkFacts collect_network_facts(const Variables& variables, const LauncherFacts& launcher, int port);
LauncherFacts collect_launcher_facts(const Variables& variables);
/// Writes some files into a new directory below `directory`, and removes it.
DirectoryFacts collect_directory_facts(FileSystem& fs, const std::filesystem::path& directory);

/// The kind of file system of an absolute path, from /proc/self/mountinfo; "": not known.
std::string file_system_of(std::string_view mountinfo, const std::filesystem::path& path);

}  // namespace lockstep
