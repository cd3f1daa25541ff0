// Files that hold one array. Torch-free; parsing takes no memory but for the header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// Where an array lies in a file, little-endian, rows first, up to the file's end.
struct ArrayLayout {
  std::string dtype{};  ///< as safetensors names it: "F32", "U8"
  std::vector<std::int64_t> shape{};
  std::int64_t offset = 0;  ///< bytes
};

/// NumPy's format, versions 1 to 3: C order, bool, integers and floats. Throws: DataError that names no file.
ArrayLayout parse_npy(std::span<const std::byte> file);

/// The header of a .npy file whose data follow, C order. `dtype` is one of parse_npy's.
std::string npy_header(const std::string& dtype, const std::vector<std::int64_t>& shape);

/// The IDX format of MNIST: unsigned bytes, 1 to 4 dimensions. Throws: DataError that names no file.
ArrayLayout parse_idx(std::span<const std::byte> file);

}  // namespace lockstep
