// A part of liblockstep_cuda.so; see nccl_process_group.cpp.
#include <cstddef>
#include <cstdint>
#include <exception>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "world/device_graph.h"

namespace lockstep {
namespace {

/// LibTorch's graph cleans up only after a capture that ended well.
class CapturedGraph final : public at::cuda::CUDAGraph {
 public:
  /// Undoes what capture_begin() did to the stream, the allocators and the random generators. Call it after a failure
  /// in capture_begin() or later.
  void abandon() noexcept {
    if (capture_dev_ == UNDEFINED_DEVICE) {
      return;
    }
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(capture_stream_, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) {
      cudaGraph_t incomplete = nullptr;
      cudaStreamEndCapture(capture_stream_, &incomplete);
      if (incomplete != nullptr) {
        cudaGraphDestroy(incomplete);
      }
    }
    cudaGetLastError();  // the next check of an error must not find this one
    for (const auto& [generator, increment] : captured_generator_states_) {
      generator->capturing_ = false;
    }
    // Each throws if the capture had already ended for it.
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(capture_dev_, mempool_id_);
    } catch (const std::exception&) {
    }
    try {
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(mempool_id_);
    } catch (const std::exception&) {
    }
    capture_ended_ = true;  // so that the destructor releases the memory
  }
};

std::int64_t reserved_bytes() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(CudaGraph* beside) : memory_(beside != nullptr ? beside->graph_.pool() : c10::MempoolId_t{}) {}

  // Other threads use the GPU meanwhile: that of autograd in the same capture, those of a loader beside it. So only
  // this thread is watched for calls that must not happen in a capture.
  void record(const std::function<void()>& work) override {
    // While it records, the allocator gives no memory back to take it for the graph. The warm-up has left much.
    c10::cuda::CUDACachingAllocator::emptyCache();
    const std::int64_t before = reserved_bytes();
    try {
      graph_.capture_begin(memory_, cudaStreamCaptureModeThreadLocal);
      work();
      graph_.capture_end();
    } catch (...) {
      graph_.abandon();
      throw;
    }
    bytes_ = reserved_bytes() - before;
  }
  std::int64_t bytes() const override { return bytes_; }
  void replay() override { graph_.replay(); }

 private:
  CapturedGraph graph_{};
  const c10::MempoolId_t memory_;  // {0, 0}: its own
  std::int64_t bytes_ = 0;
};

}  // namespace
}  // namespace lockstep

/// Returns an owned object. `beside`: nullptr, or made here.
extern "C" __attribute__((visibility("default"))) lockstep::DeviceGraph* lockstep_make_cuda_graph(
    lockstep::DeviceGraph* beside) {
  return new lockstep::CudaGraph(static_cast<lockstep::CudaGraph*>(beside));
}
