// lockstep/trainer/trainer.h
//
// The loop: steps, reports, validation, checkpoints, resume, agreed stops.
#pragma once

#include <memory>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callback.h>

namespace [[gnu::visibility("default")]] lockstep {

class Console;

/// Trainer::validate was stopped on request before its end, on every rank. In run() it ends the worker function as a
/// stopped fit does: exit code 75, or 130 for Ctrl-C, or 0 when the program asked.
class ValidationStopped final : public Error {
 public:
  explicit ValidationStopped(const std::string& reason)
      : Error("the validation was stopped before its end: " + reason, {}, ExitCode::stopped) {}
};

class Trainer {
 public:
  /// In a worker function of run(), or with a session of your own.
  explicit Trainer(Session& session);
  /// Embedding: the same world, another plan, as often as you like. One run directory per training. Reports go to the
  /// files and callbacks only; warnings to the log (set_log_level).
  Trainer(const Plan& plan, World& world, TrainControl control = {});
  ~Trainer();

  Trainer& add(std::shared_ptr<Callback> callback);

  /// Collective. Trains until the plan's limits or an agreed stop, and saves. Resumes from the run directory as
  /// plan.config.resume says; a run that is finished already returns at once and says so. Every submodule is trained in
  /// the mode that it is in, training or evaluation. Afterwards module and gradients are ordinary again. Throws: what
  /// the task threw; DataError, CheckpointError, CommError; Error for a task that trains nothing.
  FitResult fit(Task& task, BatchSource& train, BatchSource* validation = nullptr);

  /// Collective. Means over every sample of one epoch of `data`, exact at any number of ranks and the same on all:
  /// "loss" and the task's metrics; validate.max_batches does not apply. The module is in evaluation mode meanwhile and
  /// without gradients. Throws: ValidationStopped; DataError for data without samples.
  Metrics validate(Task& task, BatchSource& data);

  /// Requests from other threads.
  TrainControl control() const;

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
