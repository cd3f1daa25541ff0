// lockstep/trainer/callbacks.h
//
// Callbacks that come with the library.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/trainer/callback.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Stops and saves before a deadline, such as the end of a batch job. It stops when the remaining time is too short for
/// two more steps and a save, each as long as the longest so far. run() then returns 75: the same command resumes the
/// run. The Trainer adds a TimeLimit if max_time_s is set or the plan knows when the batch job ends.
class TimeLimit final : public Callback {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TimeLimit(Clock::time_point deadline) : deadline_(deadline) {}

  std::string_view name() const override { return "time_limit"; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::step_end | Stage::checkpoint_saved; }
  void on(const StageContext& context) override;

 private:
  Clock::duration needed() const { return 2 * longest_step_ + longest_save_; }

  Clock::time_point deadline_;
  Clock::time_point last_step_{};
  Clock::duration longest_step_{};
  Clock::duration longest_save_{};  // from the end of the step, including a validation before the save
};

/// Settings of ReduceOnPlateau, with the names and defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct PlateauOptions {
  std::string metric = "val_loss";      ///< of the validation or of a report
  MonitorMode mode = MonitorMode::min;  ///< whether a lower or a higher value is better
  double factor = 0.1;                  ///< the learning rates are multiplied by it
  int patience = 10;                    ///< measurements without an improvement that are tolerated
  double threshold = 1e-4;              ///< smallest change that is an improvement
  bool threshold_is_relative = true;    ///< of the best value
  int cooldown = 0;                     ///< measurements after a reduction that are not counted
  double min_lr = 0;                    ///< no learning rate becomes smaller
  double eps = 1e-8;                    ///< a smaller change of a learning rate is not made
};

/// Reduces the learning rates of all optimizers when a metric has stopped improving. It looks at every value of the
/// metric, which is the same on all ranks. It works together with a schedule, which is multiplied with the reduced
/// rates. Its state and the rates are in the checkpoints.
class ReduceOnPlateau final : public Callback {
 public:
  /// Throws: ConfigError if an option is out of its range.
  explicit ReduceOnPlateau(PlateauOptions options = {});

  std::string_view name() const override { return "reduce_on_plateau"; }
  std::uint32_t stages() const override { return Stage::validation_end | Stage::report; }
  /// Throws: ConfigError if the first report or validation has no such metric. Later ones may lack it.
  void on(const StageContext& context) override;
  NamedTensors save() const override;
  void load(const NamedTensors& state) override;

 private:
  bool is_better(double value) const;
  void reduce(const StageContext& context) const;

  PlateauOptions options_;
  bool is_known_ = false;  // the metric has been measured
  double best_;
  std::int64_t bad_ = 0;       // measurements since the best one
  std::int64_t cooldown_ = 0;  // measurements left
};

}  // namespace lockstep
