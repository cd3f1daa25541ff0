// The binary version of CIFAR-10: records of a label and 3 x 32 x 32 bytes. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

inline constexpr std::size_t kCifar10Record = 1 + 3 * 32 * 32;

/// Number of records in the file. Throws: DataError without a file name (incomplete records, a label above 9).
std::int64_t count_cifar10(std::span<const std::byte> file);

}  // namespace lockstep
