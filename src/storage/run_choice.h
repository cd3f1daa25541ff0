// Which directory a launch gets if run_dir has a placeholder (base/run_pattern.h). Torch-free.
#pragma once

#include <string>

#include <lockstep/base/file_system.h>
#include <lockstep/environment/launch_name.h>

#include "base/run_pattern.h"

namespace lockstep {

struct RunChoice {
  LaunchName launch{};
  bool newest = false;   ///< continue the newest run of the pattern with a checkpoint, instead of beginning one
  bool creates = false;  ///< the directory is created, so that no other launch gets it
};

/// The directory of an earlier attempt of this launch; otherwise, as asked, that of the newest run, or one that nobody
/// has. Throws: CheckpointError (there is no run to continue), IoError.
std::string choose_run(FileSystem& fs, const RunPattern& pattern, const RunChoice& choice);

/// The directory in which a launch with this id trains; "": none yet, or it cannot be read.
std::string find_run_of(FileSystem& fs, const RunPattern& pattern, const std::string& launch) noexcept;

}  // namespace lockstep
