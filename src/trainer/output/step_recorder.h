// Records every step for `lockstep compare`. Does nothing without report.record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/plan/plan.h>
#include <lockstep/trainer/train_state.h>
#include <lockstep/world/world.h>

#include "report/step_records.h"

namespace lockstep {

class StepRecorder {
 public:
  StepRecorder(const TrainConfig& config, const World& world);
  ~StepRecorder();

  /// What values() was when the checkpoint was written. Call it before open().
  void restore(const std::map<std::string, std::string>& values);
  /// Collective if it records. Starts to record the steps after `step` in the run directory. A file that does not
  /// have the records of before is renamed, with a warning. If a file cannot be written, it logs a warning.
  void open(const std::filesystem::path& directory, std::int64_t step, World& world);
  /// Collective if it records. For a checkpoint, after flush(): what a run that resumes from it finds in the files of
  /// all ranks.
  std::map<std::string, std::string> values(World& world) const;
  /// Records the step that has just been completed. Waits for the device only at every 64th recorded step.
  void add(const TrainState& state, const StepBatches& batches, const StepResult& result,
           const torch::nn::Module& module);
  /// Weights of before were put back after the last step.
  void note_rollback() noexcept { rolled_back_ = true; }
  /// Collective. The first recorded step since the last call after which the parameters of the ranks differ; nullopt:
  /// none. For dist.check_replicas. Waits for the device.
  std::optional<std::int64_t> find_divergence(World& world);
  /// Writes all recorded steps to the file. Waits for the device. Throws: CommError if a collective on it has failed.
  void flush();

 private:
  const TrainConfig& config_;
  const World& world_;
  std::vector<RecordsEnd> ends_{};  // of each rank's file, at the checkpoint
  std::unique_ptr<RecordWriter> writer_{};
  at::Tensor weights_{};  // one weight per parameter, to detect two parameters that are swapped
  std::vector<StepRecord> pending_{};
  std::vector<at::Tensor> digests_{};  // of the recorded steps; on the device until they are written
  std::vector<at::Tensor> losses_{};
  std::vector<at::Tensor> left_out_{};  // 1: an update; undefined: none can be
  bool rolled_back_ = false;
  std::vector<std::int64_t> unchecked_steps_{};  // for find_divergence()
  std::vector<at::Tensor> unchecked_{};
};

}  // namespace lockstep
