// Decoders of image files. image_file_none.cpp replaces image_file.cpp where their libraries are missing. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace lockstep {

/// Returns memory for height x width x 3 bytes.
using AllocateImage = std::function<std::uint8_t*(std::int64_t height, std::int64_t width)>;

/// Writes the pixels of a PNG or JPEG file as R, G, B, row by row. Throws: DataError without a file name.
void decode_image(std::span<const std::byte> file, const AllocateImage& allocate);

/// Throws: ConfigError naming the packages, if this build has no decoders.
void check_image_decoders();

}  // namespace lockstep
