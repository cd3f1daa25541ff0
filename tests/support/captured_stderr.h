// What a piece of a test writes to standard error.
#pragma once

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace lockstep {

/// While it exists, standard error of the process goes into it; also that of programs that are started meanwhile.
class CapturedStderr {
 public:
  CapturedStderr() : terminal_(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)), file_(memfd_create("stderr", MFD_CLOEXEC)) {
    if (terminal_ < 0 || file_ < 0) {
      throw std::system_error(errno, std::generic_category(), "standard error cannot be captured");
    }
    redirect(file_);
  }
  ~CapturedStderr() {
    end();
    close(terminal_);
    close(file_);
  }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;

  /// What was written; ends it.
  std::string text() {
    end();
    std::string result(static_cast<std::size_t>(lseek(file_, 0, SEEK_END)), '\0');
    result.resize(static_cast<std::size_t>(pread(file_, result.data(), result.size(), 0)));
    return result;
  }

 private:
  void end() {
    if (is_redirected_) {
      redirect(terminal_);
      is_redirected_ = false;
    }
  }
  static void redirect(int to) {
    std::fflush(stderr);
    dup2(to, STDERR_FILENO);
  }

  const int terminal_;
  const int file_;
  bool is_redirected_ = true;
};

}  // namespace lockstep
