// Build options of this library. Torch-free.
#pragma once

namespace lockstep {

bool built_with_cuda() noexcept;
bool built_with_nccl() noexcept;

}  // namespace lockstep
