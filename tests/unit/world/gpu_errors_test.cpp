// What an exception says: memory ran out, this rank's GPU failed, or another rank is lost.
#include <new>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/exception_text.h"
#include "data/sample_error.h"
#include "world/out_of_memory.h"
#include "world/peer_errors.h"

namespace lockstep {
namespace {

constexpr c10::SourceLocation kHere{"test", "gpu_errors_test.cpp", 1};

c10::AcceleratorError cuda_error(const std::string& text) { return {kHere, 2, "CUDA error: " + text}; }
c10::DistBackendError nccl_error(const std::string& text) { return {kHere, "NCCL error in: x.cpp:1, " + text}; }

TEST(OutOfMemory, IsSeenInTheErrorsOfEveryLibrary) {
  EXPECT_TRUE(is_out_of_memory(c10::OutOfMemoryError(kHere, "CUDA out of memory. Tried to allocate 2 GiB")));
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::runtime_error("DefaultCPUAllocator: can't allocate memory")));
  EXPECT_TRUE(is_out_of_memory(cuda_error("out of memory\nSearch for `cudaErrorMemoryAllocation'")));
  for (const char* text :
       {"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "unhandled cuda error, NCCL version 2.28.9\nLast error:\nCuda failure 2 'out of memory'"}) {
    EXPECT_TRUE(is_out_of_memory(c10::Error(kHere, text))) << text;
  }
  EXPECT_FALSE(is_out_of_memory(cuda_error("device-side assert triggered")));
  EXPECT_FALSE(is_out_of_memory(c10::Error(kHere, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")));
}

TEST(OutOfMemory, IsSeenInTheErrorOfADataSet) {
  EXPECT_TRUE(is_out_of_memory(sample_error("sample 7", exception_text(std::bad_alloc()))));
  const c10::OutOfMemoryError of_gpu(kHere, "CUDA out of memory. Tried");
  EXPECT_TRUE(is_out_of_memory(sample_error("sample 7", exception_text(of_gpu))));
  EXPECT_FALSE(is_out_of_memory(sample_error("sample 7", "std::runtime_error: not an image")));
  const std::string hint = out_of_memory_hint(sample_error("sample 7", exception_text(std::bad_alloc())), Plan{}, 0);
  EXPECT_NE(hint.find("use fewer --data.workers"), std::string::npos) << hint;
}

TEST(OutOfMemory, AtTheStartIsNotCuredByASmallerBatch) {
  EXPECT_FALSE(is_out_of_memory(LaunchError("cannot use cuda:0: CUDA error: out of memory")));
}

TEST(PeerFailure, IsNoFailureOfThisRanksOwnGpu) {
  EXPECT_TRUE(is_peer_failure(nccl_error("remote process exited or there was a network error")));
  EXPECT_TRUE(is_peer_failure(nccl_error("unhandled system error (run with NCCL_DEBUG=INFO for details)")));
  EXPECT_TRUE(is_peer_failure(c10::DistNetworkError(kHere, "the connection was closed")));
  EXPECT_FALSE(is_peer_failure(std::runtime_error("cannot decode sample 4411")));
  const auto own = nccl_error("unhandled cuda error (run with NCCL_DEBUG=INFO for details)");
  EXPECT_FALSE(is_peer_failure(own));
  EXPECT_TRUE(is_gpu_failure(own));
  EXPECT_TRUE(is_gpu_failure(cuda_error("device-side assert triggered")));
  EXPECT_TRUE(is_gpu_failure(c10::OutOfMemoryError(kHere, "CUDA out of memory")));
  EXPECT_FALSE(is_gpu_failure(nccl_error("remote process exited or there was a network error")));
}

TEST(PeerFailure, IsReportedAsOneButAGpuFailureAsItIs) {
  const World world = World::single(c10::Device(c10::kCPU));
  EXPECT_THROW(with_peers(world, "a test", [] { throw nccl_error("remote process exited"); }), CommError);
  EXPECT_THROW(with_peers(world, "a test", [] { throw cuda_error("an illegal memory access"); }),
               c10::AcceleratorError);
  EXPECT_THROW(with_peers(world, "a test", [] { throw nccl_error("unhandled cuda error"); }), c10::DistBackendError);
}

}  // namespace
}  // namespace lockstep
