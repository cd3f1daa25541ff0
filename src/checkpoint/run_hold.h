// Ownership of a run directory: acquired before any file of the run is touched, held while any part of this process
// writes there.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <torch/nn/module.h>

#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

#include "storage/run_directory.h"

namespace lockstep {

class RunHold {
 public:
  /// Collective. Locks the plan's run directory (with checkpoint.per_node those of all nodes), renames an old run if
  /// the plan says --fresh, and records this launch in run.json. Callers with the same directory and the same world
  /// share one hold. A plan that writes no files holds nothing. Throws: CheckpointError (exit 65) if the directory is
  /// in use or belongs to another program's run; IoError.
  static std::shared_ptr<RunHold> take(const Plan& plan, World& world);

  /// The run directory, absolute: the program may change its working directory.
  const std::filesystem::path& path() const noexcept { return path_; }
  /// path() if this rank writes there, else empty.
  std::filesystem::path written_directory() const { return held_ == nullptr ? std::filesystem::path() : path_; }

  /// The id of this launch in this run, the same over its restarts. Its checkpoints carry it.
  std::string launch() const;
  /// Whether a fit trains here now; it sets this itself.
  bool& has_fit() noexcept { return has_fit_; }
  /// True if this launch has trained here before: in an earlier attempt, or earlier in this process.
  bool trained_before();

  /// What is kept of a micro-batch that did not fit (plan/batch_limit.h), as this machine has it; "": nothing.
  std::string batch_limit() const;
  /// Keeps it. Any rank may call it, also on a machine without the run directory, which this creates. False: the plan
  /// writes no files. Throws: IoError.
  bool keep_batch_limit(std::string_view json) const;

  /// Collective. Records the parameters of `module` at the first training of the run. Throws: CheckpointError (exit 65)
  /// if the run has trained another model, unless `allow_change`.
  void claim_model(const torch::nn::Module& module, bool allow_change, World& world);

 private:
  RunHold(std::string directory, const std::filesystem::path& start, bool writes)
      : directory_(std::move(directory)), path_(start / directory_), writes_(writes) {}

  std::string directory_;  // as the user wrote it
  std::filesystem::path path_;
  bool writes_;
  std::unique_ptr<RunDirectory> held_{};  // on ranks that write
  RunRecord record_{};                    // the same on every rank
  bool trained_before_ = false;
  bool has_fit_ = false;
};

/// Collective. If run_dir has a placeholder (base/run_pattern.h): the plan with the directory that rank 0 chooses for
/// this launch, in which run.json names the launch on return, so that its restarts find it. Throws as RunHold::take.
Plan with_run_directory(Plan plan, World& world);

}  // namespace lockstep
