// A callback made from a function.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include <lockstep/trainer/callback.h>

namespace lockstep {

class FunctionCallback final : public Callback {
 public:
  FunctionCallback(std::string name, std::uint32_t stages, std::function<void(const StageContext&)> f,
                   OnOptions options)
      : name_(std::move(name)), stages_(stages), f_(std::move(f)), options_(std::move(options)) {}

  std::string_view name() const override { return name_; }
  std::uint32_t stages() const override { return stages_; }
  bool is_light() const override { return options_.is_light; }
  void on(const StageContext& context) override {
    const std::int64_t count = context.stage == Stage::epoch_end ? context.state.epoch : context.state.step;
    if (count % options_.every == 0 && (!options_.when || options_.when(context))) {
      f_(context);
    }
  }

 private:
  std::string name_;
  std::uint32_t stages_;
  std::function<void(const StageContext&)> f_;
  OnOptions options_;
};

}  // namespace lockstep
