// How long a run may train, and how long it must.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <lockstep/base/control.h>
#include <lockstep/config/train_config.h>
#include <lockstep/trainer/train_state.h>

#include "base/duration.h"

namespace lockstep {

class RunLimits {
 public:
  explicit RunLimits(const TrainConfig& config) : config_(config) {}

  /// Where the present epoch begins, also if a resumed run goes on in the middle of it. `steps`: of this epoch; 0: not
  /// known.
  void begin_epoch(std::int64_t epoch, std::int64_t first_step, std::int64_t steps) noexcept;
  std::int64_t steps_per_epoch() const noexcept { return steps_per_epoch_; }
  /// Where epoch 0 would have begun if all epochs were as long as the present one.
  std::int64_t epochs_from() const noexcept { return epochs_from_; }
  /// The length of the whole run, if the epochs after the present one are as long; 0: no limit, or it is not known.
  std::int64_t steps() const noexcept;
  bool are_reached(const TrainState& state) const noexcept;
  /// "--max_epochs 1": the one that ends the run; "": none has been reached.
  std::string reached(const TrainState& state) const;
  bool is_below_minimum(const TrainState& state) const noexcept;
  /// The program itself cannot end a run before its minimum.
  bool must_stop(StopKind requested, const TrainState& state) const noexcept;

  /// Time is that of this fit and, once a run resumes, of its earlier ones until the checkpoint, in seconds.
  void set_earlier_time(double seconds) noexcept { earlier_s_ = seconds; }
  double training_time() const { return earlier_s_ + seconds_since(began_); }
  /// By the clock of this rank; the ranks have not agreed on it.
  bool is_time_over() const { return config_.max_time_s > 0 && training_time() >= config_.max_time_s; }

 private:
  const TrainConfig& config_;
  std::int64_t steps_per_epoch_ = 0;
  std::int64_t epochs_from_ = 0;
  double earlier_s_ = 0;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace lockstep
