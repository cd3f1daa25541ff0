#include "formats/cifar10.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

std::int64_t count_cifar10(std::span<const std::byte> file) {
  if (file.empty() || file.size() % kCifar10Record != 0) {
    throw DataError(fmt::format("found {} bytes, expected records of {} bytes: a label and 3 x 32 x 32 pixels",
                                file.size(), kCifar10Record),
                    "use the binary version: cifar-10-binary.tar.gz");
  }
  for (std::size_t at = 0; at < file.size(); at += kCifar10Record) {
    if (const auto label = std::to_integer<int>(file[at]); label > 9) {
      throw DataError(fmt::format("sample {1} has label {0}, expected 0 to 9", label, at / kCifar10Record));
    }
  }
  return static_cast<std::int64_t>(file.size() / kCifar10Record);
}

}  // namespace lockstep
