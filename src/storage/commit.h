// The only way a checkpoint gets to disk, docs/checkpoints.md "Commit order". Torch-free.
#pragma once

#include <filesystem>
#include <memory>

#include <lockstep/base/file_system.h>
#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep {

/// A writer of the checkpoint that `manifest` begins to describe (step, run id, restart), in `directory`, which exists.
/// `expected_bytes` (0: unknown) is what a full disk's message says is needed.
std::unique_ptr<CheckpointWriter> make_commit_writer(FileSystem& fs, std::filesystem::path directory, Manifest manifest,
                                                     std::int64_t expected_bytes);

}  // namespace lockstep
