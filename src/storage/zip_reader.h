// A ZIP archive as torch.save and torch.jit.save write it: all records lie in one top folder, and those with tensors
// are not compressed. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/base/file_system.h>

namespace lockstep {

struct ZipRecord {
  std::int64_t size = 0;    ///< in the archive
  std::int64_t header = 0;  ///< offset in the file
  std::uint32_t crc32 = 0;
  bool is_plain = true;  ///< neither compressed nor encrypted
};

/// An open archive. The constructor reads the directory at the end of the file: at most 64 MiB, and records that are
/// together not larger than the file.
class ZipReader {
 public:
  /// `name` is for messages. Throws: CheckpointError naming the file and the problem.
  ZipReader(std::unique_ptr<RandomAccessFile> file, std::string name);
  /// `record` is a name without the top folder: "data.pkl". nullptr: there is none.
  const ZipRecord* find(const std::string& record) const;
  /// `out` has the size of the record. Throws: CheckpointError (compressed, not at its place, another
  /// checksum).
  void read(const ZipRecord& record, std::span<std::byte> out) const;

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& hint = {}) const;
  std::string bytes_at(std::uint64_t offset, std::uint64_t size, const char* what) const;
  void add(std::string_view entry, std::string_view name, std::string_view extra);

  std::unique_ptr<RandomAccessFile> file_;
  std::string name_;
  std::map<std::string, ZipRecord> records_{};
  std::int64_t total_ = 0;  // bytes of all records
};

}  // namespace lockstep
