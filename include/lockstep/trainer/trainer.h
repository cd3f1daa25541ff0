// lockstep/trainer/trainer.h
//
// The loop: steps, reports, validation, checkpoints, resume, agreed stops.
#pragma once

#include <memory>

#include <lockstep/trainer/callback.h>

namespace lockstep {

class Console;

class Trainer {
 public:
  /// In a worker function of run(), or with a session of your own.
  explicit Trainer(Session& session);
  /// Embedding: the same world, another plan, as often as you like. One run directory per training.
  Trainer(const Plan& plan, World& world, TrainControl control = {});
  ~Trainer();

  Trainer& add(std::shared_ptr<Callback> callback);

  /// Collective. Trains until the plan's limits or an agreed stop, and saves. Resumes from the run directory as
  /// plan.config.resume says; a run that is finished already returns at once and says so. Afterwards module and
  /// gradients are ordinary again. Throws: what the task threw; DataError, CheckpointError, CommError.
  FitResult fit(Task& task, BatchSource& train, BatchSource* validation = nullptr);

  /// Collective. Means over every sample of one epoch of `data`, exact at any number of ranks and the same on all:
  /// "loss" and the task's metrics. The module is in evaluation mode meanwhile and without gradients.
  Metrics validate(Task& task, BatchSource& data);

  /// Requests from other threads.
  TrainControl control() const;

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
