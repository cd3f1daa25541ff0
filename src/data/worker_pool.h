// data/worker_pool.h
#pragma once

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
  std::vector<PreparedBatch> micro{};  ///< one for each of plan.micro_batches
 private:
  friend class WorkerPool;
  std::size_t claimed = 0;  ///< micro-batches that somebody builds or has built
  std::size_t built = 0;
  std::size_t failed_at = 0;   ///< the micro-batch that `error` is of
  std::exception_ptr error{};  ///< the first in the order of micro-batches, whichever thread met it first
};

/// Threads that build micro-batches ahead. Steps come out in the order in which they were submitted, whole;
/// micro-batches of all submitted steps are built at the same time. Without threads, a step is built by the one who
/// takes it. One caller; the threads are its own and end with it.
class WorkerPool {
 public:
  /// Fills step.micro[index]. Called by several threads at once, each time with another (step, index).
  using Build = std::function<void(PendingStep& step, std::size_t index)>;

  WorkerPool(int workers, Build build);
  ~WorkerPool();

  /// A step to plan and submit, with the storage of an earlier one.
  std::unique_ptr<PendingStep> spare();
  void submit(std::unique_ptr<PendingStep> step);
  std::size_t pending() const noexcept { return pending_.size(); }
  /// Waits for the oldest pending step, which stays pending. Throws: what `build` threw, again at every call.
  PendingStep& front();
  void pop();
  /// Drops all pending steps, after the micro-batches in hand are built.
  void clear();

 private:
  void work(const std::stop_token& stop, int rank, int world_size);
  void build_next(PendingStep& step, std::unique_lock<std::mutex>& lock);
  PendingStep* find_unclaimed() const;

  Build build_;
  mutable std::mutex mutex_;
  std::condition_variable_any submitted_;
  std::condition_variable built_;
  std::deque<std::unique_ptr<PendingStep>> pending_;  // changed by the caller alone, under the mutex
  std::size_t building_ = 0;
  std::vector<std::unique_ptr<PendingStep>> spares_;  // the caller's alone
  std::latch ready_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace lockstep
