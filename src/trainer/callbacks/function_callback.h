// A callback made from a function.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <lockstep/trainer/callback.h>
#include <lockstep/world/world.h>

#include "base/duration.h"
#include "world/world_access.h"

namespace lockstep {

class FunctionCallback final : public Callback {
 public:
  FunctionCallback(std::string name, std::uint32_t stages, std::function<void(const StageContext&)> f,
                   OnOptions options)
      : name_(std::move(name)), stages_(stages), f_(std::move(f)), options_(std::move(options)) {}

  std::string name() const override { return name_; }
  std::uint32_t stages() const override { return stages_; }
  bool is_light() const override { return options_.is_light; }
  void on(const StageContext& context) override {
    if (is_due(context) && (!options_.when || options_.when(context))) {
      last_ = Clock::now();
      f_(context);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_due(const StageContext& context) const {
    if (options_.every_s == 0) {
      return count_of(context) % options_.every == 0;
    }
    // There is no time limit, because another callback of the stage may keep rank 0 for any time.
    return WorldAccess::any_without_timeout(context.world, context.world.is_main() && is_time());
  }

  bool is_time() const { return seconds_since(last_) >= options_.every_s; }

  static std::int64_t count_of(const StageContext& context) {
    if (context.batch != nullptr) {
      return context.batch_number;
    }
    switch (context.stage) {
      case Stage::epoch_start:
      case Stage::epoch_end:
        return context.state.epoch;
      case Stage::checkpoint_saved:
        return context.saved_step;
      default:
        return context.state.step;
    }
  }

  std::string name_;
  std::uint32_t stages_;
  std::function<void(const StageContext&)> f_;
  OnOptions options_;
  Clock::time_point last_ = Clock::now();  // every_s: of the last call
};

}  // namespace lockstep
