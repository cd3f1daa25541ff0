#include "base/mapped_file.h"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
#include "base/io_error.h"

namespace lockstep {

std::shared_ptr<MappedFile> MappedFile::open(const Path& path) {
  // A pipe without a writer would be waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    throw_io_error("open", path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw IoError(fmt::format("cannot open {}: it is not a regular file", path.string()));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* memory = nullptr;
  if (size > 0) {
    // No reservation: the file may be larger than the memory, and few of its pages are ever written to.
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
    if (memory == MAP_FAILED) {
      throw_io_error("map", path, errno);
    }
  }
  return std::shared_ptr<MappedFile>(new MappedFile(path, {static_cast<std::byte*>(memory), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

}  // namespace lockstep
