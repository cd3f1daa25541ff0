#include "data/worker_pool.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>

#include "base/assertion.h"
#include "base/log_label.h"

namespace lockstep {

WorkerPool::WorkerPool(int workers, Build build) : build_(std::move(build)), ready_(workers) {
  if (workers == 0) {
    return;
  }
  // Each worker computes with one thread; more would compete with the training step for the cores. at::set_num_threads
  // sets the calling thread, but also the default for threads that have not used LibTorch yet: restore that default.
  // LibTorch has no call for one thread alone, and OneThread does not reach MKL. So a thread of the program that first
  // uses LibTorch in this moment computes with one thread, too, unless it has called at::get_num_threads() before.
  const int compute_threads = at::get_num_threads();
  threads_.reserve(static_cast<std::size_t>(workers));
  for (int i = 0; i < workers; ++i) {
    threads_.emplace_back([this, label = log_label()](const std::stop_token& stop) {
      const LogLabelScope scope(label);
      work(stop);
    });
  }
  ready_.wait();
  at::set_num_threads(compute_threads);
}

WorkerPool::~WorkerPool() { stop(); }  // all, before the first is joined

void WorkerPool::stop() {
  for (std::jthread& thread : threads_) {
    thread.request_stop();
  }
}

std::unique_ptr<PendingStep> WorkerPool::spare() {
  if (spares_.empty()) {
    return std::make_unique<PendingStep>();
  }
  std::unique_ptr<PendingStep> step = std::move(spares_.back());
  spares_.pop_back();
  return step;
}

void WorkerPool::submit(std::unique_ptr<PendingStep> step) {
  step->micro.resize(step->plan.micro_batches);
  step->claimed = 0;
  step->built = 0;
  step->error = nullptr;
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(step));
  }
  submitted_.notify_all();
}

PendingStep& WorkerPool::front() {
  LOCKSTEP_ASSERT(!pending_.empty(), "front() needs a submitted step");
  PendingStep& step = *pending_.front();
  std::unique_lock lock(mutex_);
  while (threads_.empty() && step.claimed < step.plan.micro_batches) {
    build_next(step, lock);
  }
  built_.wait(lock, [&] { return step.built == step.plan.micro_batches; });
  if (step.error) {
    std::rethrow_exception(step.error);
  }
  return step;
}

bool WorkerPool::is_complete(Time until) {
  LOCKSTEP_ASSERT(!pending_.empty(), "is_complete() needs a submitted step");
  const PendingStep& step = *pending_.front();
  std::unique_lock lock(mutex_);
  return threads_.empty() || built_.wait_until(lock, until, [&] { return step.built == step.plan.micro_batches; });
}

void WorkerPool::pop() {
  const std::lock_guard lock(mutex_);
  spares_.push_back(std::move(pending_.front()));
  pending_.pop_front();
}

void WorkerPool::clear() {
  std::unique_lock lock(mutex_);
  claim_all();
  built_.wait(lock, [&] { return building_ == 0; });
  drop_all();
}

bool WorkerPool::clear(Time until) {
  std::unique_lock lock(mutex_);
  claim_all();
  if (!built_.wait_until(lock, until, [&] { return building_ == 0; })) {
    return false;
  }
  drop_all();
  return true;
}

// Under the mutex, as drop_all().
void WorkerPool::claim_all() {
  for (const auto& step : pending_) {
    step->claimed = step->plan.micro_batches;
  }
}

void WorkerPool::drop_all() {
  for (; !pending_.empty(); pending_.pop_front()) {
    pending_.front()->micro.clear();
    spares_.push_back(std::move(pending_.front()));
  }
}

void WorkerPool::work(const std::stop_token& stop) {
  at::get_num_threads();  // reads the default now; else the first tensor operation would override the next line
  at::set_num_threads(1);
  ready_.count_down();
  std::unique_lock lock(mutex_);
  while (true) {
    PendingStep* step = nullptr;
    submitted_.wait(lock, stop, [&] { return (step = find_unclaimed()) != nullptr; });
    if (stop.stop_requested()) {
      return;
    }
    build_next(*step, lock);
  }
}

void WorkerPool::build_next(PendingStep& step, std::unique_lock<std::mutex>& lock) {
  const std::size_t index = step.claimed++;
  ++building_;
  lock.unlock();
  std::exception_ptr error;
  try {
    build_(step, index);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  --building_;
  ++step.built;
  if (error && (!step.error || index < step.failed_at)) {
    step.error = error;
    step.failed_at = index;
  }
  built_.notify_one();
}

PendingStep* WorkerPool::find_unclaimed() const {
  // The plan says how many: the caller may be moving the micro-batches of a complete step at this moment.
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [](const auto& step) { return step->claimed < step->plan.micro_batches; });
  return found == pending_.end() ? nullptr : found->get();
}

}  // namespace lockstep
