// lockstep/checkpoint/checkpoint_store.h
//
// The checkpoints of a run. All ranks take part; rank 0 writes and reads. With checkpoint.per_node the first rank of
// every node writes, and one rank that has the checkpoint reads. docs/checkpoint_format.md describes the disk format.
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
#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// The contents of a checkpoint: named groups of tensors ("model", "optimizer"), a few values, and one byte tensor per
/// rank. src/trainer/resume.cpp lists the contents for the Trainer; a hand-written loop lists its own.
struct CheckpointContents {
  std::map<std::string, NamedTensors> tensors{};  ///< each becomes <name>.safetensors; those of rank 0 are written
  /// state.json. The store adds "format", "data_order", "step" and "world_size" (of the run that wrote it), and reads
  /// "metric.<checkpoint.monitor>" to find the best checkpoint. A number that is not whole is exact as a tensor in
  /// `tensors`; std::to_string() would cut it after six digits. Names are UTF-8, values any bytes.
  std::map<std::string, std::string> values{};
  at::Tensor per_rank{};  ///< rng-<rank>.bin; undefined after a load with another number of ranks; see restore_rng()
  /// Other names of tensors of "model" (tied weights), each with the name that it has there: written into the metadata
  /// of model.safetensors for Python. A load leaves it empty, because load_module() finds them in the module.
  std::map<std::string, std::string> tied_names{};
};

/// Is called for each checkpoint that is skipped because it is damaged. `what` names the checkpoint and the damage.
using OnDamage = std::function<void(const std::string& what)>;

/// The contents of a checkpoint and its step.
struct StoredCheckpoint {
  std::int64_t step = 0;
  CheckpointContents contents{};
};

/// A key of CheckpointContents::values: "false" means that parameters are NaN or infinite. Retention never deletes the
/// newest checkpoint without this mark.
inline constexpr const char* kParametersFinite = "parameters_finite";

/// A successful save in the background.
struct BackgroundSave {
  std::int64_t step = 0;
  double duration_s = 0;  ///< from the copy of the state until it was durable, on rank 0
};

/// All functions except save_in_background() and save_ended() first wait for a save in the background, and throw its
/// error.
class CheckpointStore {
 public:
  /// Collective. Only ranks that write use `directory`. `restart`: earlier attempts of this run, for the manifests.
  /// Keeps a reference to `world`.
  CheckpointStore(std::filesystem::path directory, const CheckpointConfig& config, World& world, int restart = 0,
                  FileSystem& fs = real_file_system());
  ~CheckpointStore();  ///< waits for a save in the background (its error is discarded) and for removals

  /// Collective. The checkpoint is durable on return, on every rank. An error of one rank is thrown on all ranks. Old
  /// checkpoints exist no longer; a thread removes their files, and the next save waits for it.
  void save(std::int64_t step, const CheckpointContents& contents);

  /// Collective. As save(), but returns once the tensors are copied to host memory; a thread writes them. The memory is
  /// kept for the next save. At most one save is active: first waits for the previous one.
  void save_in_background(std::int64_t step, const CheckpointContents& contents);
  /// True on rank 0 from the end of a save in the background until wait_for_save(). Costs one atomic load.
  bool save_ended() const noexcept;
  /// Collective. Waits for the save in the background, if any. An error of one rank is thrown on all ranks.
  std::optional<BackgroundSave> wait_for_save();

  /// Collective. The step of the newest checkpoint, not verified; the same on all ranks.
  std::optional<std::int64_t> latest();
  /// Collective. Reads and verifies every byte, then gives every rank the tensors (on the CPU) and the values;
  /// `per_rank` is this rank's own. Throws: CheckpointError naming the missing or damaged file, IoError if one cannot
  /// be read now.
  CheckpointContents load(std::int64_t step);
  /// Collective. The newest undamaged checkpoint; nullopt: there is no checkpoint. For a damaged one it logs a warning
  /// and calls `on_damage` on every rank; the next save renames it, so that it is never replaced or deleted. Throws:
  /// CheckpointError naming all of them if all are damaged, IoError if one cannot be read now.
  std::optional<StoredCheckpoint> load_latest(const OnDamage& on_damage = {});
  /// Collective. As load_latest(), for the best "metric.<checkpoint.monitor>".
  std::optional<StoredCheckpoint> load_best(const OnDamage& on_damage = {});
  /// Collective. Step and value of the checkpoint that load_best() tries first; the same on all ranks.
  std::optional<std::pair<std::int64_t, double>> best();
  /// Collective. Renames the checkpoints after `step`, so that the run can continue from there; deletes nothing.
  void abandon_after(std::int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Collective. Loads and verifies a checkpoint of any run: its folder (".../step-0000000500", or a link to it), or the
/// newest undamaged one of a run directory. For a damaged one it logs a warning and calls `on_damage` on rank 0. Rank 0
/// reads; every rank gets the contents.
CheckpointContents load_checkpoint(const std::filesystem::path& checkpoint, World& world,
                                   const OnDamage& on_damage = {});

}  // namespace lockstep
