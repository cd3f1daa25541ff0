// CRC-32C (Castagnoli), hardware when the CPU has it; and the CRC-32 of ZIP archives. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// Extends the checksum `crc` (start with 0) by `bytes`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;

/// The same without special instructions.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;

/// The checksum in ZIP archives: the IEEE polynomial, reflected 0xedb88320; of "123456789" it is cbf43926.
std::uint32_t crc32_of_zip(std::span<const std::byte> bytes) noexcept;

}  // namespace lockstep
