// Preloaded into a process tree under test: write(2) to files whose name ends in FAILING_FILE fails with the error
// number FAILING_ERROR, from the FAILING_FROM-th such write of a process on, FAILING_TIMES times. For tests only.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <dlfcn.h>
#include <unistd.h>

namespace {

long number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

bool is_failing_file(int fd) {
  const char* suffix = std::getenv("FAILING_FILE");
  char link[64];
  char path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = suffix == nullptr ? -1 : ::readlink(link, path, sizeof path);
  return size > 0 && std::string_view(path, static_cast<std::size_t>(size)).ends_with(suffix);
}

}  // namespace

extern "C" ssize_t write(int fd, const void* bytes, size_t count) {
  using Write = ssize_t (*)(int, const void*, size_t);
  static const auto real = reinterpret_cast<Write>(::dlsym(RTLD_NEXT, "write"));
  static std::atomic<long> writes{0};
  if (is_failing_file(fd)) {
    const long index = writes++ - number("FAILING_FROM");
    if (index >= 0 && index < number("FAILING_TIMES")) {
      errno = static_cast<int>(number("FAILING_ERROR"));
      return -1;
    }
  }
  return real(fd, bytes, count);
}
