// Who trains in a run directory: taken before any file of the run is touched, held as long as somebody writes there.
#pragma once

#include <memory>
#include <string>

#include <torch/nn/module.h>

#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

#include "storage/run_directory.h"

namespace lockstep {

class RunHold {
 public:
  /// Collective. Locks the plan's run directory (with checkpoint.per_node those of all nodes), sets an old run aside
  /// where the plan says --fresh, and notes this launch in run.json. One hold is shared by all who ask for the same
  /// directory with the same world. A plan that writes no files holds nothing. Throws: CheckpointError (exit 65) when
  /// the directory is in use, or holds another program's run; IoError.
  static std::shared_ptr<RunHold> take(const Plan& plan, World& world);

  /// Of this launch in this run, the same over its restarts: what its checkpoints are marked with.
  std::string launch() const;
  /// True if this launch trained here before: in an earlier attempt, or earlier in this process.
  bool trained_before();

  /// Collective. Notes what `module` is, at the first training of the run. Throws: CheckpointError (exit 65) where the
  /// run has trained another model, unless `allow_change`.
  void claim_model(const torch::nn::Module& module, bool allow_change, World& world);

 private:
  RunHold(std::string directory, bool writes) : directory_(std::move(directory)), writes_(writes) {}

  std::string directory_;
  bool writes_;
  std::unique_ptr<RunDirectory> held_{};  // of a rank that writes
  RunRecord record_{};                    // the same on every rank
  bool trained_before_ = false;
};

}  // namespace lockstep
