#include "report/png.h"

#include <cstdint>
#include <span>
#include <string_view>

#include "base/crc32c.h"

namespace lockstep {
namespace {

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(value >> shift & 0xff);
  }
  return bytes;
}

std::string chunk(std::string_view type, std::string_view data) {
  const std::string named = std::string(type) + std::string(data);
  return big_endian(static_cast<std::uint32_t>(data.size())) + named +
         big_endian(crc32_of_zip(std::as_bytes(std::span(named))));
}

std::uint32_t adler32(std::string_view bytes) {
  constexpr std::uint32_t kModulus = 65521;
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char byte : bytes) {
    a = (a + static_cast<unsigned char>(byte)) % kModulus;
    b = (b + a) % kModulus;
  }
  return b << 16 | a;
}

/// A zlib stream of blocks that are stored as they are.
std::string stored(std::string_view bytes) {
  constexpr std::size_t kMost = 65535;
  std::string stream = "\x78\x01";
  std::size_t at = 0;
  do {
    const std::string_view block = bytes.substr(at, kMost);
    at += block.size();
    stream += at == bytes.size() ? '\1' : '\0';
    for (const std::size_t size : {block.size(), ~block.size()}) {
      stream += static_cast<char>(size & 0xff);
      stream += static_cast<char>(size >> 8 & 0xff);
    }
    stream += block;
  } while (at < bytes.size());
  return stream + big_endian(adler32(bytes));
}

}  // namespace

std::string png(const Image& image) {
  const auto row_size = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels);
  std::string rows;
  for (std::size_t at = 0; at < image.pixels.size(); at += row_size) {
    rows += '\0';  // no filter
    rows += image.pixels.substr(at, row_size);
  }
  constexpr char kBits = 8;
  const char color = image.channels == 3 ? 2 : 0;
  const std::string header = big_endian(static_cast<std::uint32_t>(image.width)) +
                             big_endian(static_cast<std::uint32_t>(image.height)) +
                             std::string{kBits, color, '\0', '\0', '\0'};
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", stored(rows)) + chunk("IEND", {});
}

}  // namespace lockstep
