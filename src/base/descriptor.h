// A file descriptor with an owner. Torch-free.
#pragma once

#include <cerrno>
#include <utility>

#include <sys/types.h>
#include <unistd.h>

namespace lockstep {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const noexcept { return fd_; }
  bool is_open() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  /// 0 or -1. Never retried: Linux releases the descriptor even if this fails.
  int close() noexcept { return fd_ < 0 ? 0 : ::close(std::exchange(fd_, -1)); }

 private:
  int fd_ = -1;
};

/// Repeats a system call that was interrupted by a signal.
template <class Call>
auto retry(Call&& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) {
    result = call();
  }
  return result;
}

/// A descriptor that becomes readable when the process ends; not open if the process does not exist (errno ESRCH).
Descriptor open_process(pid_t pid) noexcept;

/// Opens /dev/null in place of standard descriptors that are closed. Else the next file or socket would get the number,
/// and what is printed would end up there.
void open_standard_descriptors() noexcept;

}  // namespace lockstep
