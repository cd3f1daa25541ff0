// The small regression; records the dtypes of its computation.
#pragma once

#include <set>

#include "support/tiny_task.h"

namespace lockstep {

class WatchedTask final : public TinyTask {
 public:
  using TinyTask::TinyTask;
  StepOutput training_step(const Batch& batch) override { return watched(batch, training_outputs); }
  StepOutput validation_step(const Batch& batch) override { return watched(batch, validation_outputs); }

  std::set<at::ScalarType> training_outputs{};  // of the linear layer
  std::set<at::ScalarType> validation_outputs{};
  std::set<at::ScalarType> losses{};

 private:
  StepOutput watched(const Batch& batch, std::set<at::ScalarType>& outputs) {
    const auto output = net_(batch.input);
    const auto loss = at::mse_loss(output, batch.target);
    outputs.insert(output.scalar_type());
    losses.insert(loss.scalar_type());
    return loss;
  }
};

/// Records this rank's loss of every step.
class LossRecorder final : public Callback {
 public:
  std::string name() const override { return "loss_recorder"; }
  std::uint32_t stages() const override { return static_cast<std::uint32_t>(Stage::step_end); }
  void on(const StageContext& context) override { losses.push_back(context.step.loss.item<double>()); }

  std::vector<double> losses{};
};

}  // namespace lockstep
