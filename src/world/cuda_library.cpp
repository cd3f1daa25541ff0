#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <typeinfo>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>

#include "base/text.h"
#include "world/device_graph.h"
#include "world/peer_errors.h"
#include "world/process_group.h"

namespace lockstep {

namespace {

constexpr const char* kLibrary = "liblockstep_cuda.so";

void* cuda_library() {
  static void* const library = [] {
    Dl_info self{};
    if (dladdr(reinterpret_cast<const void*>(&load_cuda), &self) == 0) {
      throw LaunchError("cannot find this library's own file", "reinstall lockstep");
    }
    const auto file = std::filesystem::path(self.dli_fname).parent_path() / kLibrary;
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      throw LaunchError(
          fmt::format("cannot load {}: {}", file.string(), dlerror()),
          "build lockstep with -DLOCKSTEP_WITH_CUDA=ON against a LibTorch with CUDA, or use --compute_setup cpu");
    }
    return handle;
  }();
  return library;
}

}  // namespace

ScopedVariable::ScopedVariable(const char* name, const char* value)
    : name_(name), is_ours_(!read_environment().has(name)) {
  if (is_ours_) {
    setenv(name_, value, /*overwrite=*/0);
  }
}

ScopedVariable::~ScopedVariable() {
  if (is_ours_) {
    unsetenv(name_);
  }
}

// LibTorch looks for its CUDA half only once, at the first use that depends on CUDA, such as a backward. If it is not
// loaded by then, LibTorch never finds it.
void load_cuda() {
  cuda_library();
  if (typeid(at::detail::getCUDAHooks()) == typeid(at::CUDAHooksInterface)) {
    throw LaunchError(
        "LibTorch decided that there is no CUDA before lockstep loaded it",
        "call lockstep::run, or make the Session, before this process's first backward, torch::manual_seed, "
        "torch::cuda::is_available or pin_memory");
  }
}

std::string nccl_version() {
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int number = 0;  // 22809
  return get != nullptr && get(&number) == 0 ? library_version(number) : std::string();
}

// Note [NCCL policy]: by default, if a collective fails or times out, NCCL's watchdog thread ends the process with
// SIGABRT, after a minute in which it waits for a dump. A second thread does the same if another rank has asked for a
// dump, even in an earlier attempt that used the same store. With these values the watchdog notes the failure and
// aborts the kernels that wait for the lost peer. World looks at the note whenever it waits for the device, and throws
// a CommError before any later result is used or saved. If a rank hangs in NCCL all the same, the supervisor or the
// monitor ends it. The watchdog would also end the process at every other error of CUDA, which it sees because it
// queries events; the rank's own thread sees the same error and reports it.
//
// Between ranks of one machine NCCL would listen on any interface that is up: that of a VPN or a container may end
// before the run does.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout,
                                                    bool on_one_machine) {
  using Make = c10d::Backend* (*)(c10d::Store*, int, int, int, long);
  const auto make = reinterpret_cast<Make>(dlsym(cuda_library(), "lockstep_make_nccl_backend"));
  if (make == nullptr) {
    throw CommError(fmt::format("{} has no NCCL: {}", kLibrary, dlerror()), "use --backend gloo", ExitCode::usage);
  }
  const ScopedVariable only_clean_up("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  const ScopedVariable no_second_watchdog("TORCH_NCCL_ENABLE_MONITORING", "0");
  const ScopedVariable no_rethrow("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0");
  const ScopedVariable no_dump("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  const ScopedVariable no_wait_for_dump("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0");
  const ScopedVariable connect_now("NCCL_RUNTIME_CONNECT", "0");  // not in the first collective
  std::optional<ScopedVariable> interface;
  if (on_one_machine) {
    interface.emplace("NCCL_SOCKET_IFNAME", "lo");
  }
  try {
    return c10::intrusive_ptr<c10d::Backend>::reclaim(make(store.get(), rank, size, device.index(), timeout.count()));
  } catch (const c10::Error& error) {
    throw CommError(fmt::format("NCCL cannot start on {}: {}", device.str(), error.what_without_backtrace()),
                    "use --backend gloo, or set NCCL_DEBUG=INFO to see why",
                    is_gpu_failure(error) ? ExitCode::failed : ExitCode::peer_lost);
  }
}

std::unique_ptr<DeviceGraph> make_cuda_graph(DeviceGraph* beside) {
  using Make = DeviceGraph* (*)(DeviceGraph*);
  const auto make = reinterpret_cast<Make>(dlsym(cuda_library(), "lockstep_make_cuda_graph"));
  if (make == nullptr) {
    throw LaunchError(fmt::format("{} has no CUDA graphs: {}", kLibrary, dlerror()),
                      "install the library that was built with this lockstep, or leave out --cuda_graphs");
  }
  return std::unique_ptr<DeviceGraph>(make(beside));
}

}  // namespace lockstep
