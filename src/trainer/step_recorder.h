// What every step did, for `lockstep compare`. A null object without report.record.
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

  /// Steps after `from_step` are recorded from now on. Files that cannot be written are warnings.
  void open(std::int64_t from_step);
  /// The step that has just been done. Nothing waits for the device but every 64th recorded step.
  void add(const TrainState& state, const StepBatches& batches, const StepResult& result,
           const torch::nn::Module& module);
  /// Everything is in the file. Waits for the device.
  void flush();

 private:
  const TrainConfig& config_;
  const World& world_;
  std::unique_ptr<RecordWriter> writer_{};
  at::Tensor weights_{};  // one for each parameter, so that two that change places are noticed
  std::vector<StepRecord> pending_{};
  std::vector<at::Tensor> digests_{};  // theirs, on the device until they are written
  std::vector<at::Tensor> losses_{};
};

}  // namespace lockstep
