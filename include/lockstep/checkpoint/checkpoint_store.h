// lockstep/checkpoint/checkpoint_store.h
//
// Checkpoints of a run: every rank takes part, rank 0 writes and reads (with checkpoint.per_node the first rank of
// every node writes, and one of those that have it reads). docs/checkpoints.md is the disk format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <lockstep/base/file_system.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/config/train_config.h>
#include <lockstep/world/named_tensors.h>

namespace lockstep {

class World;

/// What a checkpoint holds: named files of tensors ("model", "optimizer"), a few values, and one byte tensor per rank.
/// src/trainer/resume.cpp lists them for the Trainer; a hand-written loop lists its own.
struct Snapshot {
  std::map<std::string, NamedTensors> tensors{};  ///< each becomes <name>.safetensors; rank 0's are written
  /// state.json. The store adds "format", "data_order", "step" and "world_size" (of the run that wrote it), and reads
  /// "metric.<checkpoint.monitor>" to know the best.
  std::map<std::string, std::string> values{};
  at::Tensor per_rank{};  ///< rng-<rank>.bin; undefined after load at another number of ranks
};

/// A Snapshot and the step it is of.
struct StoredSnapshot {
  std::int64_t step = 0;
  Snapshot snapshot{};
};

/// A save in the background that has ended well.
struct BackgroundSave {
  std::int64_t step = 0;
  double seconds = 0;  ///< from the copy of the state until it was durable, on rank 0
};

/// Everything but save_in_background() and save_ended() first waits for a save in the background, and throws what went
/// wrong with it.
class CheckpointStore {
 public:
  /// Collective. Only ranks that write touch `directory`. `restart`: attempts of the run before this one, for the
  /// manifests.
  CheckpointStore(std::filesystem::path directory, const CheckpointConfig& config, World& world, int restart = 0,
                  FileSystem& fs = real_file_system());
  ~CheckpointStore();  ///< waits for a save in the background; what went wrong with it is lost then

  /// Collective. Durable when it returns, on every rank. Throws on every rank what went wrong on one.
  void save(std::int64_t step, const Snapshot& snapshot);

  /// Collective. As save(), but returns when the tensors are copied to host memory, which is kept for the next one; a
  /// thread writes them. At most one is under way: waits for the one before, too.
  void save_in_background(std::int64_t step, const Snapshot& snapshot);
  /// True on rank 0 from the end of a save in the background until wait_for_save(). One atomic load.
  bool save_ended() const noexcept;
  /// Collective. Waits for the save in the background, if there is one. Throws on every rank what went wrong.
  std::optional<BackgroundSave> wait_for_save();

  /// Collective. The newest step there is, not verified; the same answer on all ranks.
  std::optional<std::int64_t> latest();
  /// Collective. Reads and checks every byte, then gives every rank the tensors (CPU) and values; per_rank is this
  /// rank's own. Throws: CheckpointError naming what is missing or damaged.
  Snapshot load(std::int64_t step);
  /// Collective. The newest that is whole; damaged ones are warned about. nullopt: there is none.
  std::optional<StoredSnapshot> load_latest();
  /// Collective. The same for the best "metric.<checkpoint.monitor>".
  std::optional<StoredSnapshot> load_best();
  /// Collective. Renames what is newer than `step`, so that the run can go on from there; nothing is deleted.
  void abandon_after(std::int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Collective. A checkpoint of any run, verified: its folder (".../step-0000000500", or a link to it), or the newest of
/// a run directory. Rank 0 reads, every rank gets it.
Snapshot load_checkpoint(const std::filesystem::path& checkpoint, World& world);

}  // namespace lockstep
