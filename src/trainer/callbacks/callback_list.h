// The callbacks of a trainer. While a callback runs, the rank's progress record contains its name. It may take any
// time: the other ranks wait for it without a limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/trainer/callback.h>

#include "ipc/progress_record.h"

namespace lockstep {

/// Inside a step or a loop ranks need not be at the same point, and after an exception no collective works.
inline constexpr std::uint32_t kUnsynchronizedStages =
    Stage::step_start | Stage::backward_start | Stage::backward_end | Stage::exception | Stage::validation_batch_start |
    Stage::validation_batch_end | Stage::test_batch_start | Stage::test_batch_end | Stage::predict_batch_start |
    Stage::predict_batch_end;

/// What the strategy and the callbacks keep during a validation. The last one goes first: each restores what it found.
class ValidationScopes {
 public:
  ValidationScopes() = default;
  ~ValidationScopes() { clear(); }
  ValidationScopes(ValidationScopes&&) = default;
  ValidationScopes& operator=(ValidationScopes&&) = delete;

  void add(std::shared_ptr<void> scope) { scopes_.push_back(std::move(scope)); }
  void clear() {
    while (!scopes_.empty()) {
      scopes_.pop_back();
    }
  }

 private:
  std::vector<std::shared_ptr<void>> scopes_{};
};

class CallbackList {
 public:
  /// `is_last`: it is called after all that are not, also after those that are added later. Throws: ConfigError if the
  /// name is already used.
  void add(std::shared_ptr<Callback> callback, bool is_last = false);

  /// Collective. Begins a fit, with `module` on its device: reads the stages of every callback.
  void begin(const torch::nn::Module& module, World& world);
  /// Collective. Begins another loop, which may be inside a callback of a fit.
  void begin(World& world);
  /// Collective. Calls the callbacks of the stage, but not those inside of which it is called. True: one of them froze
  /// or unfroze parameters of the fit's module on any rank.
  bool call(const StageContext& context);

  /// A word for `lockstep ctl`. Throws: ConfigError (other characters than a-z, 0-9, - and _; in use).
  void add_command(const std::string& word);
  const std::vector<std::string>& commands() const noexcept { return commands_; }

  /// A name for a callback that has none: "on_step_end", "on_step_end_2".
  std::string free_name(std::uint32_t stages) const;

  /// True if a callback of this rank has one of the stages.
  bool has(std::uint32_t stages) const noexcept { return (stages_ & stages) != 0; }
  /// True if call() does anything at the stage: this rank has a callback, or another rank has one to agree with.
  bool acts_at(Stage stage) const noexcept { return ((stages_ | synchronized_stages_) & stage) != 0; }
  /// True if one of them may log a metric: it is none of those that only decide by metrics.
  bool may_log(Stage stage) const noexcept;
  /// Before callbacks see the first validation of a run. Throws: the ConfigError of a callback that decides by a metric
  /// of the validation that is not among these.
  void check_metrics_of_validation(const Metrics& metrics) const;
  /// True if any rank has a callback.
  bool has_any() const noexcept { return has_any_; }

  /// Collective. All tensors of the callbacks as "<callback>.<name>"; load restores them. A callback that saved nothing
  /// is loaded only to go `back` to a time when it had no state.
  NamedTensors save(World& world) const;
  void load(const NamedTensors& state, World& world, bool back = false) const;

  /// `first`: what the strategy keeps, which is restored last.
  ValidationScopes validation_scopes(World& world, std::shared_ptr<void> first) const;

 private:
  struct Entry {
    std::string name{};
    std::shared_ptr<Callback> callback{};
    std::uint32_t stages = 0;
    bool is_last = false;
    bool is_running = false;
  };

  void note_frozen(std::vector<bool>& frozen) const;
  /// nullptr: no callback has saved it.
  const Entry* owner_of(std::string_view tensor) const;

  std::vector<Entry> entries_{};
  bool has_any_ = false;                   // on any rank
  std::uint32_t stages_ = 0;               // for which this rank has a callback
  std::uint32_t synchronized_stages_ = 0;  // stages for which any rank has a callback that is not light
  std::vector<at::Tensor> parameters_{};
  std::vector<bool> frozen_before_{};  // memory for call(); same order as parameters_
  std::vector<bool> frozen_{};
  std::vector<std::string> commands_{};
};

std::string_view to_string(Stage stage) noexcept;  ///< "epoch_end"
bool are_stages(std::uint32_t stages) noexcept;    ///< one or several, and nothing else

}  // namespace lockstep
