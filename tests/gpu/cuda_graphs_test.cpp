// With --cuda_graphs a training has the bits of one without.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/monitors.h>

#include "gpu/device_probe.h"
#include "gpu/device_tests.h"
#include "gpu/small_net.h"
#include "support/at_stage.h"
#include "support/captured_stderr.h"
#include "support/runs.h"
#include "support/temp_dir.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kReplayed = "replayed as a CUDA graph";

/// The host waits between forward and backward, after dropout has drawn its numbers.
class WaitingTask final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor loss = at::cross_entropy_loss(net_->forward(batch.input), batch.target);
    return loss.item<float>() > 2 ? loss * 0.5 : loss;
  }
};

/// Leaves the layer out now and then, as its host decides.
class LayerDropTask final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  StepOutput training_step(const Batch& batch) override {
    const bool drops = at::rand({}).item<float>() < 0.3;
    return at::cross_entropy_loss(net_->forward(drops ? batch.input * 0.5 : batch.input), batch.target);
  }
};

class OptimizingTask final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  void optimize(Step& step) override {
    step.optimizer().zero_grad();
    for (const Batch& batch : step.batches()) {
      const auto output = step.optimizer().forward(batch, [this](const Batch& b) { return training_step(b); });
      step.optimizer().backward(output);
      step.add(output);
    }
    step.optimizer().update();
  }
};

using Configure = std::function<void(TrainConfig&)>;
using MakeTask = std::function<std::unique_ptr<SmallTask>()>;

struct Way {
  std::string name;
  Configure configure = [](TrainConfig&) {};
  MakeTask task = [] { return std::make_unique<SmallTask>(0.2, adamw({.lr = 0.001})); };
  std::string told = kReplayed;  ///< on a GPU
  bool freezes = false;
  bool validates = false;  ///< with an average of the weights, while gradients are measured
};

/// The validation is in another mode than the training, and its loss is no random number.
class ValidatingTask final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  StepOutput validation_step(const Batch& batch) override { return training_step(batch); }
};

/// Looks for the direction in which its images are hard: the gradient of the input, by a backward of its own.
class AdversarialTask final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor images = batch.input.detach().requires_grad_(true);
    torch::autograd::backward({at::cross_entropy_loss(net_->forward(images), batch.target)});
    const at::Tensor harder = batch.input + 0.1 * images.grad().sign();
    return at::cross_entropy_loss(net_->forward(harder), batch.target);
  }
};

template <class Task>
MakeTask with_dropout() {
  return [] { return std::make_unique<Task>(0.2, adamw({.lr = 0.001})); };
}

// 93 samples: each epoch ends with a smaller batch.
std::vector<Way> ways() {
  const auto accumulates = [](TrainConfig& config) { config.global_batch_size = 24; };
  return {
      {.name = "fp32"},
      {.name = "bf16", .configure = [](TrainConfig& config) { config.precision = Precision::bf16_mixed; }},
      {.name = "fp16", .configure = [](TrainConfig& config) { config.precision = Precision::fp16_mixed; }},
      {.name = "accumulation", .configure = accumulates},
      {.name = "accumulation in bf16, clipped",
       .configure =
           [=](TrainConfig& config) {
             accumulates(config);
             config.precision = Precision::bf16_mixed;
             config.optim.max_grad_norm = 0.1;
           }},
      {.name = "channels last", .configure = [](TrainConfig& config) { config.memory.channels_last = true; }},
      {.name = "parameters in bf16", .configure = [](TrainConfig& config) { config.precision = Precision::bf16; }},
      {.name = "skips what is not finite, and spikes",
       .configure =
           [](TrainConfig& config) {
             config.optim.non_finite = NonFinitePolicy::skip;
             config.spike = {.z_score = 2, .window = 10, .policy = SpikePolicy::skip};
           }},
      {.name = "counts and metrics", .configure = accumulates, .task = with_dropout<CountingTask>()},
      {.name = "recomputed", .task = with_dropout<RecomputingTask>()},
      {.name = "a layer is frozen for some steps", .freezes = true},
      {.name = "the gradient of the input", .configure = accumulates, .task = with_dropout<AdversarialTask>()},
      {.name = "validates an average", .task = with_dropout<ValidatingTask>(), .validates = true},
      {.name = "validates the average of an optimizer",
       .task = [] { return std::make_unique<ValidatingTask>(0.2, OptimizerSpec{schedule_free_adamw({.lr = 0.001})}); },
       .validates = true},
      {.name = "the host waits", .task = with_dropout<WaitingTask>(), .told = "with the same results: "},
      {.name = "the host waits in an accumulation",
       .configure = accumulates,
       .task = with_dropout<WaitingTask>(),
       .told = "with the same results: "},
      {.name = "the host draws", .task = with_dropout<LayerDropTask>(), .told = "random numbers on the host"},
      {.name = "optimize() of its own", .task = with_dropout<OptimizingTask>(), .told = "overrides optimize()"},
  };
}

