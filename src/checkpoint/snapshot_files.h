// A Snapshot as the files of one checkpoint. Rank 0 only; docs/checkpoints.md is the format.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep {

/// What is known of `snapshot`'s size before it is written.
std::int64_t byte_size(const Snapshot& snapshot);

/// `per_rank`: the bytes of every rank, empty where a rank has none.
/// Throws: CheckpointError (a dtype that the format lacks, a value whose name is taken), IoError.
void write_snapshot(CheckpointWriter& writer, std::int64_t step, const Snapshot& snapshot,
                    std::span<const std::string> per_rank);

struct SavedSnapshot {
  Snapshot snapshot{};                  ///< without per_rank
  std::vector<std::string> per_rank{};  ///< one for every rank of the run that wrote it
};

/// The values alone, of a checkpoint whose other files are not looked at; {} when they cannot be read.
std::map<std::string, std::string> peek_values(const CheckpointDir& directory, std::int64_t step);

/// Reads every byte of a checkpoint once, and checks it. Throws: CheckpointError naming file and fault, IoError.
SavedSnapshot read_snapshot(const CheckpointDir& directory, std::int64_t step);

}  // namespace lockstep
