#include "base/descriptor.h"

#include <fcntl.h>

namespace lockstep {

void open_standard_descriptors() noexcept {
  while (true) {
    Descriptor lowest(open("/dev/null", O_RDWR));
    if (lowest.get() > STDERR_FILENO || !lowest.is_open()) {
      return;
    }
    lowest.release();
  }
}

}  // namespace lockstep
