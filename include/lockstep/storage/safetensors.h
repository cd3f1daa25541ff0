// lockstep/storage/safetensors.h
//
// The safetensors format as bytes: dtype, shape, span. Torch-free. Loading executes no code, and parsing needs no more
// memory than the size of the input allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/file_system.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Names in the spelling of the format ("F32", "BF16", "I64", "U8", "BOOL", ...).
struct TensorEntry {
  std::string name{};
  std::string dtype{};
  std::vector<std::int64_t> shape{};
  std::int64_t begin = 0;  ///< byte offsets in the data section
  std::int64_t end = 0;
};

/// A tensor to write: `bytes` is contiguous, little-endian, exactly shape x item size.
struct TensorView {
  std::string name{};
  std::string dtype{};
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
};

/// Writes one file through `append`. The header lists the tensors in the given order and is padded so that the data
/// start at a multiple of 8; the data are in order of falling item size, so that every tensor is aligned. Throws:
/// CheckpointError (duplicate or empty name, size mismatch).
void write_safetensors(std::span<const TensorView> tensors, const std::map<std::string, std::string>& metadata,
                       const std::function<void(std::span<const std::byte>)>& append);

/// An open file. The constructor checks the whole header: no holes, overlaps, duplicate keys or trailing bytes; a
/// header of at most 100,000,000 bytes, 1,000,000 tensors, 16 dimensions.
class SafetensorsReader {
 public:
  /// Throws: CheckpointError naming the file and the problem.
  explicit SafetensorsReader(std::unique_ptr<RandomAccessFile> file, std::string name);
  const std::vector<TensorEntry>& entries() const noexcept { return entries_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
  void read(const TensorEntry& entry, std::span<std::byte> out) const;  ///< out.size() == end - begin
  std::int64_t data_offset() const noexcept { return data_offset_; }    ///< of the data section in the file

 private:
  std::unique_ptr<RandomAccessFile> file_;
  std::string name_;
  std::vector<TensorEntry> entries_{};
  std::map<std::string, std::string> metadata_{};
  std::int64_t data_offset_ = 0;
};

/// Parses a header (the JSON after the 8 length bytes); `data_size` is the number of bytes after it. For the reader and
/// the fuzzer.
void parse_safetensors_header(std::string_view json, std::int64_t data_size, std::vector<TensorEntry>& entries,
                              std::map<std::string, std::string>& metadata);

}  // namespace lockstep
