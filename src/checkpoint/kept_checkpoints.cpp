#include "checkpoint/kept_checkpoints.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/find_value.h"
#include "base/log_label.h"
#include "base/mapped.h"
#include "base/run_files.h"
#include "base/text.h"
#include "checkpoint/contents_files.h"
#include "config/name_template.h"
#include "environment/process_name.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using std::filesystem::path;

std::unique_ptr<FileLock> lock_directory(FileSystem& fs, const path& directory) {
  fs.create_directories(directory);
  // The directory of the run must be as durable as the checkpoints in it.
  const path run = std::filesystem::absolute(directory / ".").parent_path().parent_path();
  fs.sync_directory(run);
  fs.sync_directory(run.parent_path());
  std::string owner;
  auto lock = fs.try_lock(directory / kLockName, pid_on_host(), owner);
  if (lock == nullptr) {
    const bool is_own = owner == pid_on_host();
    throw CheckpointError(fmt::format("checkpoints in {}: locked by {}{}", directory.string(), printable(owner),
                                      is_own ? ", which is this process" : ""),
                          is_own
                              ? "end the training that saves there first, or give this one a plan with another run_dir"
                              : "wait for that run to end, or use another run directory");
  }
  return lock;
}

/// The directory of the run, which identifies its checkpoints in the log.
std::string run_name(const path& checkpoints) {
  return std::filesystem::absolute(checkpoints / ".").parent_path().parent_path().filename().string();
}

bool is_full(const IoError& error) { return error.number() == ENOSPC || error.number() == EDQUOT; }

/// With checkpoint.per_node another node may have the values: a start does not end because of this node's disk.
std::map<std::string, std::string> values_of(const CheckpointFiles& files, bool per_node) {
  try {
    return peek_values(files);
  } catch (const IoError& error) {
    if (!per_node) {
      throw;
    }
    log_warning(error.what());
    return {};
  }
}

void tolerating_old_ones(const std::function<void()>& work) {
  try {
    work();
  } catch (const IoError& error) {
    log_warning(fmt::format("could not delete old checkpoints: {}", error.what()));
  }
}

}  // namespace

KeptCheckpoints::KeptCheckpoints(path directory, const CheckpointConfig& config, int restart, FileSystem& fs)
    : fs_(fs),
      path_(std::filesystem::absolute(directory)),
      config_(config),
      directory_(fs, path_, run_name(path_), restart) {
  config_.keep_last = std::max(config.keep_last, 2);
}

KeptCheckpoints::~KeptCheckpoints() {
  if (removing_.valid()) {
    removing_.wait();
  }
}

void KeptCheckpoints::open() {
  lock_ = lock_directory(fs_, path_);
  tolerating_old_ones([&] {
    if (const auto removed = directory_.remove_incomplete(); !removed.empty()) {
      log_info(fmt::format("removed incomplete checkpoints: {}", join(removed, ", ")));
    }
  });
  for (const std::int64_t step : directory_.steps()) {
    note_values(step, values_of(files(step), config_.per_node));
  }
}

void KeptCheckpoints::note_values(std::int64_t step, const std::map<std::string, std::string>& values) {
  const std::string* finite = find_value(values, kParametersFinite);
  not_finite_.erase(step);
  if (finite != nullptr && *finite == "false") {
    not_finite_.insert(step);
  }
  const std::string* metric = find_value(values, metric_key(config_.monitor));
  const auto score = metric != nullptr ? parse_double(*metric) : std::nullopt;
  scores_.erase(step);
  if (score) {
    scores_.emplace(step, *score);
  }
}

void KeptCheckpoints::abandon_after(std::int64_t step) {
  std::vector<std::int64_t> steps = directory_.steps();
  std::erase_if(steps, [&](std::int64_t other) { return other <= step; });
  for (const std::string& name : directory_.abandon(steps)) {
    log_warning(fmt::format("newer than step {}, and no longer part of the run: {}", step, name));
  }
  std::erase_if(scores_, [&](const auto& score) { return score.first > step; });
  damaged_.erase(damaged_.upper_bound(step), damaged_.end());
  not_finite_.erase(not_finite_.upper_bound(step), not_finite_.end());
  if (known_whole_ > step) {
    known_whole_.reset();
  }
  if (const auto left = directory_.steps(); std::binary_search(left.begin(), left.end(), step)) {
    link(step, values_of(files(step), config_.per_node));
  }
}

std::vector<std::int64_t> KeptCheckpoints::by_score() const {
  auto steps = mapped(scores_, [](const auto& score) { return score.first; });
  std::stable_sort(steps.begin(), steps.end(), [&](std::int64_t a, std::int64_t b) {
    return config_.mode == MonitorMode::min ? scores_.at(a) < scores_.at(b) : scores_.at(a) > scores_.at(b);
  });
  return steps;
}

std::map<std::int64_t, double> KeptCheckpoints::newest_first() const {
  std::map<std::int64_t, double> keys;
  for (const std::int64_t step : directory_.steps()) {
    keys.emplace(step, static_cast<double>(step));
  }
  return keys;
}

std::map<std::int64_t, double> KeptCheckpoints::best_first() const {
  auto keys = scores_;
  for (auto& [step, key] : keys) {
    key = config_.mode == MonitorMode::min ? -key : key;
  }
  return keys;
}

