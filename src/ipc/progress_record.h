// Progress of each rank in memory shared with its supervisor; written without system calls. Torch-free.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace lockstep {

/// Phase of a rank, in the order of a run.
enum class Phase : std::uint8_t {
  start,
  rendezvous,
  prepare,
  resume,
  data,
  copy,  ///< of a step's batch to the GPU, as far as the step waits for it
  task,  ///< the task's optimize(), except the phases below
  forward,
  backward,
  optimizer,
  program,   ///< code of a loop by hand between steps: may take any time
  callback,  ///< of a Trainer: code of the program between steps, may take any time
  report,
  validation,
  test,
  prediction,
  save,
  finish,
  teardown,  ///< the work is done and announced; destructors and exit handlers remain
};
inline constexpr std::size_t kPhaseCount = static_cast<std::size_t>(Phase::teardown) + 1;
std::string_view to_string(Phase phase) noexcept;  ///< "rendezvous"

enum class Operation : std::uint8_t { none, all_reduce, broadcast, all_gather, barrier, any, all, gather, bytes, turn };
std::string_view to_string(Operation operation) noexcept;  ///< "all-reduce"
inline constexpr const char* kSameOrderHint =
    "every rank has to call the same collectives in the same order: look for a branch on the rank";

/// When a process began to train.
struct TrainingStart {
  std::int64_t step = 0;  ///< completed steps of all fits
  std::chrono::steady_clock::time_point time{};
};

/// Where the time of a rank went until `now`, on the steady clock.
struct PhaseTimes {
  using Duration = std::chrono::steady_clock::duration;
  std::array<Duration, kPhaseCount> own{};  ///< by phase, without waiting for other ranks
  Duration waited{};                        ///< in collectives
  std::chrono::steady_clock::time_point now{};

  Duration of(Phase phase) const noexcept { return own[static_cast<std::size_t>(phase)]; }
};

/// A short text that one thread writes and any process may read at any time; a reader may see a partly written text.
class SharedText {
 public:
  static constexpr std::size_t kSize = 56;
  using Copy = std::array<char, kSize>;  ///< padded with zeros

  void set(std::string_view text) noexcept;
  Copy get() const noexcept;

 private:
  std::array<std::atomic<std::uint64_t>, kSize / sizeof(std::uint64_t)> words_{};
};

/// One rank's record. Only the rank writes it; other processes read it at any time. Fields may be from different
/// moments, which is sufficient to find hangs.
struct alignas(64) ProgressRecord {
  std::atomic<std::uint64_t> beats{0};  ///< number of changes of this record; a rank has stalled if it does not change
  std::atomic<std::int64_t> step{-1};   ///< completed steps of the fit; -1: unknown
  std::atomic<std::int64_t> earlier_steps{0};     ///< those of the fits before it, also of programs before this one
  std::atomic<std::int64_t> first_step{-1};       ///< those of all fits when this process began to train
  std::atomic<std::int64_t> first_step_ticks{0};  ///< its time on the steady clock
  std::atomic<std::uint64_t> collectives{0};      ///< collectives begun through World
  std::atomic<std::int64_t> bytes{0};             ///< of the last collective
  std::atomic<Phase> phase{Phase::start};
  std::atomic<Operation> operation{Operation::none};  ///< the current collective; none: outside of collectives
  /// Time in collectives on the steady clock; during a collective, minus its start time.
  std::atomic<std::int64_t> waited_ticks{0};
  SharedText callback{};                            ///< in Phase::callback: its name and stage; see set_callback
  std::atomic<std::int64_t> stall_warning_ms{-1};   ///< dist.stall_warn_s and ...
  std::atomic<std::int64_t> stall_deadline_ms{-1};  ///< ... dist.stall_timeout_s of the program; -1: not known
  std::array<std::atomic<std::int64_t>, kPhaseCount> phase_ticks{};  ///< time in each phase, outside of collectives
  std::atomic<std::int64_t> changed_ticks{0};                        ///< until then it is counted; 0: from now on
  bool in_fit = false;  ///< only for the rank itself: a fit is running, and nothing inside of it changes the step here

