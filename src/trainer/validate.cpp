#include "trainer/validate.h"

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/optim/precision.h>
#include <lockstep/world/world.h>

#include "parallel/parameter_sync.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

// Validation must not change what training does next, however often it runs.
class EvaluationScope {
 public:
  EvaluationScope(torch::nn::Module& module, c10::Device device)
      : module_(module), device_(device), was_training_(module.is_training()), rng_(rng_state(device)) {
    module_.eval();
  }
  ~EvaluationScope() {
    module_.train(was_training_);
    set_rng_state(rng_, device_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::nn::Module& module_;
  c10::Device device_;
  bool was_training_;
  at::Tensor rng_;
};

}  // namespace

Metrics evaluate(Task& task, BatchSource& data, World& world, const TrainConfig& config, std::int64_t max_batches,
                 const std::function<void(std::int64_t done)>& on_batch) {
  const PhaseScope phase(WorldAccess::progress(world), Phase::validation);
  if (config.dist.broadcast_buffers) {
    broadcast_buffers(task.module(), world);
  }
  const EvaluationScope scope(task.module(), world.device());
  const at::NoGradGuard no_grad;
  const LoaderPosition start = data.position();
  Meter meter;
  std::int64_t done = 0;
  for (const StepBatches* step = data.next(); step != nullptr; step = data.next()) {
    for (const Batch& batch : step->micro) {
      if (batch.samples > 0) {
        const AutocastScope precision(config.precision, world.device().type());
        meter.add(task.validation_step(batch), batch.samples);
      }
    }
    on_batch(++done);
    if (step->ends_epoch) {
      break;
    }
    if (done == max_batches) {
      data.seek(start);
      break;
    }
  }
  auto means = meter.take(world);
  if (means.empty()) {
    throw DataError("the validation data gave no samples", "give it at least one, or pass no validation data");
  }
  return means;
}

}  // namespace lockstep
