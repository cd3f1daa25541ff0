#include "environment/build_info.h"

namespace lockstep {

bool built_with_cuda() noexcept { return LOCKSTEP_CUDA_BUILT != 0; }
bool built_with_nccl() noexcept { return LOCKSTEP_NCCL_BUILT != 0; }

}  // namespace lockstep
