// The path of --init_weights. Torch-free.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// Throws: CheckpointError if nothing is there.
void check_init_weights(const std::string& from);

/// Call it before --fresh renames `directory`. Throws: CheckpointError if nothing is there, or if it lies inside.
void check_init_weights(const std::string& from, const std::filesystem::path& directory);

}  // namespace lockstep
