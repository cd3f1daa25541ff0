// Where the time of a step goes on the device.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "base/temporary_value.h"
#include "ipc/progress_record.h"

namespace lockstep {

/// Kernels run later than the host starts them, so a clock of the host cannot time them. This clock lets the device
/// note when it reaches the phases of a step, on the stream on which they run, and reads the times when they are there:
/// it never waits. A phase has all the time until the next one begins, also that in which the device has nothing to do.
/// Only some steps are measured, because an event costs a microsecond or two. On a CPU it does nothing. A failure of
/// the device ends the measurement, and nothing else.
class DeviceClock {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPause{50};  ///< from one measured step to the next

  explicit DeviceClock(c10::Device device, Clock::duration pause = kPause) : device_(device), pause_(pause) {}

  /// A step begins, in Phase::data. A step that has not ended is forgotten.
  void begin_step() noexcept;
  /// What the current stream gets from now on belongs to `phase`.
  void enter(Phase phase) noexcept {
    phase_ = phase;
    if (is_noting()) {
      note_begin(phase);
    }
  }
  /// What it gets from now on is waiting for other ranks, until end_waiting().
  void begin_waiting() noexcept { note(phase_, /*waits=*/true); }
  void end_waiting() noexcept { note(phase_, /*waits=*/false); }
  void end_step() noexcept {
    note(phase_, /*waits=*/false);
    if (state_ == State::in_step) {
      state_ = State::awaited;
    }
  }

  /// Sums over the measured steps that the device has completed; `now` is the sum of all their time.
  const PhaseTimes& times() noexcept;
  /// How many these are.
  std::int64_t steps() noexcept;
  /// The number of these steps in which the device followed the calls of the host closely, so that it waited for them:
  /// when the host had made all calls of the forward, the device had begun it, and likewise the backward.
  std::int64_t close_steps() noexcept;

  /// While a part exists, work on the device belongs to `phase`, then to the phase before.
  class Part {
   public:
    Part(DeviceClock& clock, Phase phase) noexcept : clock_(clock), before_(clock.phase_) { clock_.enter(phase); }
    ~Part() { clock_.enter(before_); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    DeviceClock& clock_;
    const Phase before_;
  };

  /// While the result exists, nothing is noted: an event must not become a part of what is recorded as a graph.
  [[nodiscard]] TemporaryValue<bool> pause() noexcept { return {is_paused_, true}; }

 private:
  enum class State { idle, in_step, awaited };
  struct Mark {
    Phase phase = Phase::data;
    bool waits = false;
    c10::Event reached;
  };

  bool is_noting() const noexcept { return state_ == State::in_step && !is_paused_; }  // on a CPU never
  void note(Phase phase, bool waits) noexcept {
    if (is_noting()) {
      record(phase, waits);
    }
  }
  void note_begin(Phase phase) noexcept;
  void record(Phase phase, bool waits) noexcept;
  void look_if_begun(Phase phase) noexcept;
  void collect() noexcept;

  const c10::Device device_;
  const Clock::duration pause_;
  State state_ = State::idle;
  bool is_paused_ = false;
  Phase phase_ = Phase::data;
  std::vector<Mark> marks_{};  // events are used again; the last one is the end of the step
  std::size_t count_ = 0;      // of this step
  bool has_looked_ = false;    // in this step, whether the device follows closely
  bool is_close_ = false;      // it does so far
  Clock::time_point next_{};   // the next step to measure
  PhaseTimes sums_{};
  std::int64_t steps_ = 0;
  std::int64_t close_steps_ = 0;
};

}  // namespace lockstep
