#include <cstdlib>
#include <filesystem>
#include <typeinfo>

#include <dlfcn.h>
#include <fmt/format.h>

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>

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

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout) {
  using Make = c10d::Backend* (*)(c10d::Store*, int, int, int, long);
  const auto make = reinterpret_cast<Make>(dlsym(cuda_library(), "lockstep_make_nccl_backend"));
  if (make == nullptr) {
    throw CommError(fmt::format("{} has no NCCL: {}", kLibrary, dlerror()), "use --backend gloo", ExitCode::usage);
  }
  // Note [NCCL policy]: by default NCCL's watchdog thread ends the process with SIGABRT when a collective fails or
  // times out. With 2 it only cleans up, and World throws a CommError before any later result is used or saved. If a
  // rank still hangs in NCCL, the supervisor or the monitor ends it.
  const ScopedVariable policy("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  try {
    return c10::intrusive_ptr<c10d::Backend>::reclaim(make(store.get(), rank, size, device.index(), timeout.count()));
  } catch (const c10::Error& error) {
    throw CommError(fmt::format("NCCL cannot start on {}: {}", device.str(), error.what_without_backtrace()),
                    "use --backend gloo, or set NCCL_DEBUG=INFO to see why");
  }
}

}  // namespace lockstep
