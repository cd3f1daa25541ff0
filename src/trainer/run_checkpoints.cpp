#include "trainer/run_checkpoints.h"

#include <chrono>
#include <filesystem>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/world/world.h>

#include "base/duration.h"
#include "base/run_files.h"
#include "base/text.h"
#include "checkpoint/named_checkpoint.h"
#include "config/check_config.h"
#include "storage/names.h"
#include "trainer/resume.h"
#include "world/warn_on_main.h"

namespace lockstep {
namespace {

constexpr int kMostFailures = 3;  // consecutive; a full disk seldom becomes free again

}  // namespace

bool would_resume(const Plan& plan, World& world) {
  const TrainConfig& config = plan.config;
  if (!config.checkpoint.enabled) {
    return false;
  }
  const auto hold = RunHold::take(plan, world);  // --fresh renames what is there
  const auto directory = hold->path() / kCheckpointsName;
  const bool has_some =
      !hold->written_directory().empty() && !CheckpointDir(real_file_system(), directory).steps().empty();
  const bool is_asked_for = world.is_main() && !resumes_itself(config.resume);
  const bool is_forbidden = world.is_main() && config.resume == "never";
  return world.any(has_some || is_asked_for) && !world.any(is_forbidden);
}

RunCheckpoints::RunCheckpoints(const Plan& plan, World& world, RunHold& hold, RunFiles& files)
    : config_(plan.config), world_(world), hold_(hold), files_(files), run_(run_directory(plan.config)) {
  if (config_.checkpoint.enabled) {
    store_.emplace(hold_.path() / kCheckpointsName, config_.checkpoint, world_, plan.restart);
  }
}

std::optional<RunCheckpoints::Origin> RunCheckpoints::find_origin() {
  if (!store_) {
    return std::nullopt;
  }
  const OnDamage on_damage = [this](const std::string& what) { files_.event("damaged", {{"what", what}}); };
  // If an attempt died before its first save, the next attempt begins where it began.
  if (hold_.trained_before()) {
    if (auto stored = store_->load_latest(on_damage); stored && stored->contents.values[kLaunchKey] == hold_.launch()) {
      return own(std::move(*stored));
    }
  }
  const std::string resume = world_.broadcast_bytes(config_.resume);
  if (resume == "never") {
    if (store_->latest()) {
      throw CheckpointError(fmt::format("--resume never: {} has checkpoints already", run_),
                            "start over with --fresh, give this run another --run_name, or resume");
    }
    return std::nullopt;
  }
  if (resume == "auto" || resume == "last" || resume == "best") {
    auto stored = resume == "best" ? store_->load_best(on_damage) : store_->load_latest(on_damage);
    if (!stored && resume != "auto") {
      throw CheckpointError(fmt::format("--resume {}: no checkpoint{} in {}", resume,
                                        resume == "best" ? " with " + config_.checkpoint.monitor : "", run_),
                            "check --run_dir and --run_name, or use --resume auto");
    }
    from_best_ = resume == "best";
    return stored ? std::optional(own(std::move(*stored))) : std::nullopt;
  }
  Origin origin{.contents = naming_flag("--resume", [&] { return load_checkpoint(resume, world_, on_damage); }),
                .name = resume};
  refuse_newer_than(origin.contents, resume);
  return origin;
}

// A fresh optimizer and another order of the data would be another training under the same name. A finished run needs
// neither.
RunCheckpoints::Origin RunCheckpoints::own(StoredCheckpoint stored) const {
  if (is_weights_only(stored.contents) && !is_of_finished_run(stored.contents, config_)) {
    const auto path = std::filesystem::path(run_) / kCheckpointsName / step_name(stored.step);
    throw CheckpointError(
        fmt::format("step {} in {} holds only weights (checkpoint.weights_only), so this run cannot be resumed",
                    stored.step, run_),
        fmt::format("start another run from them: --run_name NAME --init_weights {}; --fresh starts this run over",
                    path.string()));
  }
  return {
      .contents = std::move(stored.contents), .name = fmt::format("step {} in {}", stored.step, run_), .is_own = true};
}

// Resuming from an older step would mix two histories in one directory.
void RunCheckpoints::refuse_newer_than(const CheckpointContents& contents, const std::string& from) {
  const auto latest = store_->latest();
  const auto step = parse_int(contents.values.at("step"));
  if (latest && step && *latest > *step) {
    throw CheckpointError(fmt::format("--resume {} is step {}, but {} has step {} already", from, *step, run_, *latest),
                          "continue from there with --resume auto, or give this run another --run_name");
  }
}

void RunCheckpoints::begin_at(std::int64_t step, const Origin& origin) {
  if (from_best_) {
    store_->abandon_after(step);
  }
  last_ = step;
  durable_ = origin.is_own ? step : -1;
}

bool RunCheckpoints::asks_by_time() { return store_ && world_.is_main() && timer_.asks(); }

bool RunCheckpoints::is_due(const TrainState& state, bool ends_epoch) const {
  const CheckpointConfig& c = config_.checkpoint;
  return (c.every_steps > 0 && state.step % c.every_steps == 0) ||
         (c.every_epochs > 0 && ends_epoch && state.epoch % c.every_epochs == 0);
}

RunCheckpoints::Saves RunCheckpoints::save(std::int64_t step, const std::function<CheckpointContents()>& make) {
  if (!store_ || is_saved(step)) {
    return {};
  }
  if (!config_.checkpoint.async) {
    return tolerating([&] { return Saves{save_now(step, make)}; });
  }
  Saves before = collect();
  tolerating([&] {
    store_->save_in_background(step, make());
    last_ = step;
    timer_.restart();
    return Saves();
  });
  return before;
}

RunCheckpoints::Saves RunCheckpoints::save_again(std::int64_t step, const std::function<CheckpointContents()>& make) {
  return store_ ? tolerating([&] { return Saves{save_now(step, make)}; }) : Saves();
}

RunCheckpoints::Saves RunCheckpoints::save_at_end(std::int64_t step, const std::function<CheckpointContents()>& make) {
  Saves saves;
  if (!store_) {
    return saves;
  }
  try {
    if (const auto saved = store_->wait_for_save()) {
      saves.push_back(note(*saved));
    }
  } catch (const IoError& error) {
    warn_on_main(world_, fmt::format("{}; trying again", error.what()));
  }
  if (durable_ != step) {
    saves.push_back(save_now(step, make));
  }
  return saves;
}

RunCheckpoints::Saves RunCheckpoints::collect() {
  if (!store_) {
    return {};
  }
  return tolerating([&] {
    told_end_ = false;
    const auto saved = store_->wait_for_save();
    return saved ? Saves{note(*saved)} : Saves();
  });
}

std::optional<BestCheckpoint> RunCheckpoints::best() {
  const auto found = store_ ? store_->best() : std::nullopt;
  if (!found) {
    return std::nullopt;
  }
  const auto folder = hold_.path() / kCheckpointsName / step_name(found->first);
  return BestCheckpoint{.step = found->first, .value = found->second, .path = folder.string()};
}

BackgroundSave RunCheckpoints::save_now(std::int64_t step, const std::function<CheckpointContents()>& make) {
  const auto start = std::chrono::steady_clock::now();
  store_->save(step, make());
  return note({.step = step, .duration_s = seconds_since(start)});
}

BackgroundSave RunCheckpoints::note(BackgroundSave saved) {
  failures_ = 0;
  last_ = std::max(last_, saved.step);
  durable_ = saved.step;
  timer_.restart();
  files_.event("save", {{"step", saved.step}, {"seconds", saved.duration_s}});
  return saved;
}

// The error is the same on every rank, and so is the result.
RunCheckpoints::Saves RunCheckpoints::tolerating(const std::function<Saves()>& work) {
  try {
    return work();
  } catch (const IoError& error) {
    ++failures_;
    last_ = durable_;
    timer_.restart();
    files_.event("save_failed", {{"what", std::string(error.what())}});
    if (config_.checkpoint.on_error == SaveErrorPolicy::stop || failures_ == kMostFailures) {
      throw;
    }
    warn_on_main(world_, fmt::format("{}{}{}; {}; save failure {} in a row, the run stops at {}", error.what(),
                                     error.hint().empty() ? "" : "; ", error.hint(),
                                     durable() ? fmt::format("step {} is safe", durable_) : "nothing is saved yet",
                                     failures_, kMostFailures));
    return {};
  }
}

}  // namespace lockstep
