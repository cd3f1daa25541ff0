// liblockstep_cuda.so: the code that is linked to LibTorch's CUDA half and NCCL. cuda_library.cpp loads it if a plan
// needs GPUs.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#ifndef USE_C10D_NCCL
#error "USE_C10D_NCCL is not defined: the header above is silently empty"
#endif

/// Returns an owned reference. An exception passes through: both sides share one C++ runtime.
extern "C" __attribute__((visibility("default"))) c10d::Backend* lockstep_make_nccl_backend(c10d::Store* store,
                                                                                            int rank, int size,
                                                                                            int device,
                                                                                            long timeout_ms) {
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/false);
  options->timeout = std::chrono::milliseconds(timeout_ms);
  auto shared = c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store);
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(shared, rank, size, options);
  backend->setSequenceNumberForGroup();
  // Connects now, so that a machine on which NCCL does not work fails at the start, not in the first backward.
  backend->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return c10::intrusive_ptr<c10d::Backend>(std::move(backend)).release();
}
