// The same batch again and again, and the time between two of its steps.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <lockstep/data/data_loader.h>

class OneBatch final : public lockstep::BatchSource {
 public:
  using Clock = std::chrono::steady_clock;

  /// `batch`: of this rank, one of `ranks`. The first steps are a warm-up.
  OneBatch(lockstep::Batch batch, std::int64_t steps, int ranks = 1) : steps_(steps) {
    step_.local_samples = batch.samples;
    step_.global_samples = batch.samples * ranks;
    step_.micro.push_back(std::move(batch));
  }
  const lockstep::StepBatches* next() override {
    const Clock::time_point now = Clock::now();
    if (served_ > warm_up_) {
      times_.push_back(std::chrono::duration<double>(now - last_).count());
    }
    last_ = now;
    return served_++ == warm_up_ + steps_ ? nullptr : &step_;
  }
  std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
  lockstep::LoaderPosition position() const override { return {}; }
  void seek(const lockstep::LoaderPosition&) override {}

  /// Mean time of a step.
  double seconds() const {
    double sum = 0;
    for (const double time : times_) {
      sum += time;
    }
    return sum / static_cast<double>(times_.size());
  }
  /// Of each step after the warm-up.
  const std::vector<double>& times() const { return times_; }

 private:
  static constexpr std::int64_t kLongestWarmUp = 50;

  std::int64_t steps_;
  std::int64_t warm_up_ = std::min(kLongestWarmUp, 2 * steps_);
  lockstep::StepBatches step_;
  std::int64_t served_ = 0;
  Clock::time_point last_{};
  std::vector<double> times_{};
};
