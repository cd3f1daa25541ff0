// Images as PNG files. Torch-free.
#pragma once

#include <string>

#include <lockstep/report/metric_sink.h>

namespace lockstep {

/// The bytes of a PNG file. They are not compressed.
std::string png(const Image& image);

}  // namespace lockstep
