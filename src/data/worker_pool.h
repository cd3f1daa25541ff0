// The threads that build batches.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "data/device_prefetcher.h"
#include "data/step_plan.h"

namespace lockstep {

/// A step that is being built.
struct PendingStep {
  StepPlan plan{};
  std::vector<PreparedBatch> micro{};  ///< one for each of plan.micro_batches; front()'s caller may move them away
 private:
  friend class WorkerPool;
  std::size_t claimed = 0;  ///< micro-batches that are being built or are complete
  std::size_t built = 0;
  std::size_t failed_at = 0;   ///< the micro-batch of `error`
  std::exception_ptr error{};  ///< of the first micro-batch that failed, in order of micro-batches, not of time
};

/// Threads that build micro-batches ahead. Whole steps come out in the order in which they were submitted; the
/// micro-batches of all submitted steps are built in parallel. Without threads, the caller builds a step when it takes
/// it. One caller; the pool owns its threads.
class WorkerPool {
 public:
  /// Fills step.micro[index]. Called by several threads at once, each time with another (step, index).
  using Build = std::function<void(PendingStep& step, std::size_t index)>;
  using Time = std::chrono::steady_clock::time_point;

  WorkerPool(int workers, Build build);
  ~WorkerPool();

  /// A step to plan and submit; reuses the storage of an earlier one.
  std::unique_ptr<PendingStep> spare();
  void submit(std::unique_ptr<PendingStep> step);
  std::size_t pending() const noexcept { return pending_.size(); }
  /// Waits for the oldest pending step, which stays pending. Throws: the exception of `build`, again at every call.
  PendingStep& front();
  /// Waits for it until `until` at most. True: front() returns at once, or has no thread to wait for.
  bool is_complete(Time until);
  void pop();
  /// Discards all pending steps after the micro-batches in progress are complete.
  void clear();
  /// The same, but waits until `until` at most. False: some are still in progress, and no others begin.
  bool clear(Time until);
  /// Ends the threads after the micro-batches in progress; the destructor waits for them.
  void stop();

 private:
  void work(const std::stop_token& stop);
  void build_next(PendingStep& step, std::unique_lock<std::mutex>& lock);
  void claim_all();
  void drop_all();
  PendingStep* find_unclaimed() const;

  Build build_;
  mutable std::mutex mutex_;
  std::condition_variable_any submitted_;
  std::condition_variable built_;
  std::deque<std::unique_ptr<PendingStep>> pending_;  // changed only by the caller, under the mutex
  std::size_t building_ = 0;
  std::vector<std::unique_ptr<PendingStep>> spares_;  // used only by the caller
  std::latch ready_;
  std::vector<std::jthread> threads_;  // last member: they use all others
};

}  // namespace lockstep
