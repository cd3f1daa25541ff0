// lockstep/trainer/callback.h
//
// Your code at fixed points of a run. A callback may take any time: it has no time limit, and the other ranks wait. It
// may freeze and unfreeze parameters with requires_grad_(), in the same way on every rank; the next step trains the
// parameters that are not frozen. The state of frozen parameters is kept and saved. At fit_start, `state` contains the
// position of a resumed run; freeze there if freezing depends on the epoch. A learning rate that a callback writes into
// the options of a parameter group becomes the base of the schedule. Each stage with a callback that is
// not light costs one small message between ranks; at step_end, that is one per step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <lockstep/base/control.h>
#include <lockstep/trainer/task.h>

namespace [[gnu::visibility("default")]] lockstep {

class MetricSink;

/// The moments at which callbacks are called, in the order of a run. Those of a validation are in fit() and in
/// Trainer::validate. Before and after a batch of a loop no collective works, because ranks may have different numbers
/// of batches, and a callback freezes nothing.
struct Stages {
  enum Stage : std::uint32_t {
    fit_start = 1U << 0,      ///< prepared and resumed; before the first step
    sanity_start = 1U << 26,  ///< before the validate.sanity_steps, which have no other stages
    sanity_end = 1U << 27,    ///< after them; evaluation_stopped instead if a stop came first
    epoch_start = 1U << 12,   ///< before the first batch of an epoch is taken
    // Inside a step. A callback there must be as short as a step, freeze nothing, and use no collective.
    step_start = 1U << 8,       ///< `batches` holds this rank's part of the step; before the first forward
    backward_start = 1U << 25,  ///< `output` holds the loss of a micro-batch for `optimizer`; before its backward
    backward_end = 1U << 9,     ///< of each optimizer without a closure: gradients are the mean over the global batch
    // After a step.
    step_end = 1U << 1,                 ///< after the update
    epoch_end = 1U << 2,                ///< after the last step of an epoch
    command = 1U << 13,                 ///< `command` holds the word; use Trainer::on_command
    report = 1U << 4,                   ///< `metrics` holds what goes to the console and the metric files
    epoch_report = 1U << 11,            ///< with report.epoch_means: `metrics` holds the means of the epoch that ended
    validation_start = 1U << 7,         ///< before the first batch of the validation
    validation_batch_start = 1U << 22,  ///< `batch`
    validation_batch_end = 1U << 18,    ///< `batch` and its `output`
    validation_end = 1U << 3,           ///< `metrics` holds the validation's means
    checkpoint_saved = 1U << 5,         ///< durable
    // At the end.
    fit_end = 1U << 6,
    exception = 1U << 10,  ///< on the rank whose fit an exception ends; no collective works any more
    // Of Trainer::test and Trainer::predict.
    test_start = 1U << 14,           ///< before the first batch
    test_batch_start = 1U << 23,     ///< `batch`
    test_batch_end = 1U << 19,       ///< `batch` and its `output`
    test_end = 1U << 15,             ///< `metrics` holds the means
    predict_start = 1U << 16,        ///< before the first batch
    predict_batch_start = 1U << 24,  ///< `batch`
    predict_batch_end = 1U << 20,    ///< `batch` and its `results`
    predict_end = 1U << 17,          ///< after the last batch of all ranks
    /// Instead of sanity_end, validation_end, test_end or predict_end: a stop came first. A resumed run validates anew.
    evaluation_stopped = 1U << 21,
  };
};
using Stage = Stages::Stage;  ///< Stage::step_end is a mask, and so is Stage::step_end | Stage::report

/// What a callback can read and change, during its call. A pointer is null if the stage has no value for it.
struct StageContext {
  Stage stage;
  const TrainState& state;  ///< outside fit(): zeros
  torch::nn::Module& module;
  World& world;
  const Plan& plan;
  TrainControl& control;
  const StepResult& step;            ///< of the last step here; before one, and outside fit(): empty
  Strategy* strategy = nullptr;      ///< inside fit()
  const Metrics* metrics = nullptr;  ///< the same on all ranks; what log() adds is there for the next callback
  bool is_left_out = false;          ///< report, epoch_report: a rollback leaves out steps; decide nothing by it
  /// report: false at the end of a run and on request, if a run that continues reports these means again, with more
  /// steps. validation_end: false if only time or a request made this validation. No state may depend on such a one.
  bool ends_window = true;
  double save_duration_s = 0;             ///< checkpoint_saved: duration of the save, also in the background
  std::int64_t saved_step = 0;            ///< the same: of the checkpoint; below state.step after one in the background
  const StepBatches* batches = nullptr;   ///< step_start
  const Batch* batch = nullptr;           ///< at the starts and ends of batches: validation_batch_start, ...
  std::int64_t batch_number = 0;          ///< the same: of the batch among those of this rank, from 1
  const StepOutput* output = nullptr;     ///< backward_start, validation_batch_end, test_batch_end
  const NamedTensors* results = nullptr;  ///< predict_batch_end: of predict_step, on the CPU
  std::string_view error{};               ///< exception: its text
  std::string_view command{};             ///< command: its word
  Metrics* log_to = nullptr;              ///< see log()
  Task* task = nullptr;                   ///< always set by the Trainer
  /// Inside fit(). A callback that reads from it seeks back to its position; inside of a step or of a loop it cannot.
  BatchSource* train = nullptr;
  StrategyOptimizer* optimizer = nullptr;  ///< backward_start, backward_end
  MetricSink* media = nullptr;             ///< gets what the three functions below make; null: nothing keeps it

