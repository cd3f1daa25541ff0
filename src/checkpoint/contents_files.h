// Checkpoint contents <-> the files of one checkpoint. Rank 0 only; docs/checkpoint_format.md describes the format.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "storage/checkpoint_files.h"

namespace lockstep {

/// The expected size of the files, before they are written.
std::int64_t byte_size(const CheckpointContents& contents);

/// `per_rank`: the bytes of every rank; empty for a rank that has none. Throws: CheckpointError (a dtype that the
/// format does not have, a value with a reserved name), IoError.
void write_contents(CheckpointWriter& writer, std::int64_t step, const CheckpointContents& contents,
                    std::span<const std::string> per_rank);

struct StoredContents {
  CheckpointContents contents{};        ///< without per_rank
  std::vector<std::string> per_rank{};  ///< one for every rank of the run that wrote it
};

/// Reads only the values of a checkpoint; {} if they are damaged. Throws: IoError (they cannot be read now).
std::map<std::string, std::string> peek_values(const CheckpointFiles& files);

/// Reads and verifies every byte of a checkpoint. Throws: CheckpointError naming file and damage, IoError.
StoredContents read_contents(const CheckpointFiles& files);

}  // namespace lockstep
