// The checkpoints of one run: where it begins, when it saves, and what happens when it cannot.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/plan/plan.h>
#include <lockstep/trainer/train_state.h>

#include "checkpoint/run_hold.h"
#include "trainer/run_files.h"

namespace lockstep {

/// In a checkpoint's values: the launch that saved it.
inline constexpr const char* kLaunchKey = "launch";

class RunCheckpoints {
 public:
  using Saves = std::vector<BackgroundSave>;  ///< that became durable

  /// What to go on from.
  struct Origin {
    CheckpointContents contents{};
    std::string name{};  ///< "step 500 in runs/a"
  };

  /// Collective. Does nothing at all without config.checkpoint.enabled.
  RunCheckpoints(const Plan& plan, World& world, RunHold& hold, RunFiles& files);

  /// Collective. What rank 0's config.resume asks for; the newest of this launch once it has saved, whatever it began
  /// with. nullopt: begin anew. A damaged checkpoint that is passed over is an event. Throws: CheckpointError when it
  /// is not there, or all are damaged.
  std::optional<Origin> find_origin();
  /// Collective. The run goes on from `step` of an origin, which fits.
  void begin_at(std::int64_t step);

  /// True on one rank once config.checkpoint.every_s have passed since the last save; asks once.
  bool asks_by_time();
  /// By steps or epochs; the same on every rank.
  bool is_due(const TrainState& state, bool ends_epoch) const;
  bool is_saved(std::int64_t step) const noexcept { return last_ == step; }

  /// Collective. Saves `step`, in the background if so configured. Throws: what
  /// config.checkpoint.on_error does not tolerate.
  Saves save(std::int64_t step, const std::function<CheckpointContents()>& make);
  /// Collective. In the foreground, for the end of a run: the error of this save is not tolerated.
  Saves save_at_end(std::int64_t step, const std::function<CheckpointContents()>& make);

  /// True on rank 0 when collect() has something; says so once for each save.
  bool tells_end() noexcept { return store_ && store_->save_ended() && !std::exchange(told_end_, true); }
  /// Collective. Waits for a save in the background. Throws as save() does.
  Saves collect();

  /// Collective. The best checkpoint by config.checkpoint.monitor; nullopt: none was saved with that metric.
  std::optional<BestCheckpoint> best();

  /// The newest step that is safe; nullopt: none.
  std::optional<std::int64_t> durable() const noexcept {
    return durable_ >= 0 ? std::optional(durable_) : std::nullopt;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Origin own(StoredCheckpoint stored) const;
  void refuse_newer_than(const CheckpointContents& contents, const std::string& from);
  Saves tolerating(const std::function<Saves()>& work);
  BackgroundSave note(BackgroundSave saved);
  BackgroundSave save_now(std::int64_t step, const std::function<CheckpointContents()>& make);

  const TrainConfig& config_;
  World& world_;
  RunHold& hold_;
  RunFiles& files_;
  std::string run_;
  bool from_best_ = false;
  std::optional<CheckpointStore> store_{};
  std::int64_t last_ = -1;  // saved, or being saved
  std::int64_t durable_ = -1;
  int failures_ = 0;  // in a row
  bool asked_ = false;
  bool told_end_ = false;
  Clock::time_point last_time_ = Clock::now();
};

}  // namespace lockstep
