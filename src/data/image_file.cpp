#include "data/image_file.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <spng.h>
#include <turbojpeg.h>

#include <lockstep/base/error.h>

namespace lockstep {

namespace {

using PngDecoder = std::unique_ptr<spng_ctx, decltype(&spng_ctx_free)>;
using JpegDecoder = std::unique_ptr<void, decltype(&tjDestroy)>;

bool starts_with(std::span<const std::byte> file, std::span<const unsigned char> magic) {
  return file.size() >= magic.size() && std::ranges::equal(file.first(magic.size()), std::as_bytes(magic));
}

void decode_png(std::span<const std::byte> file, const AllocateImage& allocate) {
  const auto check = [](int error) {
    if (error != SPNG_OK) {
      throw DataError(fmt::format("invalid PNG file: {}", spng_strerror(error)));
    }
  };
  const PngDecoder decoder(spng_ctx_new(0), &spng_ctx_free);
  spng_ihdr header{};
  std::size_t bytes = 0;
  check(spng_set_png_buffer(decoder.get(), file.data(), file.size()));
  check(spng_get_ihdr(decoder.get(), &header));
  check(spng_decoded_image_size(decoder.get(), SPNG_FMT_RGB8, &bytes));
  check(spng_decode_image(decoder.get(), allocate(header.height, header.width), bytes, SPNG_FMT_RGB8, 0));
}

// Programs store C, M, Y, K inverted: 255 is no ink.
void cmyk_to_rgb(std::span<const std::uint8_t> cmyk, std::uint8_t* rgb) {
  for (std::size_t i = 0; i < cmyk.size(); i += 4) {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      *rgb++ = static_cast<std::uint8_t>((cmyk[i + channel] * cmyk[i + 3] + 127) / 255);
    }
  }
}

void decode_jpeg(std::span<const std::byte> file, const AllocateImage& allocate) {
  const JpegDecoder decoder(tjInitDecompress(), &tjDestroy);
  // Decoders accept many small faults; missing data must not become a grey area.
  const auto check = [&](int status) {
    const std::string_view message = tjGetErrorStr2(decoder.get());
    if (status != 0 &&
        (tjGetErrorCode(decoder.get()) == TJERR_FATAL || message.find("remature end") != std::string_view::npos)) {
      throw DataError(fmt::format("invalid JPEG file: {}", message));
    }
  };
  const auto* const data = reinterpret_cast<const unsigned char*>(file.data());
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colors = 0;
  check(tjDecompressHeader3(decoder.get(), data, file.size(), &width, &height, &subsampling, &colors));
  const auto decode = [&](unsigned char* pixels, int format) {
    check(tjDecompress2(decoder.get(), data, file.size(), pixels, width, /*pitch=*/0, height, format,
                        TJFLAG_ACCURATEDCT));
  };
  std::uint8_t* const rgb = allocate(height, width);
  if (colors == TJCS_CMYK || colors == TJCS_YCCK) {
    std::vector<std::uint8_t> cmyk(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 4);
    decode(cmyk.data(), TJPF_CMYK);
    cmyk_to_rgb(cmyk, rgb);
  } else {
    decode(rgb, TJPF_RGB);
  }
}

}  // namespace

void check_image_decoders() {}

void decode_image(std::span<const std::byte> file, const AllocateImage& allocate) {
  constexpr std::array<unsigned char, 8> kPng = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  constexpr std::array<unsigned char, 3> kJpeg = {0xff, 0xd8, 0xff};
  if (starts_with(file, kPng)) {
    decode_png(file, allocate);
  } else if (starts_with(file, kJpeg)) {
    decode_jpeg(file, allocate);
  } else {
    throw DataError(fmt::format("found {} bytes that are no PNG or JPEG file", file.size()));
  }
}

}  // namespace lockstep
