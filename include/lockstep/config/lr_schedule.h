// lockstep/config/lr_schedule.h
//
// Learning-rate schedules: what a learning rate is multiplied by at each step. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>

namespace [[gnu::visibility("default")]] lockstep {

struct LrPhase;

/// The place of one update in the run.
struct ScheduleStep {
  std::int64_t step = 0;             ///< 0-based: the update from `step` to `step + 1`
  std::int64_t total_steps = 0;      ///< of the run; 0: not known
  std::int64_t steps_per_epoch = 0;  ///< 0: not known
  double lr_scale = 1;               ///< factor of all learning rates besides the schedule: optim.lr_scaling
  std::int64_t epochs_from = 0;      ///< where epoch 0 would have begun if all epochs were as long as the present one:
                                     ///< (step - epochs_from) / steps_per_epoch epochs are done
};

/// A schedule: one phase, or several joined by '+', one after the other. A pure function of the step, so a resumed run
/// continues it exactly.
///
///     cosine                                from 1 to 0 until the end of the run
///     warmup:500+cosine:to=0.1              500 steps of warm-up, then a cosine to a tenth
///     warmup:5%+constant:until=80%+linear   warm-up, stable, decay
///     step:30ep,factor=0.1                  a tenth after every 30 epochs
///
/// A phase is a curve with settings: curve:setting=value,setting=value. It ends after its length (for=500) or at a
/// place in the run (until=80%); without either, it ends with the run. After its end, the last phase keeps its last
/// value. Lengths are steps (500), epochs (2ep) or a part of the run (10%). With per=epoch the rate changes only where
/// an epoch begins. If epochs have different lengths, the first phase with lengths in epochs, and those after it, count
/// the epochs that are done as if each had as many steps as the present one; phases before it count steps.
///
/// Curves: constant, warmup, linear, cosine, polynomial, rex, exponential, step, multistep, inverse_sqrt, restarts,
/// cyclic, one_cycle. docs/training.md has their settings and formulas.
///
/// The constructors from text never throw: an invalid text keeps its problems, so that all problems of a configuration
/// are reported together.
class LrSchedule {
 public:
  using Function = std::function<double(const ScheduleStep&)>;

  LrSchedule() = default;                                                      ///< not set; factor 1
  LrSchedule(const char* text) : LrSchedule(std::string_view(text)) {}         // NOLINT(google-explicit-constructor)
  LrSchedule(const std::string& text) : LrSchedule(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)
  LrSchedule(std::string_view text);                                           // NOLINT(google-explicit-constructor)
  LrSchedule(std::nullptr_t) = delete;
  /// A schedule of your own. It must give the same value on every rank; `name` appears in messages.
  LrSchedule(std::string name, Function factor);

  /// What the base learning rate is multiplied by for this update. The schedule must have no problems in this run.
  double factor(const ScheduleStep& at) const;

  bool is_set() const noexcept { return !text_.empty(); }
  bool is_function() const noexcept { return function_ != nullptr; }            ///< of your own: the text is its name
  const std::string& text() const& noexcept { return text_; }                   ///< as written
  const std::vector<Problem>& problems() const& noexcept { return problems_; }  ///< empty: valid
  std::string text() && { return std::move(text_); }
  std::vector<Problem> problems() && { return std::move(problems_); }
  /// The problems of a valid schedule in a run of this length: it needs an end or epochs that the run does not have.
  std::vector<Problem> problems_in(const ScheduleStep& run) const;
  /// True if another length of the run changes the factors.
  bool depends_on_total_steps() const noexcept;
  bool operator==(const LrSchedule& other) const noexcept { return text_ == other.text_; }

 private:
  std::string text_{};
  std::shared_ptr<const std::vector<LrPhase>> phases_{};
  Function function_{};
  std::vector<Problem> problems_{};
};

}  // namespace lockstep
