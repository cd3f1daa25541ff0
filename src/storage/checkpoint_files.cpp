#include "storage/checkpoint_files.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/safetensors.h>

#include "base/assertion.h"
#include "base/crc32c.h"
#include "base/text.h"
#include "storage/manifest.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

constexpr std::string_view kSafetensors = ".safetensors";

/// Whether the error says that the file is not the one that was saved. All others, such as EACCES, ESTALE, EMFILE and
/// ETIMEDOUT, say that nobody can tell now: the same file may be readable at the next start.
bool is_damage(const IoError& error) {
  switch (error.number()) {
    case 0:  // it ends before the size that it had, or is larger than the limit
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENXIO:  // no regular file
    case EUCLEAN:
    case EBADMSG:  // a checksum of the file system is wrong
    // A sector that cannot be read stays so: if this were no damage, a run could never continue past it. A whole disk
    // that fails makes all checkpoints unreadable, and then nothing is renamed.
    case EIO:
      return true;
    default:
      return false;
  }
}

// Calls `function`; an error that speaks of the content becomes damage of `where`.
template <typename Function>
auto as_damage(const std::string& where, const Function& function) {
  try {
    return function();
  } catch (const IoError& error) {
    if (!is_damage(error)) {
      throw;
    }
    throw CheckpointError(where + ": " + error.what(), error.hint());
  }
}

std::string where(const Path& file) { return (file.parent_path().filename() / file.filename()).string(); }

// Reads a file of a checkpoint once, each chunk into the memory that `place(offset, size)` returns, and verifies each
// chunk after reading. Throws: CheckpointError naming file, chunk and offset.
template <typename Place>
void read_checked(FileSystem& fs, const Path& path, const Manifest::File& entry, const Place& place) {
  const std::string name = where(path);
  as_damage(name, [&] {
    if (!fs.exists(path)) {
      throw CheckpointError(name + ": missing");
    }
    const auto file = fs.open(path);
    if (file->size() != entry.size) {
      throw CheckpointError(fmt::format("{}: found {} bytes, expected {}", name, file->size(), entry.size));
    }
    for (std::size_t chunk = 0; chunk < entry.crc32c.size(); ++chunk) {
      const std::int64_t offset = static_cast<std::int64_t>(chunk) * kChunkBytes;
      const std::span<std::byte> bytes = place(offset, std::min(kChunkBytes, entry.size - offset));
      file->read(offset, bytes);
      if (const std::uint32_t crc = crc32c(bytes); crc != entry.crc32c[chunk]) {
        throw CheckpointError(fmt::format("{} chunk {} (offset {} MiB): checksum {:08x}, expected {:08x}", name, chunk,
                                          offset >> 20, crc, entry.crc32c[chunk]));
      }
    }
  });
}

// For fresh memory: allocating small pages takes longer than reading the file.
void advise_huge_pages(std::span<std::byte> bytes) {
  constexpr std::size_t kHugePage = 2 << 20;
  void* begin = bytes.data();
  std::size_t space = bytes.size();
  if (std::align(kHugePage, kHugePage, begin, space) != nullptr) {
    ::madvise(begin, space / kHugePage * kHugePage, MADV_HUGEPAGE);  // only a hint: ignore errors
  }
}

}  // namespace

Manifest CheckpointFiles::manifest() const {
  if (!fs_.exists(directory_)) {
    throw CheckpointError(
        fmt::format("{}: no such checkpoint in {}", directory_.filename().string(), directory_.parent_path().string()));
  }
  const Path file = directory_ / kManifestName;
  const std::string name = where(file);
  const std::string text = as_damage(name, [&] {
    if (!fs_.exists(file)) {
      throw CheckpointError(name + ": missing");
    }
    return read_file(fs_, file, kMaxManifestBytes);
  });
  Manifest manifest = parse_manifest(text, name);
  if (manifest.step != step_) {
    throw CheckpointError(fmt::format("{}: found step {}, expected {}", name, manifest.step, step_));
  }
  return manifest;
}

Manifest CheckpointFiles::verify() const {
  Manifest manifest = this->manifest();
  std::vector<std::byte> buffer;
  for (const Manifest::File& entry : manifest.files) {
    buffer.resize(static_cast<std::size_t>(std::min(entry.size, kChunkBytes)));
    read_checked(fs_, directory_ / entry.name, entry, [&](std::int64_t /*offset*/, std::int64_t size) {
      return std::span(buffer).first(static_cast<std::size_t>(size));
    });
    if (entry.name.ends_with(kSafetensors)) {
      const Path file = directory_ / entry.name;
      as_damage(where(file), [&] { SafetensorsReader(fs_.open(file), where(file)); });
    }
  }
  return manifest;
}

void CheckpointFiles::read(const Manifest::File& file, std::span<std::byte> out) const {
  LOCKSTEP_ASSERT(static_cast<std::int64_t>(out.size()) == file.size, "the buffer must have the size of the file");
  advise_huge_pages(out);
  read_checked(fs_, directory_ / file.name, file, [&](std::int64_t offset, std::int64_t size) {
    return out.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
  });
}

std::string CheckpointFiles::read(const std::string& name, std::int64_t max_bytes) const {
  const Manifest manifest = this->manifest();
  const auto entry = std::ranges::find(manifest.files, name, &Manifest::File::name);
  if (entry == manifest.files.end()) {
    throw CheckpointError(fmt::format("{}/{}: not in the manifest", directory_.filename().string(), printable(name)));
  }
  const Path file = directory_ / name;
  if (entry->size > max_bytes) {
    throw CheckpointError(fmt::format("{}: found {} bytes, expected at most {}", where(file), entry->size, max_bytes));
  }
  std::string text(static_cast<std::size_t>(entry->size), '\0');
  read_checked(fs_, file, *entry, [&](std::int64_t offset, std::int64_t size) {
    return std::as_writable_bytes(std::span(text))
        .subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
  });
  return text;
}

}  // namespace lockstep
