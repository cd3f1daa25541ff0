#include "formats/mapped_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
#include "base/io_error.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse_compressed(const std::filesystem::path& path) {
  throw DataError(fmt::format("{}: found a gzip file, expected it unpacked", path.string()),
                  fmt::format("gunzip -k {}", path.string()));
}

[[noreturn]] void refuse_missing(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path packed = path;
  packed += ".gz";
  if (std::filesystem::exists(packed, ignored)) {
    refuse_compressed(packed);
  }
  throw DataError(fmt::format("{}: no such file", path.string()));
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const Path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) {
      refuse_missing(path);
    }
    throw_io_error("open", path, errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw_io_error("look at", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw DataError(fmt::format("{}: found a directory or device, expected a file", path.string()));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    throw DataError(fmt::format("{}: the file is empty", path.string()));
  }
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    throw_io_error("map", path, errno);
  }
  const std::shared_ptr<const MappedFile> mapped(new MappedFile(path, {static_cast<const std::byte*>(memory), size}));
  if (size >= 2 && mapped->bytes()[0] == std::byte{0x1f} && mapped->bytes()[1] == std::byte{0x8b}) {
    refuse_compressed(path);
  }
  return mapped;
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT: mmap's own pointer
}

}  // namespace lockstep
