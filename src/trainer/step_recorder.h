// Records every step for `lockstep compare`. Does nothing without report.record.
#pragma once

#include <memory>
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

  /// Starts to record the steps after `from_step`. If a file cannot be written, it logs a warning.
  void open(std::int64_t from_step);
  /// Records the step that has just been completed. Waits for the device only at every 64th recorded step.
  void add(const TrainState& state, const StepBatches& batches, const StepResult& result,
           const torch::nn::Module& module);
  /// Writes all recorded steps to the file. Waits for the device.
  void flush();

 private:
  const TrainConfig& config_;
  const World& world_;
  std::unique_ptr<RecordWriter> writer_{};
  at::Tensor weights_{};  // one weight per parameter, to detect two parameters that are swapped
  std::vector<StepRecord> pending_{};
  std::vector<at::Tensor> digests_{};  // of the recorded steps; on the device until they are written
  std::vector<at::Tensor> losses_{};
};

}  // namespace lockstep
