// What LibTorch's CUDA half tells about itself. A build without CUDA has a version that knows of nothing.
#pragma once

#include <cstdint>

namespace lockstep {

/// In bytes.
struct GpuMemory {
  std::int64_t allocated = 0;  ///< by tensors
  std::int64_t peak = 0;       ///< of `allocated`, since the last reset_peak()
  std::int64_t reserved = 0;   ///< from the driver
  std::int64_t pinned = 0;     ///< page-locked on the host, in use or kept
};

/// Of the calling thread's GPU. Waits for it first.
GpuMemory gpu_memory();
void reset_peak();

/// While true, LibTorch throws where it would make the host wait for the GPU.
void fail_on_synchronization(bool on);

/// LibTorch's own libraries see what fail_on_synchronization() sets. Needs no GPU.
bool synchronization_mode_is_shared();

/// Keeps the current stream of the GPU busy for about this time; the host does not wait.
void occupy_current_stream(double milliseconds);

/// True if this process has opened that GPU.
bool has_context_on(int gpu);

}  // namespace lockstep
