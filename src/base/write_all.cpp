#include "base/write_all.h"

#include <array>
#include <cerrno>

#include <unistd.h>

#include "base/descriptor.h"
#include "base/io_error.h"

namespace lockstep {

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = retry([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (written < 0) {
      throw_io_error("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void write_all_at(int fd, std::span<const std::byte> bytes, std::int64_t offset, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = retry([&] { return ::pwrite(fd, bytes.data(), bytes.size(), offset); });
    if (written < 0) {
      throw_io_error("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

std::string read_to_end(int fd) {
  std::string text;
  std::array<char, 16 << 10> part;
  for (ssize_t size = 0; (size = retry([&] { return ::read(fd, part.data(), part.size()); })) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace lockstep
