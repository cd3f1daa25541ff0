#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep {
namespace {

// Reflected.
constexpr std::uint32_t kCastagnoli = 0x82f63b78;  // 0x1edc6f41
constexpr std::uint32_t kIeee = 0xedb88320;        // 0x04c11db7

using Table = std::array<std::array<std::uint32_t, 256>, 8>;

/// table[k][b]: the effect of byte b when k more bytes follow it.
constexpr Table make_table(std::uint32_t polynomial) {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    }
    table[0][byte] = crc;
  }
  for (std::size_t k = 1; k < table.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
    }
  }
  return table;
}

constexpr Table kCastagnoliTable = make_table(kCastagnoli);
constexpr Table kIeeeTable = make_table(kIeee);

std::uint32_t extend_portable(const Table& table, std::uint32_t crc, const std::byte* data, std::size_t size) noexcept {
  for (; size >= 8; data += 8, size -= 8) {
    const auto at = [data](std::size_t i) { return std::to_integer<std::uint32_t>(data[i]); };
    crc ^= at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24;
    crc = table[7][crc & 0xff] ^ table[6][crc >> 8 & 0xff] ^ table[5][crc >> 16 & 0xff] ^ table[4][crc >> 24] ^
          table[3][at(4)] ^ table[2][at(5)] ^ table[1][at(6)] ^ table[0][at(7)];
  }
  for (; size > 0; ++data, --size) {
    crc = (crc >> 8) ^ table[0][(crc ^ std::to_integer<std::uint32_t>(*data)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

constexpr std::size_t kLane =
    4096;  // the instruction has a latency of three cycles and starts every cycle: use three lanes

/// Appending zero bytes is linear in the checksum, so four lookups advance a checksum over a whole lane.
struct LaneShift {
  std::array<std::array<std::uint32_t, 256>, 4> table{};

  LaneShift() {
    const std::array<std::byte, kLane> zeros{};
    std::array<std::uint32_t, 32> of_bit{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
      of_bit[bit] = extend_portable(kCastagnoliTable, std::uint32_t{1} << bit, zeros.data(), kLane);
    }
    for (std::size_t place = 0; place < 4; ++place) {
      for (std::size_t byte = 0; byte < 256; ++byte) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          table[place][byte] ^= (byte >> bit & 1) != 0 ? of_bit[8 * place + bit] : 0;
        }
      }
    }
  }

  std::uint32_t operator()(std::uint32_t crc) const noexcept {
    return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
  }
};

__attribute__((target("sse4.2"))) inline std::uint64_t step8(std::uint64_t crc, const std::byte* data) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return _mm_crc32_u64(crc, word);
}

__attribute__((target("sse4.2"))) std::uint32_t extend_sse42(std::uint32_t crc, const std::byte* data,
                                                             std::size_t size) noexcept {
  static const LaneShift shift;
  std::uint64_t first = crc;
  for (; size >= 3 * kLane; data += 3 * kLane, size -= 3 * kLane) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      first = step8(first, data + i);
      second = step8(second, data + kLane + i);
      third = step8(third, data + 2 * kLane + i);
    }
    const std::uint32_t two = shift(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    first = shift(two) ^ static_cast<std::uint32_t>(third);
  }
  for (; size >= 8; data += 8, size -= 8) {
    first = step8(first, data);
  }
  crc = static_cast<std::uint32_t>(first);
  for (; size > 0; ++data, --size) {
    crc = _mm_crc32_u8(crc, std::to_integer<unsigned char>(*data));
  }
  return crc;
}

bool has_sse42() noexcept {
  static const bool yes = __builtin_cpu_supports("sse4.2") != 0;
  return yes;
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
#if defined(__x86_64__)
  if (has_sse42()) {
    return ~extend_sse42(~crc, bytes.data(), bytes.size());
  }
#endif
  return crc32c_portable(bytes, crc);
}

std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  return ~extend_portable(kCastagnoliTable, ~crc, bytes.data(), bytes.size());
}

std::uint32_t crc32_of_zip(std::span<const std::byte> bytes) noexcept {
  return ~extend_portable(kIeeeTable, ~std::uint32_t{0}, bytes.data(), bytes.size());
}

}  // namespace lockstep
