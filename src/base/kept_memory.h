// Memory that the steps of a training use again and again. Torch-free.
#pragma once

namespace lockstep {

/// While it exists, glibc's allocator keeps freed memory, in all threads of the process. A training step frees its
/// gradients and activations together; glibc would return them to the kernel, and the next step would fault every page
/// in again. Does nothing if `wanted` is false, with another allocator, and if the user has set one of glibc's
/// variables (MALLOC_*, GLIBC_TUNABLES). Scopes may overlap, also in several threads.
class KeptMemory {
 public:
  explicit KeptMemory(bool wanted);
  ~KeptMemory();  ///< the last one: blocks of 32 MiB and more are mapped again; returns what is free
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

 private:
  const bool active_;
};

}  // namespace lockstep
