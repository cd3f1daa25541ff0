// lockstep/checkpoint/checkpoint_store.h
//
// Checkpoints of a run: every rank takes part, rank 0 writes and reads (with checkpoint.per_node the first rank of
// every node writes, and one of those that have it reads). docs/checkpoints.md is the disk format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <lockstep/base/file_system.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/config/train_config.h>
#include <lockstep/world/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

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

/// Hears of a checkpoint that is passed over because it cannot be read, in favour of an older one. `what` names it and
/// the fault.
using OnDamage = std::function<void(const std::string& what)>;

/// A Snapshot and the step it is of.
struct StoredSnapshot {
  std::int64_t step = 0;
  Snapshot snapshot{};
};

/// A value of a snapshot: "false" says that parameters are NaN or infinite. Of the others the newest is never deleted.
inline constexpr const char* kParametersFinite = "parameters_finite";

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
  /// Collective. The newest that is whole; damaged ones are warned about, `on_damage` is called on every rank, and the
  /// next save renames them, so that they are never replaced or deleted. nullopt: there is none. Throws:
  /// CheckpointError naming them when all are damaged.
  std::optional<StoredSnapshot> load_latest(const OnDamage& on_damage = {});
  /// Collective. The same for the best "metric.<checkpoint.monitor>".
  std::optional<StoredSnapshot> load_best(const OnDamage& on_damage = {});
  /// Collective. Step and value of the one that load_best() tries first; the same answer on all ranks.
  std::optional<std::pair<std::int64_t, double>> best();
  /// Collective. Renames what is newer than `step`, so that the run can go on from there; nothing is deleted.
  void abandon_after(std::int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Collective. A checkpoint of any run, verified: its folder (".../step-0000000500", or a link to it), or the newest of
/// a run directory that is whole; damaged ones are warned about, and `on_damage` is called on rank 0. Rank 0 reads,
/// every rank gets it.
Snapshot load_checkpoint(const std::filesystem::path& checkpoint, World& world, const OnDamage& on_damage = {});

}  // namespace lockstep
