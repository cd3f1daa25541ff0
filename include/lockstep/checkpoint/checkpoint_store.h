// lockstep/checkpoint/checkpoint_store.h
//
// Checkpoints of a run: every rank takes part, rank 0 writes and reads. docs/checkpoints.md is the disk format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/config/train_config.h>
#include <lockstep/world/named_tensors.h>

namespace lockstep {

class World;

/// What a checkpoint holds: named files of tensors ("model", "optimizer"), a few values, and one byte tensor per rank.
/// src/trainer/resume.cpp lists them for the Trainer; a hand-written loop lists its own.
struct Snapshot {
  std::map<std::string, NamedTensors> tensors{};   ///< each becomes <name>.safetensors; rank 0's are written
  /// state.json. The store adds "format", "data_order", "step" and "world_size" (of the run that wrote it).
  std::map<std::string, std::string> values{};
  at::Tensor per_rank{};                           ///< rng-<rank>.bin; undefined after load at another number of ranks
};

class CheckpointStore {
 public:
  /// Collective. Only rank 0 touches `directory`.
  CheckpointStore(std::filesystem::path directory, const CheckpointConfig& config, World& world);
  ~CheckpointStore();

  /// Collective. Durable when it returns, on every rank. Throws on every rank what went wrong on rank 0.
  void save(std::int64_t step, const Snapshot& snapshot);
  /// Collective. Newest checkpoint that verifies, the same answer on all ranks; damaged ones are warned about.
  std::optional<std::int64_t> latest();
  /// Collective. Verifies, then gives every rank the tensors (CPU) and values; per_rank is this rank's own.
  Snapshot load(std::int64_t step);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Collective. One checkpoint folder of any run (".../step-0000000500"), verified; rank 0 reads, every rank gets it.
Snapshot load_checkpoint(const std::filesystem::path& checkpoint, World& world);

}  // namespace lockstep