  /// Adds a metric to the report of this stage, or, with the prefix val_ or test_, to its validation or test; at other
  /// stages to the next report, if one follows, which gets the last value of each name. It may be the metric of
  /// checkpoint.monitor and of other callbacks. Trainer::validate and test return what was logged with their means.
  /// Give the same value on every rank. Throws: Error (a name that the report has; at the start or end of a batch, in a
  /// prediction, at fit_end and exception, which no report follows). The next report throws it for a name with the
  /// prefix of a validation or an epoch.
  void log(std::string_view name, double value) const;

  /// For --report.tensorboard; other destinations ignore them. Only the main rank writes them, so any rank may call
  /// them, or only the main one. A name appears once per step. Markdown is shown as such.
  void log_text(std::string_view name, std::string_view text) const;
  /// [3 or 1, height, width] or [height, width]; uint8 from 0 to 255, or another dtype from 0 to 1. Waits for the
  /// device. Throws: Error (another shape).
  void log_image(std::string_view name, const at::Tensor& image) const;
  /// The distribution of the finite elements. Waits for the device.
  void log_histogram(std::string_view name, const at::Tensor& values) const;
};

/// Code that runs at some stages of a training. It may keep a state, which is saved and loaded with the run.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual std::string name() const = 0;      ///< unique in a trainer; the key of its state in checkpoints
  virtual std::uint32_t stages() const = 0;  ///< a Stage, or several with |; read when a fit or another loop begins
  /// On every rank at the same step, in order of registration; those of --early_stop.metric and --plateau.metric last.
  virtual void on(const StageContext& context) = 0;
  /// Is kept during each validation and destroyed after it, also after a failure. Example: other weights.
  virtual std::shared_ptr<void> validation_scope() { return nullptr; }
  /// True: it is as short as a step and freezes nothing, so no message between ranks is needed.
  virtual bool is_light() const { return false; }
  /// Is called on every rank, in order of registration, for each checkpoint. So it may use a collective; rank 0's
  /// result is written.
  virtual NamedTensors save() const { return {}; }
  /// On resume, on every rank, with the result of save(); not called if that was empty. When a run goes back to earlier
  /// weights, also with {}: the callback had no state then.
  virtual void load(const NamedTensors&) {}
};

/// For Trainer::on.
struct OnOptions {
  /// Only at multiples of it: of completed epochs at epoch_start and epoch_end, of batches at their starts and ends,
  /// at checkpoint_saved of the step of the checkpoint, else of completed steps, also at a report or a validation. Not
  /// at stages that come once.
  std::int64_t every = 1;
  /// Only if so many seconds have passed on rank 0 since it was added, or since the last call. The ranks agree on it
  /// with a small message at each of its stages, so every rank must add it. Instead of `every`. Not with is_light, and
  /// not at the stages inside a step or a loop.
  double every_s = 0;
  std::function<bool(const StageContext&)> when{};  ///< only if it returns true; empty: always
  bool is_light = false;                            ///< see Callback::is_light
  std::string name{};                               ///< unique in a trainer; "": made from the stages
};

}  // namespace lockstep