TrainConfig config_of(const Way& way, ComputeSetup where, bool has_graphs) {
  TrainConfig config = in_memory({.deterministic = Determinism::on, .max_epochs = 0, .max_steps = 24, .batch_size = 8});
  config.compute_setup = where;
  config.cuda_graphs = has_graphs;
  if (way.validates) {
    config.validate.every_steps = 7;
  }
  way.configure(config);
  return config;
}

/// The losses of all steps, then parameters, buffers and the state of the optimizer.
std::vector<at::Tensor> results_of(const Way& way, const TrainConfig& config) {
  std::vector<at::Tensor> results;
  Session session = Session::single(config);
  DataLoader data(small_images(93), session.plan.loader, session.world);
  const auto task = way.task();
  NamedTensors state;
  at::Tensor drawn;
  Trainer trainer(session);
  trainer.add(at_stage(Stage::step_end | Stage::fit_end, [&](const StageContext& context) {
    if (context.stage == Stage::fit_end) {
      state = context.strategy->optimizer_state();
      drawn = at::rand({4}, at::device(context.world.device()));  // the generator is where it should be
      return;
    }
    results.push_back(context.step.loss.detach().clone());
    if (way.freezes && context.state.step % 8 == 0) {
      context.module.named_parameters()["wide.weight"].requires_grad_(context.state.step % 16 == 0);
    }
  }));
  DataLoader held_out(small_images(20), session.plan.loader, session.world);
  if (way.validates) {
    trainer.add(std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.9}));
    trainer.add(std::make_shared<GradientMonitor>(GradientMonitorOptions{.every_steps = 5}));
  }
  const FitResult fitted = trainer.fit(*task, data, way.validates ? &held_out : nullptr);
  const auto val_loss = std::ranges::find(fitted.metrics, "val_loss", &Metrics::value_type::first);
  EXPECT_EQ(val_loss != fitted.metrics.end(), way.validates);
  if (val_loss != fitted.metrics.end()) {
    results.push_back(at::tensor(val_loss->second, at::kDouble));
  }
  for (const auto& tensors : {task->module().parameters(), task->module().buffers()}) {
    results.insert(results.end(), tensors.begin(), tensors.end());
  }
  for (const auto& [name, tensor] : state) {
    results.push_back(tensor);
  }
  results.push_back(drawn);
  for (at::Tensor& tensor : results) {
    tensor = tensor.detach().cpu();
  }
  return results;
}

int differing(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  int count = 0;
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    count += at::equal(found[i], expected[i]) ? 0 : 1;
  }
  return count;
}

LOCKSTEP_DEVICE_TEST(CudaGraphs, GiveTheBitsOfATrainingWithout) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const auto expected = results_of(way, config_of(way, where, /*has_graphs=*/false));
    CapturedStderr captured;
    const auto found = results_of(way, config_of(way, where, /*has_graphs=*/true));
    const std::string told = captured.text();
    EXPECT_EQ(differing(found, expected), 0);
    EXPECT_THAT(told, HasSubstr(where == ComputeSetup::gpu ? way.told : "the device is no GPU"));
    if (way.told != kReplayed) {
      EXPECT_THAT(told, Not(HasSubstr(kReplayed)));
    }
  }
}

