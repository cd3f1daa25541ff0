// Compiles a loop for several vector widths; the program selects one when it starts. Torch-free.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOCKSTEP_VECTORIZED
#endif