void KeptCheckpoints::write(std::int64_t step, const CheckpointContents& contents,
                            const std::vector<std::string>& per_rank) {
  if (removing_.valid()) {
    removing_.get();  // the space of the old ones counts as free, and no more than one save's are on the disk
  }
  if (!lock_->is_in_place()) {
    if (fs_.exists(path_) && !fs_.exists(path_ / kLockName)) {
      throw CheckpointError(
          fmt::format("checkpoints in {}: its file {} was removed during the run", path_.string(), kLockName),
          "start again; let no program remove files of a run that is training");
    }
    throw CheckpointError(
        fmt::format("checkpoints in {}: the directory was renamed or removed during the run", path_.string()),
        "leave the directory of a run alone until it ends; start again, with --run_dir if it has another name now");
  }
  lock_->touch();
  const std::int64_t bytes = byte_size(contents);
  if (!config_.keep_all) {
    directory_.make_room(
        bytes, [&] { return newest_whole(); },
        kept_steps(known_whole_.value_or(std::numeric_limits<std::int64_t>::max())));
  }
  keep_damaged();
  for (bool is_written = false; !is_written;) {
    try {
      const auto writer = directory_.begin(step, bytes);
      write_contents(*writer, step, contents, per_rank);
      writer->commit();
      is_written = true;
    } catch (const IoError& error) {
      if (!make_room_after(error)) {
        throw with_advice(error);
      }
    }
  }
  known_whole_ = step;
  note_values(step, contents.values);
  retain(step);
  link(step, contents.values);
}

// A quota is not in the free space of the disk, and the files are larger than their tensors.
bool KeptCheckpoints::make_room_after(const IoError& error) {
  const std::size_t before = directory_.steps().size();
  if (config_.keep_all || !is_full(error) || before <= 2) {
    return false;
  }
  if (const auto whole = newest_whole()) {
    directory_.retain(static_cast<int>(before) - 1, *whole, kept_steps(*whole));
  }
  return directory_.steps().size() < before;
}

// A smaller keep_last is no advice: without room a save leaves two checkpoints and the best ones.
IoError KeptCheckpoints::with_advice(const IoError& error) const {
  if (!is_full(error) || directory_.steps().size() <= 2 || (!config_.keep_all && config_.keep_best == 0)) {
    return error;
  }
  return IoError(
      error.what(),
      fmt::format("{}{}{}", error.hint(), error.hint().empty() ? "" : "; ",
                  config_.keep_all ? "without checkpoint.keep_all a save deletes old checkpoints to make room"
                                   : "with a lower checkpoint.keep_best a save may delete more old checkpoints"),
      error.number());
}

// Deletes nothing until at least one checkpoint is known to be undamaged.
std::optional<std::int64_t> KeptCheckpoints::newest_whole() {
  const auto steps = directory_.steps();
  for (auto step = steps.rbegin(); step != steps.rend() && !known_whole_; ++step) {
    try {
      known_whole_ = directory_.verify(*step).step;
    } catch (const CheckpointError&) {
      damaged_.insert(*step);
    } catch (const IoError&) {
      // It cannot be read now: neither known to be undamaged, nor damaged.
    }
  }
  return known_whole_;
}

void KeptCheckpoints::keep_damaged() {
  for (const std::string& name : directory_.abandon(std::vector(damaged_.begin(), damaged_.end()))) {
    log_warning(fmt::format("damaged, and no longer part of the run: {}", name));
  }
  for (const std::int64_t step : std::exchange(damaged_, {})) {
    scores_.erase(step);
  }
}

std::vector<std::int64_t> KeptCheckpoints::kept_steps(std::int64_t saved) const {
  auto kept = by_score();
  kept.resize(std::min(kept.size(), static_cast<std::size_t>(config_.keep_best)));
  const auto steps = directory_.steps();
  const auto finite = std::find_if(steps.rbegin(), steps.rend(), [&](std::int64_t step) {
    return step <= saved && !not_finite_.contains(step) && !damaged_.contains(step);
  });
  if (finite != steps.rend()) {
    kept.push_back(*finite);
  }
  return kept;
}

// The new checkpoint is durable even if old ones cannot be removed. Returning their space to the disk can take as
// long as half a save, so nobody waits for it but the next save.
void KeptCheckpoints::retain(std::int64_t saved) {
  if (config_.keep_all) {
    return;
  }
  tolerating_old_ones([&] {
    std::vector<path> dropped = directory_.drop(config_.keep_last, saved, kept_steps(saved));
    const auto left = directory_.steps();
    std::erase_if(scores_,
                  [&](const auto& score) { return !std::binary_search(left.begin(), left.end(), score.first); });
    if (!dropped.empty()) {
      // The default policy: if no thread can be created, the next save removes them.
      removing_ = std::async([this, label = log_label(), dropped = std::move(dropped)] {
        const LogLabelScope scope(label);
        tolerating_old_ones([&] { directory_.remove(dropped); });
      });
    }
  });
}

void KeptCheckpoints::link(std::int64_t step, const std::map<std::string, std::string>& values) {
  const auto value = [&](std::string_view name) -> std::optional<double> {
    if (name == "step") {
      return static_cast<double>(step);
    }
    const std::string* found = find_value(values, name == "epoch" ? std::string(name) : metric_key(name));
    return found != nullptr ? parse_double(*found) : std::nullopt;
  };
  try {
    directory_.link("last", step);
    if (!scores_.empty()) {
      directory_.link("best", by_score().front());
    }
    if (const auto name = fill_name(config_.name, value); name && !name->empty()) {
      directory_.link(*name, step);
    }
  } catch (const IoError&) {
    // Links are only for people, and not every file system supports them.
  } catch (const CheckpointError& error) {  // a value made the name too long
    log_warning(error.what());
  }
}

}  // namespace lockstep
