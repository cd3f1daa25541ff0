// The text of MANIFEST.json, docs/checkpoint_format.md "Manifest". Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep {

/// Larger manifests are rejected: this size is enough for terabytes.
inline constexpr std::int64_t kMaxManifestBytes = 16 << 20;

std::int64_t size_of(const Manifest& manifest);  ///< of all files of the checkpoint

std::string manifest_text(const Manifest& manifest);

/// Strict: verifies the checksum, every key, every type and every count. `where` starts the messages. Throws:
/// CheckpointError.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace lockstep
