#include "world/device_clock.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep {

void DeviceClock::begin_step() noexcept {
  if (device_.is_cpu()) {
    return;
  }
  collect();
  if (state_ == State::in_step) {  // it has not ended
    state_ = State::idle;
  }
  const Clock::time_point now = Clock::now();
  if (state_ == State::awaited || now < next_) {
    return;
  }
  next_ = now + pause_;
  state_ = State::in_step;
  count_ = 0;
  has_looked_ = false;
  is_close_ = true;
  enter(Phase::data);
}

void DeviceClock::note_begin(Phase phase) noexcept {
  if (phase == Phase::backward || phase == Phase::optimizer) {
    look_if_begun(phase == Phase::backward ? Phase::forward : Phase::backward);
  }
  note(phase, /*waits=*/false);
}

const PhaseTimes& DeviceClock::times() noexcept {
  collect();
  return sums_;
}

std::int64_t DeviceClock::steps() noexcept {
  collect();
  return steps_;
}

std::int64_t DeviceClock::close_steps() noexcept {
  collect();
  return close_steps_;
}

// Both phases, because a host that waits for the device once in a step is close to it only then.
void DeviceClock::look_if_begun(Phase phase) noexcept {
  has_looked_ = true;
  const auto is_begin = [&](const Mark& mark) { return mark.phase == phase && !mark.waits; };
  const auto end = std::make_reverse_iterator(marks_.begin() + static_cast<std::ptrdiff_t>(count_));
  const auto last = std::find_if(end, marks_.rend(), is_begin);
  try {
    is_close_ = is_close_ && last != marks_.rend() && last->reached.query();
  } catch (const std::exception&) {  // as in note()
    state_ = State::idle;
  }
}

void DeviceClock::record(Phase phase, bool waits) noexcept {
  try {
    if (count_ == marks_.size()) {
      marks_.push_back({.reached = c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT)});
    }
    Mark& mark = marks_[count_];
    mark.phase = phase;
    mark.waits = waits;
    mark.reached.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    ++count_;
  } catch (const std::exception&) {  // the training fails of the same cause, with a better message
    state_ = State::idle;
  }
}

void DeviceClock::collect() noexcept {
  if (state_ != State::awaited) {
    return;
  }
  try {
    if (!marks_[count_ - 1].reached.query()) {
      return;
    }
    state_ = State::idle;
    PhaseTimes step;
    for (std::size_t i = 0; i + 1 < count_; ++i) {
      const std::chrono::duration<double, std::milli> took(marks_[i].reached.elapsedTime(marks_[i + 1].reached));
      const auto ticks = std::chrono::duration_cast<PhaseTimes::Duration>(took);
      (marks_[i].waits ? step.waited : step.own[static_cast<std::size_t>(marks_[i].phase)]) += ticks;
      step.now += ticks;
    }
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      sums_.own[i] += step.own[i];
    }
    sums_.waited += step.waited;
    sums_.now += step.now.time_since_epoch();
    ++steps_;
    close_steps_ += has_looked_ && is_close_ ? 1 : 0;
  } catch (const std::exception&) {
    state_ = State::idle;
  }
}

}  // namespace lockstep
