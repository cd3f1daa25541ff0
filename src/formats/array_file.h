// Files that contain one array. Torch-free; parsing needs memory only for the header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Position and layout of an array in a file: little-endian, row-major, up to the end of the file.
struct ArrayLayout {
  std::string dtype{};  ///< in safetensors' spelling: "F32", "U8"
  std::vector<std::int64_t> shape{};
  std::int64_t offset = 0;  ///< bytes
};

/// NumPy's format, versions 1 to 3: C order; bool, integers or floats. Throws: DataError without a file name.
ArrayLayout parse_npy(std::span<const std::byte> file);

/// Whether parse_npy supports it.
bool has_npy_dtype(std::string_view dtype) noexcept;

/// The header of a .npy file whose data follow in C order. `dtype` is one that parse_npy supports.
std::string npy_header(const std::string& dtype, const std::vector<std::int64_t>& shape);

/// The IDX format of MNIST: unsigned bytes, 1 to 4 dimensions. Throws: DataError without a file name.
ArrayLayout parse_idx(std::span<const std::byte> file);

}  // namespace lockstep
