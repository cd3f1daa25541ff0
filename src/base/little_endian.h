// Little-endian integers in the bytes of a file. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// The unsigned integer that the bytes are, at most eight of them.
constexpr std::uint64_t little_endian(std::string_view bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

/// The same in two's complement.
constexpr std::int64_t signed_little_endian(std::string_view bytes) noexcept {
  if (bytes.empty()) {
    return 0;
  }
  const auto unused = 64 - 8 * bytes.size();
  return static_cast<std::int64_t>(little_endian(bytes) << unused) >> unused;
}

/// Appends the lowest `size` bytes of the value. `out`: a string or a vector of bytes.
template <class Bytes>
void append_little_endian(Bytes& out, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    out.push_back(static_cast<typename Bytes::value_type>(value >> (8 * i) & 0xff));
  }
}

}  // namespace lockstep
