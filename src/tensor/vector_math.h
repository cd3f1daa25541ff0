#pragma once

namespace lockstep {

/// LibTorch's exp, sin, tanh, ... on the CPU call oneMKL, which chooses the kernel of each function at its first call.
/// If several threads make the first call at the same time, a call may get a kernel of low accuracy (PyTorch issue
/// 188792, about 1,000 ulp), and a resumed run is no longer bitwise equal. So this calls each function once before
/// there are other threads. It takes less than a millisecond, once per process.
void settle_vector_math();

}  // namespace lockstep
