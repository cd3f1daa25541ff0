// Writing to a descriptor, or reading from it, until everything is done. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep {

/// Appends `bytes`. `path` is for the message. Throws: IoError.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

/// Writes `bytes` at `offset`. Throws: IoError.
void write_all_at(int fd, std::span<const std::byte> bytes, std::int64_t offset, const std::filesystem::path& path);

/// What can be read until the end or an error.
std::string read_to_end(int fd);

}  // namespace lockstep
