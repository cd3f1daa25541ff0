#include "base/descriptor.h"

#include <fcntl.h>
#include <sys/syscall.h>

namespace lockstep {

// Debian 12's <sys/pidfd.h> declares the functions with C++ names; older systems do not have it.
Descriptor open_process(pid_t pid) noexcept { return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

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
