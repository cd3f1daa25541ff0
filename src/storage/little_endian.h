// Little-endian integers in the bytes of a file. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// The unsigned integer that the bytes are, at most eight of them.
inline std::uint64_t little_endian(std::string_view bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  return value;
}

/// The same in two's complement.
inline std::int64_t signed_little_endian(std::string_view bytes) noexcept {
  if (bytes.empty()) {
    return 0;
  }
  const auto unused = 64 - 8 * bytes.size();
  return static_cast<std::int64_t>(little_endian(bytes) << unused) >> unused;
}

}  // namespace lockstep
