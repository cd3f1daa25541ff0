// Settings that CUDA's libraries read once, so they are made before the first test.
#include <cstdlib>

namespace {

// cuBLAS gives the same bits in every run only with a workspace of its own per stream.
[[maybe_unused]] const int workspace = setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);

}  // namespace
