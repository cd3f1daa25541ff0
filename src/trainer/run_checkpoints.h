// The checkpoints of one run: where the run begins, when it saves, and what happens if a save fails.
#pragma once

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
#include "trainer/interval_timer.h"
#include "trainer/output/run_files.h"

namespace lockstep {

/// Key in the values of a checkpoint: the launch that saved it.
inline constexpr const char* kLaunchKey = "launch";

/// Collective. True if a fit would resume. Takes the run directory as the fit does.
bool would_resume(const Plan& plan, World& world);

class RunCheckpoints {
 public:
  using Saves = std::vector<BackgroundSave>;  ///< saves that became durable

  /// The checkpoint from which a run resumes.
  struct Origin {
    CheckpointContents contents{};
    std::string name{};   ///< "step 500 in runs/a"
    bool is_own = false;  ///< a checkpoint of this run
  };

  /// Collective. Does nothing without config.checkpoint.enabled.
  RunCheckpoints(const Plan& plan, World& world, RunHold& hold, RunFiles& files);

  /// Collective. The checkpoint that rank 0's config.resume requests. If this launch has already saved, its newest
  /// checkpoint is used instead. nullopt: start from the beginning. A skipped damaged checkpoint is recorded as an
  /// event. Throws: CheckpointError if the checkpoint is missing, all are damaged, or the one of this run holds only
  /// weights and the run is not finished.
  std::optional<Origin> find_origin();
  /// Collective. The run resumes from `origin`, which matches it and is `step`.
  void begin_at(std::int64_t step, const Origin& origin);

  /// True on one rank, once, after config.checkpoint.every_s have passed since the last save.
  bool asks_by_time();
  /// Whether a save is due by steps or epochs; the same on every rank.
  bool is_due(const TrainState& state, bool ends_epoch) const;
  bool is_saved(std::int64_t step) const noexcept { return last_ == step; }

  /// Collective. Saves `step`, in the background if configured. Throws: the error of a save, unless
  /// config.checkpoint.on_error tolerates it.
  Saves save(std::int64_t step, const std::function<CheckpointContents()>& make);
  /// Collective. Replaces the checkpoint of `step`, in the foreground. Throws: as save().
  Saves save_again(std::int64_t step, const std::function<CheckpointContents()>& make);
  /// Collective. Saves in the foreground at the end of a run; does not tolerate an error.
  Saves save_at_end(std::int64_t step, const std::function<CheckpointContents()>& make);

  /// True on rank 0 if a background save has ended; true only once for each save.
  bool tells_end() noexcept { return store_ && store_->save_ended() && !std::exchange(told_end_, true); }
  /// Collective. Waits for a background save. Throws like save().
  Saves collect();

  /// Collective. The best checkpoint by config.checkpoint.monitor; nullopt: no checkpoint has that metric.
  std::optional<BestCheckpoint> best();

  /// The newest step whose save is durable; nullopt: none.
  std::optional<std::int64_t> durable() const noexcept {
    return durable_ >= 0 ? std::optional(durable_) : std::nullopt;
  }

 private:
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
  std::int64_t last_ = -1;  // newest step that is saved or being saved
  std::int64_t durable_ = -1;
  int failures_ = 0;  // consecutive
  bool told_end_ = false;
  IntervalTimer timer_{config_.checkpoint.every_s};
};

}  // namespace lockstep
