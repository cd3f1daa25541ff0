// Writing to a file until everything is written. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep {

/// Appends `bytes`. `path` is for the message. Throws: IoError.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

/// Writes `bytes` at `offset`. Throws: IoError.
void write_all_at(int fd, std::span<const std::byte> bytes, std::int64_t offset, const std::filesystem::path& path);

}  // namespace lockstep
