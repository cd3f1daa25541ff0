#pragma once

namespace lockstep {

/// oneMKL, which LibTorch's exp, sin, tanh, ... call on the CPU, chooses each function's kernel at its first call;
/// first calls of several threads at once may get one of low accuracy for that call (PyTorch issue 188792, some 1,000
/// ulp), and a resumed run is not bitwise the same any more. So each is called once before there are other threads.
/// Less than a millisecond, once per process.
void settle_vector_math();

}  // namespace lockstep
