// lockstep/config/step_count.h
//
// A number of steps as the user writes it. Torch-free.
#pragma once

#include <concepts>
#include <cstdint>

namespace [[gnu::visibility("default")]] lockstep {

/// A number of steps, or a part of all the steps that the data gives. Only the data knows how many these are, so a part
/// becomes a number where they are used.
///
/// | written                         | means                                                        |
/// |---------------------------------|--------------------------------------------------------------|
/// | 0                               | all steps                                                    |
/// | 50                              | 50 steps                                                     |
/// | "10%", StepCount::percent(10)   | a tenth of all steps, rounded to the nearest, at least one   |
///
/// `bool` and floating point do not compile: 0.1 would be no step.
class StepCount {
 public:
  StepCount() = default;                               ///< all steps
  StepCount(std::int64_t number) : number_(number) {}  // NOLINT(google-explicit-constructor): .steps_per_epoch = 50
  template <class T>
  requires std::same_as<T, bool> || std::floating_point<T> StepCount(T)
  = delete;
  static StepCount percent(double percent) noexcept {
    StepCount count;
    count.is_part_ = true;
    count.percent_ = percent;
    return count;
  }

  /// A number of 0 or more, or a part above 0% and at most 100%.
  bool is_valid() const noexcept { return is_part_ ? percent_ > 0 && percent_ <= 100 : number_ >= 0; }
  bool is_all() const noexcept { return !is_part_ && number_ == 0; }
  bool is_part() const noexcept { return is_part_; }
  std::int64_t number() const noexcept { return number_; }  ///< 0: all, or a part
  double percent() const noexcept { return percent_; }      ///< of a part
  /// The number of steps if the data gives `all` of them. A number may be larger than `all`.
  std::int64_t of(std::int64_t all) const noexcept;
  bool operator==(const StepCount&) const = default;

 private:
  std::int64_t number_ = 0;
  bool is_part_ = false;
  double percent_ = 0;
};

}  // namespace lockstep
