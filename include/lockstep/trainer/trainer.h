// lockstep/trainer/trainer.h
//
// The training loop: steps, reports, validation, checkpoints, resume, agreed stops.
#pragma once

#include <memory>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callback.h>

namespace [[gnu::visibility("default")]] lockstep {

class Console;

/// Trainer::validate was stopped on request before its end, on every rank. In run() it ends the worker function like a
/// stopped fit: exit code 75, 130 after Ctrl-C, or 0 if the program requested the stop.
class ValidationStopped final : public Error {
 public:
  explicit ValidationStopped(const std::string& reason)
      : Error("the validation was stopped before its end: " + reason, {}, ExitCode::stopped) {}
};

class Trainer {
 public:
  /// For a worker function of run(), or a program that creates its own session.
  explicit Trainer(Session& session);
  /// For embedding: any number of trainings with different plans in the same world. Each training needs its own run
  /// directory. Reports go only to files and callbacks; warnings go to the log (set_log_level).
  Trainer(const Plan& plan, World& world, TrainControl control = {});
  ~Trainer();

  Trainer& add(std::shared_ptr<Callback> callback);

  /// Collective. Trains until a limit of the plan or an agreed stop, and saves. Resumes from the run directory as
  /// plan.config.resume requests; if the run is already finished, logs that and returns at once. Every submodule keeps
  /// its mode, training or evaluation. Afterwards the module and its gradients have no hooks or shared buffers of the
  /// library. Throws: any exception of the task; DataError, CheckpointError, CommError; Error if no step returned a
  /// loss.
  FitResult fit(Task& task, BatchSource& train, BatchSource* validation = nullptr);

  /// Collective. Means of "loss" and the task's metrics over every sample of one epoch of `data`. They are exact for
  /// any world size and equal on all ranks. validate.max_batches does not apply. The module runs in evaluation mode
  /// without gradients. Throws: ValidationStopped; DataError if `data` has no samples.
  Metrics validate(Task& task, BatchSource& data);

  /// For requests from any thread.
  TrainControl control() const;

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