  void set_phase(Phase now) noexcept {
    count_time();
    phase.store(now, std::memory_order_relaxed);
    beat();
  }
  /// Sets Phase::callback with the name of the callback and its stage, such as "epoch_end".
  void set_callback(std::string_view name, std::string_view where) noexcept;
  /// A script may have started another program before, which may have ended anywhere. Only its steps still count.
  void begin_program() noexcept {
    keep_steps();
    step.store(-1, std::memory_order_relaxed);
    first_step.store(-1, std::memory_order_release);
    phase.store(Phase::start, std::memory_order_relaxed);
    operation.store(Operation::none, std::memory_order_relaxed);
    for (std::atomic<std::int64_t>& ticks : phase_ticks) {
      ticks.store(0, std::memory_order_relaxed);
    }
    waited_ticks.store(0, std::memory_order_relaxed);
    changed_ticks.store(0, std::memory_order_relaxed);
    in_fit = false;
  }
  /// `done`: the completed steps of a fit that begins.
  void begin_fit(std::int64_t done) noexcept {
    const bool trained = has_trained();
    keep_steps();
    set_step(done);
    if (!trained) {  // earlier fits of a restarted process had nothing to do
      first_step_ticks.store(ticks_now(), std::memory_order_relaxed);
      first_step.store(all_steps(), std::memory_order_release);
    }
  }
  void set_step(std::int64_t done) noexcept {
    step.store(done, std::memory_order_relaxed);
    beat();
  }
  /// Completed steps of all fits; -1: unknown.
  std::int64_t all_steps() const noexcept {
    return earlier_steps.load(std::memory_order_relaxed) + step.load(std::memory_order_relaxed);
  }
  /// This process has completed a step.
  bool has_trained() const noexcept {
    const std::int64_t first = first_step.load(std::memory_order_acquire);
    return first >= 0 && all_steps() > first;
  }
  void set_stall_limits(std::chrono::milliseconds warning, std::chrono::milliseconds deadline) noexcept {
    stall_warning_ms.store(warning.count(), std::memory_order_relaxed);
    stall_deadline_ms.store(deadline.count(), std::memory_order_relaxed);
  }
  void begin(Operation what, std::int64_t size) noexcept {
    bytes.store(size, std::memory_order_relaxed);
    operation.store(what, std::memory_order_relaxed);
    collectives.store(collectives.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    begin_waiting();
    beat();
  }
  void end() noexcept {
    end_waiting();
    operation.store(Operation::none, std::memory_order_relaxed);
    beat();
  }
  /// Adds waiting time that is not visible as a collective of this thread.
  void begin_waiting() noexcept { add_waited(-count_time()); }
  void end_waiting() noexcept {
    const std::int64_t now = ticks_now();
    add_waited(now);
    changed_ticks.store(now, std::memory_order_relaxed);
  }
  /// The times until now; call it only between collectives.
  PhaseTimes times() noexcept {
    using Duration = PhaseTimes::Duration;
    PhaseTimes times{.now = std::chrono::steady_clock::time_point(Duration(count_time()))};
    for (std::size_t i = 0; i < kPhaseCount; ++i) {
      times.own[i] = Duration(phase_ticks[i].load(std::memory_order_relaxed));
    }
    times.waited = Duration(waited_ticks.load(std::memory_order_relaxed));
    return times;
  }
  std::optional<TrainingStart> training_start() const noexcept {
    const std::int64_t step_then = first_step.load(std::memory_order_acquire);
    if (step_then < 0) {
      return std::nullopt;
    }
    const std::chrono::steady_clock::duration ticks(first_step_ticks.load(std::memory_order_relaxed));
    return TrainingStart{step_then, std::chrono::steady_clock::time_point(ticks)};
  }

 private:
  static std::int64_t ticks_now() noexcept { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  static void add(std::atomic<std::int64_t>& sum, std::int64_t ticks) noexcept {
    sum.store(sum.load(std::memory_order_relaxed) + ticks, std::memory_order_relaxed);
  }
  void add_waited(std::int64_t ticks) noexcept { add(waited_ticks, ticks); }
  void keep_steps() noexcept { add(earlier_steps, std::max<std::int64_t>(step.load(std::memory_order_relaxed), 0)); }
  /// Adds the time since the last change to the current phase. Returns the time.
  std::int64_t count_time() noexcept {
    const std::int64_t now = ticks_now();
    const std::int64_t before = changed_ticks.load(std::memory_order_relaxed);
    if (before != 0) {
      add(phase_ticks[static_cast<std::size_t>(phase.load(std::memory_order_relaxed))], now - before);
    }
    changed_ticks.store(now, std::memory_order_relaxed);
    return now;
  }
  void beat() noexcept { beats.store(beats.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};
static_assert(sizeof(ProgressRecord) == 320);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<Phase>::is_always_lock_free);

/// Contents of a record, for tables and error texts.
struct ProgressView {
  std::uint64_t beats = 0;
  std::int64_t step = -1;
  std::uint64_t collectives = 0;
  std::int64_t bytes = 0;
  Phase phase = Phase::start;
  Operation operation = Operation::none;
  SharedText::Copy callback{};  ///< empty in other phases
  bool operator==(const ProgressView&) const = default;
};
ProgressView view(const ProgressRecord& record) noexcept;
std::string_view callback_of(const ProgressView& view) noexcept;  ///< " 'sample' (epoch_end)"; "" in other phases
std::string to_string(const ProgressView& view);  ///< "step 812, backward, in collective 4103: all-reduce of 1.0 MiB"
std::string collective_of(const ProgressView& view);  ///< " in collective 4103: all-reduce of 1.0 MiB"; else ""
/// "at step 812 in data", "after step 812" at the end of a fit and behind it; "": the record was never written.
std::string place_of(const ProgressView& view);

/// The records of all ranks of one machine: anonymous shared memory with a descriptor that workers inherit. The
/// supervisor creates it; a rank maps the same descriptor again, so that no pointer is passed.
class ProgressBoard {
 public:
  /// Allocates memory for so many ranks. Throws: LaunchError.
  explicit ProgressBoard(int ranks);
  /// Maps the memory of `fd` and keeps a duplicate of it (close-on-exec). Throws: LaunchError if it is not a board of
  /// at least `rank` + 1 records.
  ProgressBoard(int fd, int rank);
  ProgressBoard(ProgressBoard&& other) noexcept;
  ProgressBoard& operator=(ProgressBoard&&) = delete;
  ~ProgressBoard();

  int fd() const noexcept { return fd_.get(); }
  int size() const noexcept { return size_; }
  ProgressRecord& operator[](int rank) noexcept { return records_[rank]; }
  const ProgressRecord& operator[](int rank) const noexcept { return records_[rank]; }

 private:
  void map();

  Descriptor fd_;
  int size_ = 0;
  ProgressRecord* records_ = nullptr;
};

/// Sets the phase while it exists, then restores the previous one. If an exception leaves the scope, the phase is kept,
/// to show where the exception came from.
class PhaseScope {
 public:
  PhaseScope(ProgressRecord& record, Phase phase) noexcept
      : record_(record),
        before_(record.phase.load(std::memory_order_relaxed)),
        exceptions_(std::uncaught_exceptions()) {
    record_.set_phase(phase);
  }
  /// Sets Phase::callback; see ProgressRecord::set_callback.
  PhaseScope(ProgressRecord& record, std::string_view callback, std::string_view where) noexcept
      : record_(record),
        before_(record.phase.load(std::memory_order_relaxed)),
        exceptions_(std::uncaught_exceptions()) {
    record_.set_callback(callback, where);
  }
  ~PhaseScope() {
    if (std::uncaught_exceptions() == exceptions_) {
      record_.set_phase(before_);
    }
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  ProgressRecord& record_;
  Phase before_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace lockstep
