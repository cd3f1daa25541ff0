// lockstep/trainer/callbacks.h
//
// Callbacks that come with the library.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/freezing.h>
#include <lockstep/trainer/callback.h>

namespace [[gnu::visibility("default")]] lockstep {

struct CheckpointContents;

/// Stops and saves before a deadline, such as the end of a batch job. It stops when the remaining time is too short for
/// two more steps, a validation and a save, each as long as the longest so far, also while it waits for data. run()
/// then returns 75: the same command resumes the run. The Trainer adds one, "job_end", if the plan knows when the batch
/// job ends. max_time_s is another limit: the training time of the run over all starts.
class TimeLimit final : public Callback {
 public:
  using Clock = std::chrono::steady_clock;

  /// Two of them need two names.
  explicit TimeLimit(Clock::time_point deadline, std::string name = "time_limit")
      : deadline_(deadline), name_(std::move(name)) {}

  std::string name() const override { return name_; }
  std::uint32_t stages() const override {
    return Stage::fit_start | Stage::sanity_end | Stage::step_end | Stage::validation_end | Stage::evaluation_stopped |
           Stage::checkpoint_saved;
  }
  bool is_light() const override { return true; }
  void on(const StageContext& context) override;

 private:
  Clock::duration needed() const { return 2 * longest_step_ + longest_validation_ + longest_save_; }

  Clock::time_point deadline_;
  std::string name_;
  Clock::time_point last_{};  // of on()
  Clock::duration longest_step_{};
  Clock::duration longest_validation_{};
  Clock::duration longest_save_{};
};

/// Settings of ReduceOnPlateau, with the names and defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct ReduceOnPlateauOptions {
  std::string metric = "val_loss";         ///< of the validation or of a report
  MonitorMode mode = MonitorMode::min;     ///< whether a lower or a higher value is better
  double factor = 0.1;                     ///< the learning rates are multiplied by it
  int patience = 10;                       ///< measurements without an improvement that are tolerated
  double threshold = 1e-4;                 ///< smallest change that is an improvement
  bool threshold_is_relative = true;       ///< of the best value
  int cooldown = 0;                        ///< measurements after a reduction that are not counted
  double min_lr = 0;                       ///< no learning rate becomes smaller
  double eps = 1e-8;                       ///< a smaller change of a learning rate is not made
  std::string name = "reduce_on_plateau";  ///< of the callback; two of them need two names
};

/// Reduces the learning rates of all optimizers when a metric has stopped improving. It looks at the values of the
/// metric, which are the same on all ranks, but not at those of reports between the multiples of report.every_steps,
/// not at those of validations that only time or a request made, and with optim.non_finite skip or rollback not at NaN
/// and infinity. It works together with a schedule, which is multiplied with the reduced rates. Its state and the rates
/// are in the checkpoints.
class ReduceOnPlateau final : public Callback {
 public:
  /// Throws: ConfigError if an option is out of its range.
  explicit ReduceOnPlateau(ReduceOnPlateauOptions options = {});
  ~ReduceOnPlateau() override;

  std::string name() const override { return options_.name; }
  std::uint32_t stages() const override {
    return Stage::fit_start | Stage::validation_end | Stage::report | Stage::epoch_report | Stage::fit_end;
  }
  /// Throws: ConfigError if the first report or validation has no such metric. Later ones may lack it. Warns if the
  /// training ends before the first one.
  void on(const StageContext& context) override;
  NamedTensors save() const override;
  void load(const NamedTensors& state) override;

  const std::string& metric() const noexcept { return options_.metric; }  ///< by which it decides

 private:
  struct Metric;

  double bound() const;
  void reduce(const StageContext& context) const;

  ReduceOnPlateauOptions options_;
  std::unique_ptr<Metric> metric_;
  std::int64_t cooldown_ = 0;  // measurements left
};

/// Settings of EarlyStopping, with the names and defaults of Lightning's EarlyStopping.
struct EarlyStoppingOptions {
  std::string metric = "val_loss";               ///< of the validation or of a report
  MonitorMode mode = MonitorMode::min;           ///< whether a lower or a higher value is better
  int patience = 3;                              ///< measurements in a row without an improvement that end the training
  double min_delta = 0;                          ///< a smaller change is no improvement
  bool check_finite = true;                      ///< stop if the metric is NaN or infinite
  std::optional<double> stopping_threshold{};    ///< stop if the metric is better
  std::optional<double> divergence_threshold{};  ///< stop if the metric is worse
  std::string name = "early_stopping";           ///< of the callback; two of them need two names
};

/// Stops the training when a metric no longer improves. It looks at the same values as ReduceOnPlateau. All ranks stop
/// and save after the step whose report or validation decides. run() then returns 0. The same command started again
/// says so and trains no further, unless the options have changed. Its state is in the checkpoints.
class EarlyStopping final : public Callback {
 public:
  /// Throws: ConfigError if an option is out of its range.
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  ~EarlyStopping() override;

  std::string name() const override { return options_.name; }
  std::uint32_t stages() const override {
    return Stage::fit_start | Stage::validation_end | Stage::report | Stage::epoch_report | Stage::fit_end;
  }
  bool is_light() const override { return true; }
  /// Throws: ConfigError if the first report or validation has no such metric. Later ones may lack it. Warns if the
  /// training ends before the first one.
  void on(const StageContext& context) override;
  NamedTensors save() const override;
  void load(const NamedTensors& state) override;

