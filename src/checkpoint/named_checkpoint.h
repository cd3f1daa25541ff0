// What --resume and --init_weights name.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <lockstep/base/error.h>
#include <lockstep/config/train_config.h>

namespace lockstep {

/// The directory of a checkpoint or of a run. Links are followed, because the user named them. Throws: CheckpointError.
std::filesystem::path named_folder(const std::filesystem::path& named);

/// Throws: CheckpointError if there is no such file or directory.
void check_init_weights(const std::string& from);

/// For a run that --fresh starts, before the old one in `directory` is renamed. Throws: CheckpointError if what a flag
/// names is not there, or is in that directory.
void check_before_rename(const TrainConfig& config, const std::filesystem::path& directory);

/// In a handler: the caught exception again. A CheckpointError or IoError begins with the name of the flag.
[[noreturn]] void rethrow_naming(std::string_view flag);

/// What `work` returns; errors as from rethrow_naming().
template <class Work>
auto naming_flag(std::string_view flag, const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    rethrow_naming(flag);
  }
}

}  // namespace lockstep
