// lockstep/trainer/trainer.h
//
// The training loop: steps, reports, validation, checkpoints, resume, agreed stops.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/report/metric_sink.h>
#include <lockstep/trainer/callback.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Trainer::validate, test or predict was stopped on request before its end, on every rank. In run() it ends the worker
/// function like a stopped fit: exit code 75, 130 after Ctrl-C, or 0 if the program requested the stop.
class Stopped final : public Error {
 public:
  /// `what`: "the validation", "the prediction".
  Stopped(const std::string& what, const std::string& reason)
      : Error(what + " was stopped before its end: " + reason, {}, ExitCode::stopped) {}
};

/// Collects the files of Trainer::predict(task, data, directory) from any number of ranks. Returns what the other
/// predict() returns, and logs if predict.max_batches limited it. Throws: CheckpointError (no complete prediction in
/// the directory, a damaged file), IoError.
NamedTensors load_predictions(const std::filesystem::path& directory);

/// Trains, validates and predicts with a task, on this rank and together with the others. Keeps a reference to the
/// World: while a Trainer exists, do not move the Session.
class Trainer {
 public:
  /// For a worker function of run(), or a program that creates its own session.
  explicit Trainer(Session& session);
  /// For embedding: any number of trainings with different plans in the same world. Each training needs its own run
  /// directory. Reports go only to files and callbacks; warnings go to the log (set_log_level, LogScope). In run() it
  /// shares the requests of the run, as Trainer(session) does: a signal stops it, and a stop of the kind `terminate`,
  /// such as that of a TimeLimit, also ends later fits. Elsewhere it has requests of its own.
  Trainer(const Plan& plan, World& world);
  /// The same with these requests.
  Trainer(const Plan& plan, World& world, TrainControl control);
  ~Trainer();

  Trainer& add(std::shared_ptr<Callback> callback);
  /// Adds a callback without a class: `trainer.on(Stage::epoch_end, [](const StageContext& at) { ... })`. `stages`: a
  /// Stage, or several with |. Throws: ConfigError (no function; options out of range; a name that is in use).
  Trainer& on(std::uint32_t stages, std::function<void(const StageContext&)> f, OnOptions options = {});
  Trainer& on(bool, std::function<void(const StageContext&)>, OnOptions = {}) = delete;  ///< || instead of |
  /// Adds a word to those of `lockstep ctl RUN WORD`: a fit calls `f` on all ranks after the step in which it sees the
  /// word. Throws: ConfigError (no function; a word with other characters than a-z, 0-9, - and _; one that is in use).
  Trainer& on_command(const std::string& word, std::function<void(const StageContext&)> f);

  /// Metrics also go to a sink of the program. It is made on the main rank at the start of each fit and destroyed at
  /// its end; `make` may return nullptr. A write that throws an IoError is a warning, and the sink gets no more rows;
  /// any other exception ends the run. Throws: ConfigError (no function).
  Trainer& add_sink(MetricSinkFactory make);
  /// Each fit uses the strategy that `make` returns, instead of make_strategy(plan, world). Every rank must give the
  /// same. Throws: ConfigError (no function).
  Trainer& use_strategy(StrategyFactory make);

  /// Collective. Trains until a limit of the plan or an agreed stop, and saves. Resumes from the run directory as
  /// plan.config.resume requests; if the run is already finished, logs that and returns at once. Every submodule keeps
  /// its mode, training or evaluation. Afterwards the module and its gradients have no hooks or shared buffers of the
  /// library. Throws: any exception of the task; DataError, CheckpointError, CommError; Error if no step returned a
  /// loss.
  FitResult fit(Task& task, BatchSource& train, BatchSource* validation = nullptr);

  /// Collective. Means of "loss" and the task's metrics over every sample of one epoch of `data`, or of its first
  /// validate.max_batches steps. They are exact for any world size and equal on all ranks. The module runs in
  /// evaluation mode without gradients. Calls the callbacks of validations. Throws: Stopped; ConfigError (the limit is
  /// a part, and the length of `data` is not known); DataError if `data` has no samples.
  Metrics validate(Task& task, BatchSource& data);

  /// The same with Task::test_step and test.max_batches, for data that no decision of the training has used.
  Metrics test(Task& task, BatchSource& data);

  /// Collective. Calls Task::predict_step for every sample of one epoch of `data`, or of its first predict.max_batches
  /// steps, each once, in evaluation mode without gradients. The main rank gets the results of all these samples, on
  /// the CPU: "ids" [N] and the tensors of predict_step, [N, ...], in the order of the ids; a stream has no ids, and
  /// its order is that of the steps. Of a CombinedLoader also "loaders" [N], the index of each sample's loader; the
  /// samples of the first loader come first. The other ranks get {}. Throws: Stopped, ConfigError (as above), Error (a
  /// result without a row for each sample; ranks with different results), DataError if `data` has no samples.
  NamedTensors predict(Task& task, BatchSource& data);
  /// Collective. The same into files, for results that do not fit into memory: each rank writes one file per
  /// `every_steps` steps into `directory`, which every rank must see. Read them with load_predictions(). Called again
  /// after an interruption, also with another number of ranks, it continues; a complete prediction is left as it is.
  /// One that predict.max_batches has ended continues with a larger limit, or without one.
  /// Throws: as above; IoError; CheckpointError (the directory has predictions of other weights or other data, or with
  /// a limit of steps of another global batch).
  void predict(Task& task, BatchSource& data, const std::filesystem::path& directory, std::int64_t every_steps = 100);

  /// For requests from any thread.
  TrainControl control() const;

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