LOCKSTEP_DEVICE_TEST(CudaGraphs, WouldBeSeenToTrainSomethingElse) {  // the control
  const Way way = ways().front();
  TrainConfig other = config_of(way, where, /*has_graphs=*/true);
  other.seed = 43;
  EXPECT_GT(differing(results_of(way, other), results_of(way, config_of(way, where, /*has_graphs=*/false))), 0);
}

/// With a checkpoint every 5 steps. Fails after `failing_step`.
void train_until(std::int64_t step, ComputeSetup where, bool has_graphs, const std::filesystem::path& run,
                 std::int64_t failing_step = -1) {
  TrainConfig config{.compute_setup = where,
                     .precision = Precision::bf16_mixed,
                     .deterministic = Determinism::on,
                     .cuda_graphs = has_graphs,
                     .max_epochs = 0,
                     .max_steps = step,
                     .batch_size = 8,
                     .global_batch_size = 16,
                     .run_dir = run.string(),
                     .checkpoint = {.every_epochs = 0, .every_steps = 5}};
  Session session = Session::single(config);
  DataLoader data(small_images(93), session.plan.loader, session.world);
  SmallTask task(0.2, adamw({.lr = 0.001}));
  const auto fail = at_stage(Stage::step_end, [&](const StageContext& context) {
    if (context.state.step == failing_step) {
      throw std::runtime_error("cannot decode sample 4411");
    }
  });
  Trainer(session).add(fail).fit(task, data);
}

void expect_same_state(const std::filesystem::path& run, const std::filesystem::path& other) {
  const auto expected = final_state(other);
  const auto found = final_state(run);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, bytes] : expected) {
    EXPECT_TRUE(found.at(name) == bytes) << name << " differs";
  }
}

// Stopped and resumed with graphs: the bytes of a run that had none and was not stopped.
LOCKSTEP_DEVICE_TEST(CudaGraphs, ResumeBitwise) {
  const TempDir dir;
  train_until(20, where, /*has_graphs=*/false, dir.path() / "straight");
  for (const std::int64_t stop : {11, 20}) {
    CapturedStderr captured;
    train_until(stop, where, /*has_graphs=*/true, dir.path() / "stopped");
    const std::string told = captured.text();
    EXPECT_THAT(told, HasSubstr(where == ComputeSetup::gpu ? kReplayed : "the device is no GPU"));
    if (stop == 20) {
      EXPECT_THAT(told, HasSubstr("resuming from step 11"));
    }
  }
  expect_same_state(dir.path() / "stopped", dir.path() / "straight");
}

// It fails while steps are replayed, between two checkpoints.
LOCKSTEP_DEVICE_TEST(CudaGraphs, ResumeBitwiseAfterAFailure) {
  const TempDir dir;
  train_until(20, where, /*has_graphs=*/false, dir.path() / "straight");
  CapturedStderr captured;
  EXPECT_THROW(train_until(20, where, /*has_graphs=*/true, dir.path() / "failed", /*failing_step=*/13),
               std::runtime_error);
  train_until(20, where, /*has_graphs=*/true, dir.path() / "failed");
  EXPECT_THAT(captured.text(), testing::ContainsRegex("resuming from step 1[03]"));
  expect_same_state(dir.path() / "failed", dir.path() / "straight");
}

LOCKSTEP_DEVICE_TEST(CudaGraphs, LetNoStepWaitForTheDevice) {
  TrainConfig config = config_of(ways().front(), where, /*has_graphs=*/true);
  config.max_steps = 60;
  config.report.every_steps = 0;
  Session session = Session::single(config);
  DataLoader data(small_images(96), session.plan.loader, session.world);
  SmallTask task(0.2, adamw({.lr = 0.001}));
  Trainer trainer(session);
  trainer.add(at_stage(Stage::step_end, [](const StageContext& context) {
    if (context.state.step == 40 || context.state.step == 55) {
      fail_on_synchronization(context.state.step == 40);
    }
  }));
  CapturedStderr captured;
  EXPECT_NO_THROW(trainer.fit(task, data));
  const std::string told = captured.text();
  fail_on_synchronization(false);
  if (where == ComputeSetup::gpu) {
    EXPECT_THAT(told, HasSubstr(kReplayed)) << "no graph was used";
  }
}

}  // namespace
}  // namespace lockstep
