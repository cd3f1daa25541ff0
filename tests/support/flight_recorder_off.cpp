// Ranks that are threads share LibTorch's flight recorder, which looks for a process group without its lock when the
// group is first used (LibTorch 2.11). The setting is read once, so it is switched off before the first test.
#include <cstdlib>

namespace {

[[maybe_unused]] const int off = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);

}  // namespace
