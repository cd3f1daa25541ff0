// The checkpoints in the directory of one rank that writes: which of them are kept. No communication.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/config/train_config.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "storage/checkpoint_files.h"

namespace lockstep {

class KeptCheckpoints {
 public:
  KeptCheckpoints(std::filesystem::path directory, const CheckpointConfig& config, int restart, FileSystem& fs);
  ~KeptCheckpoints();  ///< waits for removals
  KeptCheckpoints(const KeptCheckpoints&) = delete;
  KeptCheckpoints& operator=(const KeptCheckpoints&) = delete;

  /// Locks the directory, removes incomplete checkpoints, and reads the values of the others. Throws: CheckpointError
  /// naming the run that holds the lock.
  void open();
  /// The checkpoint is durable on return. Then removes old ones, in a thread, and makes the links.
  void write(std::int64_t step, const CheckpointContents& contents, const std::vector<std::string>& per_rank);
  /// Renames the checkpoints after `step`, and makes the links.
  void abandon_after(std::int64_t step);
  void found_whole(std::int64_t step) { known_whole_ = step; }
  /// The next save renames it.
  void found_damaged(std::int64_t step) { damaged_.insert(step); }

  const CheckpointDir& directory() const noexcept { return directory_; }
  CheckpointFiles files(std::int64_t step) const { return {fs_, directory_.path(step), step}; }
  // The checkpoints with a key: a load tries the largest first.
  std::map<std::int64_t, double> newest_first() const;
  std::map<std::int64_t, double> best_first() const;
  /// The value of the monitored metric behind a key of best_first().
  double value_of(double key) const { return config_.mode == MonitorMode::min ? -key : key; }

 private:
  void note_values(std::int64_t step, const std::map<std::string, std::string>& values);
  /// Best first; among equals the first one first.
  std::vector<std::int64_t> by_score() const;
  /// After a save that found no room: deletes the oldest checkpoint. False: that is no help, or none may go.
  bool make_room_after(const IoError& error);
  /// `error` with what would leave more room for the next save.
  IoError with_advice(const IoError& error) const;
  std::optional<std::int64_t> newest_whole();
  /// The run continued without them. Keeps them for inspection: neither a save nor retention touches them.
  void keep_damaged();
  /// Retained besides the newest steps up to `saved`: the best ones, and the last one from which a run can continue.
  std::vector<std::int64_t> kept_steps(std::int64_t saved) const;
  void retain(std::int64_t saved);
  void link(std::int64_t step, const std::map<std::string, std::string>& values);

  FileSystem& fs_;
  const std::filesystem::path path_;
  CheckpointConfig config_;
  CheckpointDir directory_;
  std::unique_ptr<FileLock> lock_{};
  std::map<std::int64_t, double> scores_{};    // of the checkpoints here with the monitored metric
  std::optional<std::int64_t> known_whole_{};  // the newest that was saved or verified
  std::set<std::int64_t> damaged_{};           // found by a load
  std::set<std::int64_t> not_finite_{};
  std::future<void> removing_{};  // of old checkpoints, after a save: begun by the thread that wrote
};

}  // namespace lockstep
