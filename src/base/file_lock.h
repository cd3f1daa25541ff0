// Locks of whole files. A lock belongs to an open file and is released with it, also when its process is killed; who
// asks for it takes nothing, so that readers never disturb a process that is starting. Torch-free.
#pragma once

#include <fcntl.h>

#include "base/descriptor.h"

namespace lockstep {

/// What to do if the file system has no locks.
inline constexpr const char* kNoLocksHint =
    "mount the file system with locks (NFS without nolock, Lustre with flock), or use another one";

/// `fd` is open for writing. False: another open file holds the lock (errno EAGAIN), or it is not possible.
inline bool take_file_lock(int fd) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  return retry([&] { return ::fcntl(fd, F_OFD_SETLK, &whole); }) == 0;
}

/// True if another open file, of any process, holds the lock.
inline bool is_file_locked(int fd) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  return ::fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

}  // namespace lockstep
