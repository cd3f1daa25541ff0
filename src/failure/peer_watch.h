// What a rank knows of failures, and when and how it ends because of one. Pure: events and times in, decisions out.
// Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "failure/deadlines.h"
#include "failure/failure.h"
#include "failure/failure_link.h"
#include "failure/store_link.h"
#include "failure/verdict.h"

namespace lockstep {

/// How a rank ends.
struct ExitDecision {
  int code = 0;
  Failure failure{};        ///< the rank's own failure, or the cause that stops it
  bool is_stopped = false;  ///< by that cause
  bool is_cause = false;    ///< the rank's own failure is the one on which all agree
  bool hangs = false;       ///< others have found it: its main thread does not know of it
};

// Note [How a rank fails]: everything that says that the run is over is a Failure: this rank's exception, the report of
// another rank, an ended process of this machine, an ended launcher, an order of the supervisor, a lost store. The
// first one that is no consequence is announced; through the store all ranks agree on one cause. A rank of which others
// say that it hangs ends as soon as all know. Any other rank that did not fail by itself has a head start: its main
// thread may end by itself, and a launcher sees the rank that failed first. After it the process ends, wherever its
// main thread waits: Gloo and NCCL offer no other way out of a collective.
class PeerWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Options {
    int rank = 0;
    std::chrono::milliseconds head_start = deadlines::kHeadStart;
    /// A launcher that is not ours looks at its ranks now and then and blames the first that it sees.
    bool launcher_blames = false;
  };

  /// `supervisor`: nullptr if no supervisor of ours watches this rank.
  PeerWatch(Options options, FailureLink* supervisor) : options_(options), supervisor_(supervisor) {}

  /// The rendezvous is over: from now on they learn of each other's failures.
  StoreLink& join_peers(int size, ProcessName self, std::string about = {}) {
    return peers_.emplace(options_.rank, size, std::move(self), std::move(about));
  }
  StoreLink* peers() noexcept { return peers_ ? &*peers_ : nullptr; }
  /// All ranks have done their work: an end is no failure any more, and what is known of failures of peers is
  /// forgotten. `peers` is nullptr as soon as no question to the store is out.
  void leave_peers();

  /// This rank's exception: its main thread is about to end the process, with the failure's code.
  void fail(const Failure& own, Time now);
  /// To be said in every step as long as it is so: what ended the launcher, a signal to a whole job for example, may be
  /// about to reach this rank as well.
  void launcher_is_gone(const std::string& name, Time now);
  /// Another rank hangs, or this one.
  void stall_was_found(const Failure& stall, Time now) { verdict_.add(stall, now); }
  void step(Time now);

  /// It is known that the run is over, and perhaps not yet to all ranks.
  bool is_over() const noexcept { return verdict_.cause().has_value(); }
  /// Set: the process has to end now, by its main thread if that failed.
  const std::optional<ExitDecision>& decision() const noexcept { return decision_; }
  bool main_thread_ends() const noexcept { return own_.has_value(); }
  /// When `step` is needed without an event; nullopt: it is not.
  std::optional<Time> due() const;

 private:
  void drop_peers();
  bool is_ordered() const;
  /// So long the others are waited for until they know.
  std::chrono::milliseconds patience() const;
  bool may_end() const;
  ExitDecision make_decision() const;

  const Options options_;
  FailureLink* supervisor_;
  Time now_{};
  std::optional<StoreLink> peers_{};
  bool is_leaving_ = false;
  Verdict verdict_{};
  std::optional<Failure> own_{};
  std::optional<Time> known_at_{};
  std::optional<Time> launcher_gone_at_{};
  std::optional<ExitDecision> decision_{};
};

}  // namespace lockstep
