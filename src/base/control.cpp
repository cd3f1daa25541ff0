#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "base/control_access.h"
#include "base/option_check.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;

struct TimedStop {
  Clock::time_point time = Clock::time_point::max();
  std::string reason{};
};

using TimedStops = std::array<TimedStop, 4>;  // by StopKind

/// What the program asked for.
struct Requests {
  bool stop = false;
  bool checkpoint = false;
  std::string reason{};
  TimedStops timed{};
};

void check(StopKind kind, std::string function) {
  OptionCheck(std::move(function))
      .refuse_if(kind == StopKind::none, "kind is none, expected who asks for the stop",
                 "leave kind out if the program itself asks")
      .throw_problems();
}

}  // namespace

struct TrainControl::State {
  std::atomic<StopKind> stop{StopKind::none};
  std::atomic<StopKind> agreed{StopKind::none};
  std::atomic<bool> checkpoint{false};
  std::atomic<bool> asked_for{false};
  std::atomic<bool> has_timed{false};  // whether one of `timed` has a time
  mutable std::mutex mutex;            // guards those below
  std::string reason;
  StopKind reason_kind = StopKind::none;
  TimedStops timed;
  std::vector<Requests> fits;  // for each running fit: the program's requests to the one around it
  std::thread::id thread;      // in which they run

  // A signal handler uses these; they must be lock-free.
  static_assert(std::atomic<StopKind>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

  /// True for the first request, and for the first one that is not the program's: the program's stop must not hide a
  /// signal's.
  bool claim_stop(StopKind kind) noexcept {
    auto before = StopKind::none;
    while (before == StopKind::none || (kind != StopKind::program && before == StopKind::program)) {
      if (stop.compare_exchange_weak(before, kind)) {
        return true;
      }
    }
    return false;
  }

  void stop_now(std::string why, StopKind kind) noexcept {
    if (claim_stop(kind)) {
      reason = std::move(why);
      reason_kind = kind;
    }
  }

  void set_timed(TimedStops next) noexcept {
    timed = std::move(next);
    has_timed.store(std::ranges::any_of(timed, [](const TimedStop& each) { return each.time != TimedStop().time; }));
  }

  void look_at_time() noexcept {
    const Clock::time_point now = Clock::now();
    for (std::size_t kind = 0; kind < timed.size(); ++kind) {
      if (now >= timed[kind].time) {
        stop_now(std::exchange(timed[kind], {}).reason, static_cast<StopKind>(kind));
      }
    }
  }

  /// Returns the program's requests and clears them, except the timed one.
  Requests take() {
    auto own = StopKind::program;
    const bool stopped = stop.compare_exchange_strong(own, StopKind::none);
    return {.stop = stopped,
            .checkpoint = checkpoint.exchange(false),
            .reason = stopped && reason_kind == StopKind::program ? std::move(reason) : std::string()};
  }
};

TrainControl::TrainControl() : state_(std::make_shared<State>()) {}

void TrainControl::request_stop(std::string_view reason, StopKind kind) {
  check(kind, "request_stop");
  const std::lock_guard lock(state_->mutex);
  state_->stop_now(std::string(reason), kind);
}

void TrainControl::request_stop_at(Clock::time_point time, std::string_view reason, StopKind kind) {
  check(kind, "request_stop_at");
  const std::lock_guard lock(state_->mutex);
  TimedStop& timed = state_->timed[static_cast<std::size_t>(kind)];
  if (time < timed.time) {
    timed = {.time = time, .reason = std::string(reason)};
    state_->has_timed.store(true);
  }
}

void TrainControl::request_checkpoint() noexcept { state_->checkpoint.store(true); }
bool TrainControl::request_stop_from_signal(StopKind kind) noexcept {
  state_->claim_stop(kind);
  return state_->asked_for.load();
}
StopKind TrainControl::stop_requested() const noexcept {
  state_->asked_for.store(true);
  if (state_->has_timed.load()) {
    const std::lock_guard lock(state_->mutex);
    state_->look_at_time();
  }
  return state_->stop.load();
}

std::string TrainControl::stop_reason() const {
  const std::lock_guard lock(state_->mutex);
  state_->look_at_time();
  const StopKind kind = state_->stop.load();
  if (kind == state_->reason_kind && !state_->reason.empty()) {
    return state_->reason;
  }
  switch (kind) {
    case StopKind::none:
      return "";
    case StopKind::program:
      return "the program requested a stop";
    case StopKind::terminate:
      return "a signal requested a stop";
    case StopKind::interrupt:
      return "Ctrl-C";
  }
  return "";
}

bool TrainControl::take_checkpoint_request() noexcept { return state_->checkpoint.exchange(false); }

void TrainControl::set_agreed(StopKind kind) noexcept { state_->agreed.store(kind); }
StopKind TrainControl::agreed() const noexcept { return state_->agreed.load(); }

void TrainControlAccess::begin_fit(TrainControl& control) {
  TrainControl::State& state = *control.state_;
  const std::lock_guard lock(state.mutex);
  // Those from before the first fit are for it.
  Requests outer;
  if (state.fits.empty()) {
    state.thread = std::this_thread::get_id();
  } else if (state.thread != std::this_thread::get_id()) {
    throw ConfigError("a fit in another thread uses this TrainControl, so a stop would be for either of them",
                      "give each training a TrainControl of its own: Trainer(plan, world, TrainControl())");
  } else {
    outer = state.take();
    outer.timed = state.timed;
  }
  state.fits.push_back(std::move(outer));
}

void TrainControlAccess::end_fit(TrainControl& control) noexcept {
  TrainControl::State& state = *control.state_;
  const std::lock_guard lock(state.mutex);
  LOCKSTEP_ASSERT(!state.fits.empty(), "no fit has begun");
  state.take();
  Requests outer = std::move(state.fits.back());
  state.fits.pop_back();
  state.checkpoint.store(outer.checkpoint);
  state.set_timed(std::move(outer.timed));
  if (outer.stop) {
    state.stop_now(std::move(outer.reason), StopKind::program);
  }
}

bool TrainControlAccess::in_fit(const TrainControl& control) noexcept {
  TrainControl::State& state = *control.state_;
  const std::lock_guard lock(state.mutex);
  return !state.fits.empty();
}

void TrainControlAccess::clear_requests(TrainControl& control) noexcept {
  TrainControl::State& state = *control.state_;
  const std::lock_guard lock(state.mutex);
  state.take();
}

}  // namespace lockstep
