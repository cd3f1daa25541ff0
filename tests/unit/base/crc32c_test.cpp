#include "base/crc32c.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Bytes = std::vector<std::byte>;

Bytes repeated(std::size_t count, unsigned char value) { return Bytes(count, std::byte{value}); }

Bytes counting(std::size_t count, bool down) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(down ? count - 1 - i : i);
  }
  return bytes;
}

Bytes text(std::string_view characters) {
  const auto bytes = std::as_bytes(std::span(characters));
  return Bytes(bytes.begin(), bytes.end());
}

/// An iSCSI read command, the last example of RFC 3720, appendix B.4.
Bytes iscsi_read() {
  Bytes bytes = repeated(48, 0);
  const std::pair<std::size_t, unsigned char> set[] = {{0, 0x01},  {1, 0xc0},  {16, 0x14}, {22, 0x04},
                                                       {27, 0x14}, {31, 0x18}, {32, 0x28}, {40, 0x02}};
  for (const auto& [at, value] : set) {
    bytes[at] = std::byte{value};
  }
  return bytes;
}

struct Vector {
  Bytes bytes;
  std::uint32_t crc;
};

TEST(Crc32c, MatchesPublishedValues) {
  const Vector vectors[] = {
      {{}, 0x00000000},
      {text("a"), 0xc1d04330},
      {text("123456789"), 0xe3069283},
      {repeated(32, 0x00), 0x8a9136aa},
      {repeated(32, 0xff), 0x62a8ab43},
      {counting(32, /*down=*/false), 0x46dd794e},
      {counting(32, /*down=*/true), 0x113fdb5c},
      {iscsi_read(), 0xd9963a56},
  };
  for (const Vector& vector : vectors) {
    EXPECT_EQ(crc32c(vector.bytes), vector.crc) << vector.bytes.size() << " bytes";
    EXPECT_EQ(crc32c_portable(vector.bytes), vector.crc) << vector.bytes.size() << " bytes";
  }
}

TEST(Crc32c, IsTheSameFastAndPortable) {
  std::mt19937 random(1);
  Bytes bytes(100'000);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random() & 0xff); });
  // Around the sizes at which the fast version changes its stride, at every alignment.
  for (const std::size_t size : {1U, 7U, 8U, 9U, 63U, 4096U, 12287U, 12288U, 12289U, 24576U, 36863U, 99'992U}) {
    for (std::size_t offset = 0; offset < 8; ++offset) {
      const auto part = std::span(bytes).subspan(offset, size);
      ASSERT_EQ(crc32c(part, 0x1234), crc32c_portable(part, 0x1234)) << size << " bytes at " << offset;
    }
  }
}

TEST(Crc32c, ContinuesOverPieces) {
  const Bytes bytes = counting(30'000, /*down=*/false);
  const std::uint32_t whole = crc32c(bytes);
  for (const std::size_t cut : {0U, 1U, 13U, 12'288U, 29'999U, 30'000U}) {
    EXPECT_EQ(crc32c(std::span(bytes).subspan(cut), crc32c(std::span(bytes).first(cut))), whole) << cut;
  }
}

TEST(Crc32c, SeesEveryFlippedBit) {
  Bytes bytes = counting(64, /*down=*/false);
  const std::uint32_t whole = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    EXPECT_NE(crc32c(bytes), whole) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
  }
}

TEST(Crc32OfZip, IsTheStandardOne) {
  EXPECT_EQ(crc32_of_zip(std::as_bytes(std::span(std::string_view("123456789")))), 0xcbf43926U);
}

}  // namespace
}  // namespace lockstep