  const std::string& metric() const noexcept { return options_.metric; }  ///< by which it decides
  /// Why it stopped the training: "val_loss did not improve on 0.25 in 3 measurements"; "": it did not.
  const std::string& reason() const noexcept { return reason_; }

 private:
  struct Metric;

  std::string find_reason(double last) const;

  EarlyStoppingOptions options_;
  std::unique_ptr<Metric> metric_;
  std::optional<double> last_{};  // nullopt: nothing has been measured
  std::string reason_{};
};

/// Settings of WeightAverage.
struct WeightAverageOptions {
  /// The average becomes decay x average + (1 - decay) x parameter (exponential moving average). 0: the mean of all
  /// averaged steps, as stochastic weight averaging (SWA) does.
  double decay = 0.999;
  bool warmup = false;           ///< step t uses at most a decay of (1 + t) / (10 + t), so that early weights fade
  std::int64_t every_steps = 1;  ///< steps between two updates of the average
  std::int64_t first_step = 1;   ///< the first step that is averaged, from 1
  std::int64_t first_epoch = 1;  ///< the first epoch of which steps are averaged, from 1
  bool buffers = false;          ///< average floating-point buffers too, such as statistics of batch norm
  bool on_cpu = false;           ///< keep the average in host memory; each update then waits for the device
  /// Validate with the average; after the fit also test and predict, as long as the module has the weights of its end.
  bool in_validation = true;
  bool at_end = false;  ///< at the end of fit(), copy the average into the module; after the last save
  /// With at_end: then calculate the running statistics of batch norm for the average, as
  /// torch.optim.swa_utils.update_bn does, with Task::training_step of so many training steps, at most one epoch. They
  /// are means over the micro-batches of all ranks. Layers in evaluation mode keep theirs. 0: keep all.
  std::int64_t batch_norm_steps = 0;
  std::string name = "weight_average";  ///< of the callback; two of them need two names
};

/// Keeps an average of the trained parameters: an exponential moving average, or with decay 0 the mean of
/// "Averaging Weights Leads to Wider Optima and Better Generalization" (Izmailov et al., 2018). It starts with the
/// parameters after the first averaged step. Half precision is averaged in fp32. Every rank computes the same average.
/// It is in the checkpoints; their model stays the trained one, and averaged_model() is the average. Weights that the
/// program loads or changes after a fit are evaluated as they are.
class WeightAverage final : public Callback {
 public:
  /// Throws: ConfigError if an option is out of its range.
  explicit WeightAverage(WeightAverageOptions options = {});
  WeightAverage(const WeightAverage&) = delete;
  WeightAverage& operator=(const WeightAverage&) = delete;

  std::string name() const override { return options_.name; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::step_end | Stage::fit_end; }
  bool is_light() const override { return true; }
  void on(const StageContext& context) override;
  std::shared_ptr<void> validation_scope() override;
  NamedTensors save() const override;
  void load(const NamedTensors& state) override;

  /// By parameter name (and buffer name); empty before the first update. For example for a file with the final weights.
  const NamedTensors& average() const noexcept { return average_; }
  /// Copies the average into the module of the last fit().
  void copy_to_module() const;

 private:
  void begin(const StageContext& context);
  void restore();
  void update(std::int64_t step);
  bool has_weights_of_fit() const;
  double decay_at(std::int64_t step) const;
  at::TensorOptions options_of(const at::Tensor& value) const;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs() const;  // values and their averages

  WeightAverageOptions options_;
  NamedTensors values_{};  // parameters of the module, then its buffers; shared ones once
  std::size_t parameter_count_ = 0;
  NamedTensors average_{};    // of some of them, in the same order
  std::int64_t updates_ = 0;  // of the average
  std::int64_t epoch_ = 1;    // of the next step
  /// Memory and version of each parameter at the end of the fit; nullopt: it has not ended.
  std::optional<std::vector<std::pair<const void*, std::int64_t>>> at_end_{};
};

/// The model of a checkpoint with the average of a WeightAverage where it has one, for load_module(). `name`: that of
/// the callback. Throws: CheckpointError if the checkpoint has no model or no such average.
NamedTensors averaged_model(const CheckpointContents& checkpoint, const std::string& name = "weight_average");

/// Keeps the parameters that a pattern selects frozen until an epoch begins, such as a pretrained backbone. From then
/// on they are trained; GroupSpec gives them a learning rate or a schedule of their own. Running statistics of batch
/// norm are no parameters: they change meanwhile, unless the layer is in evaluation mode.
class FreezeUntil final : public Callback {
 public:
  /// `pattern`: as for named(). `epoch`: the first epoch, from 1, that trains them. Throws: ConfigError (epoch < 2).
  FreezeUntil(std::string pattern, std::int64_t epoch);

  std::string name() const override { return name_; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::epoch_end; }
  /// Throws: ConfigError if the pattern selects no parameter.
  void on(const StageContext& context) override;

 private:
  std::string pattern_;
  std::int64_t epoch_;
  std::string name_;
};

}  // namespace lockstep
