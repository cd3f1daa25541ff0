// How a run shows its training: the progress line, and rows of metrics on the console and in files.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <lockstep/trainer/callback.h>
#include <lockstep/trainer/train_state.h>
#include <lockstep/world/world.h>

#include "report/console.h"
#include "report/progress_bar.h"
#include "trainer/epoch_place.h"
#include "trainer/output/run_files.h"

namespace lockstep {

class RunReports {
 public:
  using Clock = std::chrono::steady_clock;

  RunReports(std::shared_ptr<Console> console, bool show_bar, World& world, RunFiles& files)
      : world_(world), files_(files), progress_(std::move(console), show_bar) {}

  /// Before the first step, perhaps of a resumed run.
  void set_position(const TrainState& state, const EpochPlace& place);
  /// After a step. `total`: steps of the epoch, if they are known.
  void show_step(const TrainState& state, const EpochPlace& place, std::optional<std::int64_t> total);
  /// `total`: steps of the validation, if they are known.
  void show_validation(std::int64_t steps, std::optional<std::int64_t> total);
  void end_epoch() { progress_.finish_epoch(now_); }
  void end() { progress_.finish_phase(); }

  /// The speed is measured from now on.
  void begin_window(std::int64_t samples);
  /// What takes `time` is not part of the training.
  void leave_out(Clock::duration time) { window_began_ += time; }
  /// Collective if `may_decide`: callbacks decide by metrics, so the main rank's clock counts on all ranks. Adds
  /// samples_per_s, and begins the next window.
  void add_speed(Metrics& metrics, std::int64_t samples, bool may_decide);

  /// Collective if `may_differ`: decisions depend on metrics, so all ranks must have the same. A row of a report, or of
  /// another stage. Throws: CommError (they differ), Error (a name is used twice).
  void write(Stage stage, const Metrics& metrics, bool may_differ);

  /// All metrics that were written since the last show_step().
  const Metrics& of_step() const noexcept { return of_step_; }
  void forget_step() { of_step_.clear(); }
  /// Before the first step of a resumed run: what the step of the checkpoint had measured.
  void restore_step(Metrics metrics) { of_step_ = std::move(metrics); }
  /// At the beginning of a resumed run: what was measured before.
  void restore_last(Metrics metrics) { restored_ = std::move(metrics); }
  /// The last value of each metric, in the order of the reports; then what only earlier starts have measured.
  Metrics last() const;

 private:
  World& world_;
  RunFiles& files_;
  ProgressBar progress_;
  Progress now_{};
  std::int64_t epoch_ = -1;          // in now_
  std::int64_t window_samples_ = 0;  // at its beginning
  Clock::time_point window_began_{};
  Metrics of_step_{};
  Metrics last_{};      // in this start
  Metrics restored_{};  // of an earlier one
};

/// Collective. Throws: CommError naming the rank whose metrics are not those of the others.
void check_same_on_all_ranks(const Metrics& metrics, World& world);

}  // namespace lockstep
