// Interface that the two backends implement.
#pragma once

#include <chrono>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lockstep {

struct RankCoordinates;

/// Two ranks connect when they first exchange something, over `store`.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const RankCoordinates& place, std::chrono::milliseconds timeout);

/// `on_one_machine`: all ranks are on this machine, so NCCL connects them through the loopback interface.
/// Throws: CommError if this build or machine does not support it.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout,
                                                    bool on_one_machine);

/// Loads LibTorch's CUDA half. Processes that train on the CPU never call it: it would cost each of them 0.15 s and 137
/// MB.
/// Throws: LaunchError saying what is missing.
void load_cuda();

/// "2.28.9"; "": this process has not loaded NCCL, which load_cuda() does.
std::string nccl_version();

/// Sets an environment variable while it exists, if the user has not set it: CUDA and LibTorch read some variables when
/// they start. Nothing else changes the environment of this process.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value);
  ~ScopedVariable();
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  bool is_ours_;
};

/// What CUDA's libraries need for results that are the same in each run. cuBLAS and NCCL's backend look at it only at
/// their first use, which may come before the training.
struct DeterministicCuda {
  ScopedVariable workspaces{"CUBLAS_WORKSPACE_CONFIG", ":4096:8"};  // for cuBLAS inside cuDNN's recurrent layers
  ScopedVariable sums{"NCCL_ALGO", "^NVLS,NVLSTree"};               // the switch's sums have no fixed order
};

}  // namespace lockstep
