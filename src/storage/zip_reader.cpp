#include "storage/zip_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/text.h"

namespace lockstep {
namespace {

// Sizes of the fixed parts, and offsets in them, are those of PKWARE's APPNOTE.TXT, sections 4.3.7 to 4.3.16.
constexpr std::size_t kLocalHeader = 30;
constexpr std::size_t kDirectoryEntry = 46;
constexpr std::size_t kEndRecord = 22;
constexpr std::size_t kZip64EndRecord = 56;
constexpr std::size_t kZip64Locator = 20;
constexpr std::uint64_t kMaxDirectoryBytes = 64 << 20;
constexpr std::uint64_t kInZip64Field = 0xffffffff;

std::uint64_t field(std::string_view bytes, std::size_t offset, std::size_t size) {
  return little_endian(bytes.substr(offset, size));
}

// The data of the extra field with number 1; empty: there is none.
std::string_view zip64_field(std::string_view extra) {
  while (extra.size() >= 4) {
    const std::uint64_t id = field(extra, 0, 2);
    const std::string_view data = extra.substr(4, field(extra, 2, 2));
    if (id == 1) {
      return data;
    }
    extra.remove_prefix(4 + data.size());
  }
  return {};
}

}  // namespace

void ZipReader::fail(const std::string& what, const std::string& hint) const {
  throw CheckpointError(name_ + ": " + what, hint);
}

std::string ZipReader::bytes_at(std::uint64_t offset, std::uint64_t size, const char* what) const {
  const auto length = static_cast<std::uint64_t>(file_->size());
  if (size > length || offset > length - size) {
    fail(fmt::format("found no {}: it would be outside of the {} bytes of the file", what, length),
         "the file is cut off or damaged; copy it again");
  }
  std::string bytes(static_cast<std::size_t>(size), '\0');
  file_->read(static_cast<std::int64_t>(offset), std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

ZipReader::ZipReader(std::unique_ptr<RandomAccessFile> file, std::string name)
    : file_(std::move(file)), name_(std::move(name)) {
  const auto size = static_cast<std::uint64_t>(file_->size());
  const std::string end = bytes_at(size - std::min<std::uint64_t>(size, kEndRecord), kEndRecord, "end of the archive");
  if (!end.starts_with("PK\5\6")) {
    fail("found no end of the archive in the last bytes", "the file is cut off or damaged; copy it again");
  }
  std::uint64_t entries = field(end, 10, 2);
  std::uint64_t directory_size = field(end, 12, 4);
  std::uint64_t directory_offset = field(end, 16, 4);
  if (size >= kEndRecord + kZip64Locator) {
    const std::string locator = bytes_at(size - kEndRecord - kZip64Locator, kZip64Locator, "end of the archive");
    if (locator.starts_with("PK\6\7")) {
      const std::string zip64_end = bytes_at(field(locator, 8, 8), kZip64EndRecord, "64-bit end of the archive");
      entries = field(zip64_end, 32, 8);
      directory_size = field(zip64_end, 40, 8);
      directory_offset = field(zip64_end, 48, 8);
    }
  }
  if (directory_size > kMaxDirectoryBytes) {
    fail(fmt::format("found a directory of {} bytes, expected at most {}", directory_size, kMaxDirectoryBytes));
  }
  const std::string directory = bytes_at(directory_offset, directory_size, "directory of the archive");
  std::string_view rest = directory;
  for (; entries > 0; --entries) {
    if (rest.size() < kDirectoryEntry || !rest.starts_with("PK\1\2")) {
      fail("the directory of the archive is damaged");
    }
    const std::string_view entry = rest.substr(0, kDirectoryEntry);
    const std::size_t name_size = field(entry, 28, 2);
    const std::size_t extra_size = field(entry, 30, 2);
    const std::size_t whole = kDirectoryEntry + name_size + extra_size + field(entry, 32, 2);
    if (rest.size() < whole) {
      fail("the directory of the archive is cut off");
    }
    add(entry, rest.substr(kDirectoryEntry, name_size), rest.substr(kDirectoryEntry + name_size, extra_size));
    rest.remove_prefix(whole);
  }
}

void ZipReader::add(std::string_view entry, std::string_view name, std::string_view extra) {
  std::string_view zip64 = zip64_field(extra);
  // The extra field has only those numbers for which there is no room in the entry, in this order.
  const auto wide = [&](std::size_t offset) {
    std::uint64_t value = field(entry, offset, 4);
    if (value == kInZip64Field && zip64.size() >= 8) {
      value = field(zip64, 0, 8);
      zip64.remove_prefix(8);
    }
    return value;
  };
  const std::uint64_t size = wide(24);
  const std::uint64_t stored_size = wide(20);
  const bool is_encrypted = (field(entry, 8, 2) & 1) != 0;
  const bool is_plain = !is_encrypted && field(entry, 10, 2) == 0 && size == stored_size;
  const std::uint64_t header = wide(42);
  const auto left = static_cast<std::uint64_t>(file_->size() - total_);
  if (stored_size > left || header > static_cast<std::uint64_t>(file_->size())) {
    fail(fmt::format("the record {} of {} bytes does not fit into the file", printable(name), stored_size));
  }
  total_ += static_cast<std::int64_t>(stored_size);
  const std::size_t slash = name.find('/');
  const std::string_view inner = slash == std::string_view::npos ? name : name.substr(slash + 1);
  const ZipRecord record{.size = static_cast<std::int64_t>(stored_size),
                         .header = static_cast<std::int64_t>(header),
                         .crc32 = static_cast<std::uint32_t>(field(entry, 16, 4)),
                         .is_plain = is_plain};
  if (!records_.try_emplace(std::string(inner), record).second) {
    fail(fmt::format("found the record {} twice", printable(inner)));
  }
}

const ZipRecord* ZipReader::find(const std::string& record) const {
  const auto found = records_.find(record);
  return found == records_.end() ? nullptr : &found->second;
}

void ZipReader::read(const ZipRecord& record, std::span<std::byte> out) const {
  LOCKSTEP_ASSERT(static_cast<std::int64_t>(out.size()) == record.size, "the buffer must have the size of the record");
  if (!record.is_plain) {
    fail(fmt::format("the record at byte {} is compressed or encrypted, expected plain bytes", record.header),
         "save the file again with torch.save");
  }
  const std::string header = bytes_at(static_cast<std::uint64_t>(record.header), kLocalHeader, "record");
  const std::int64_t begin = record.header + static_cast<std::int64_t>(kLocalHeader) +
                             static_cast<std::int64_t>(field(header, 26, 2) + field(header, 28, 2));
  if (!header.starts_with("PK\3\4") || begin > file_->size() - record.size) {
    fail(fmt::format("found no record at byte {}", record.header), "the file is damaged; copy it again");
  }
  file_->read(begin, out);
  if (const std::uint32_t found = crc32_of_zip(out); found != record.crc32) {
    fail(fmt::format("the record at byte {} has the checksum {:08x}, expected {:08x}", record.header, found,
                     record.crc32),
         "the file is damaged; copy it again");
  }
}

}  // namespace lockstep
