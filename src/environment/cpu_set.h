// A set of CPU cores of any size, as the system takes it. Torch-free.
#pragma once

#include <memory>

#include <sched.h>

namespace lockstep {

struct FreeCpuSet {
  void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, FreeCpuSet>;

}  // namespace lockstep
