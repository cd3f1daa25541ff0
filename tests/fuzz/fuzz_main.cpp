// libFuzzer's entry, for the one target that this program is linked with.
#include <cstddef>
#include <cstdint>

#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::fuzz::targets().front().run({reinterpret_cast<const char*>(data), size});
  return 0;
}
