// The only code that writes a checkpoint to disk, docs/checkpoint_format.md "Commit order". Torch-free.
#pragma once

#include <filesystem>
#include <memory>

#include <lockstep/base/file_system.h>
#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep {

/// A writer for a checkpoint in the existing `directory`. `manifest` contains its step, run id and restart.
/// `expected_bytes` (0: unknown) appears in the message for a full disk.
std::unique_ptr<CheckpointWriter> make_commit_writer(FileSystem& fs, std::filesystem::path directory, Manifest manifest,
                                                     std::int64_t expected_bytes);

}  // namespace lockstep
