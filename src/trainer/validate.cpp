#include "trainer/validate.h"

#include <memory>
#include <vector>

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/world/world.h>

#include "parallel/parameter_sync.h"
#include "trainer/agreed_stop.h"
#include "trainer/in_precision.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

// Validation must not affect the training, no matter how often it runs.
class EvaluationScope {
 public:
  EvaluationScope(torch::nn::Module& module, c10::Device device)
      : module_(module),
        device_(device),
        parts_(module.modules(/*include_self=*/false)),  // including the module itself would require a shared_ptr
        was_training_(module.is_training()),
        rng_(rng_state(device)) {
    for (const auto& part : parts_) {
      parts_were_training_.push_back(part->is_training());
    }
    module_.eval();
  }
  ~EvaluationScope() {
    module_.train(was_training_);
    for (std::size_t i = 0; i < parts_.size(); ++i) {  // parents come first, because they also change their children
      if (parts_[i]->is_training() != parts_were_training_[i]) {
        parts_[i]->train(parts_were_training_[i]);
      }
    }
    set_rng_state(rng_, device_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::nn::Module& module_;
  c10::Device device_;
  std::vector<std::shared_ptr<torch::nn::Module>> parts_;
  std::vector<bool> parts_were_training_{};
  bool was_training_;
  at::Tensor rng_;
};

}  // namespace

Evaluation evaluate(Task& task, BatchSource& data, World& world, const TrainConfig& config, const TrainControl& control,
                    const EvaluationOptions& options) {
  const PhaseScope phase(WorldAccess::progress(world), Phase::validation);
  if (config.dist.broadcast_buffers) {
    broadcast_buffers(task.module(), world);
  }
  const EvaluationScope scope(task.module(), world.device());
  const at::NoGradGuard no_grad;
  const LoaderPosition start = data.position();
  Meter meter;
  AgreedStop stop(world, control);
  Evaluation result;
  std::int64_t done = 0;
  for (const StepBatches* step = data.next(); step != nullptr; step = data.next()) {
    for (const Batch& batch : step->micro) {
      if (batch.samples > 0) {
        meter.add(in_precision(config.precision, world.device().type(), batch,
                               [&task](const Batch& b) { return task.validation_step(b); }),
                  batch.samples);
      }
    }
    options.on_batch(++done);
    if (step->ends_epoch) {
      break;
    }
    if (done == options.max_batches) {
      data.seek(start);
      break;
    }
    if (stop.look()) {
      data.seek(start);
      return {.stopped = true};
    }
  }
  result.stopped = stop.look_now();  // so that the training stops without another step
  result.means = meter.take(world);
  if (result.means.empty()) {
    throw DataError("the validation data gave no samples", "give it at least one, or pass no validation data");
  }
  result.complete = true;
  return result;
}

}  // namespace lockstep
