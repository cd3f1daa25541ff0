// One device: the GPU learns what the CPU learns, and its memory does not grow.
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <lockstep/base/file_system.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/trainer/monitors.h>

#include "gpu/device_probe.h"
#include "gpu/device_tests.h"
#include "gpu/small_net.h"
#include "optim/fp32_update.h"
#include "optim/list_optimizer.h"
#include "optim/loss_scaler.h"
#include "optim/param_groups.h"
#include "report/metric_rows.h"
#include "support/at_stage.h"
#include "support/bfloat16.h"
#include "support/temp_dir.h"
#include "support/watched_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

TrainConfig training_on(ComputeSetup compute_setup) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 50, .batch_size = 4, .global_batch_size = 8});
  config.compute_setup = compute_setup;
  config.optim.max_grad_norm = 0.5;
  config.optim.schedule = "cosine";
  return config;
}

std::vector<double> train(const TrainConfig& config, Task& task, const std::shared_ptr<Dataset>& samples,
                          const std::shared_ptr<Dataset>& validation_samples) {
  Session session = Session::single(config);
  EXPECT_EQ(session.world.device().is_cuda(), config.compute_setup == ComputeSetup::gpu);
  DataLoader data(samples, session.plan.loader, session.world);
  DataLoader validation(validation_samples, session.plan.eval_loader, session.world);
  const auto recorder = std::make_shared<LossRecorder>();
  Trainer(session).add(recorder).add(std::make_shared<DeviceMonitor>()).fit(task, data, &validation);
  return recorder->losses;
}

/// fp32 on the GPU is fp32, for matrices and convolutions.
class WithoutTf32 : public testing::Test {
 protected:
  WithoutTf32() {
    at::globalContext().setAllowTF32CuBLAS(false);
    at::globalContext().setAllowTF32CuDNN(false);
  }
  ~WithoutTf32() override { at::globalContext().setAllowTF32CuDNN(true); }
};

void expect_the_same_training(Task& on_gpu, Task& on_cpu, const std::shared_ptr<Dataset>& samples, double falls_to) {
  const auto found = train(training_on(ComputeSetup::gpu), on_gpu, samples, samples);
  const auto expected = train(training_on(ComputeSetup::cpu), on_cpu, samples, samples);
  ASSERT_EQ(expected.size(), 50U);
  EXPECT_LE(worst_difference(found, expected), 1e-4);
  EXPECT_LT(expected.back(), falls_to * expected.front());
  const auto left = on_gpu.module().parameters();
  const auto right = on_cpu.module().parameters();
  for (std::size_t i = 0; i < right.size(); ++i) {
    EXPECT_TRUE(left[i].is_cuda());
    EXPECT_TRUE(at::allclose(left[i].cpu(), right[i], /*rtol=*/1e-3, /*atol=*/1e-5)) << "parameter " << i;
  }
}

using TrainerOnGpu = WithoutTf32;

TEST_F(TrainerOnGpu, LearnsWhatTheCpuLearns) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  for (const auto& optimizer : {sgd({.lr = 0.02, .momentum = 0.9}), adamw({.lr = 0.01})}) {
    WatchedTask on_gpu(optimizer);
    WatchedTask on_cpu(optimizer);
    expect_the_same_training(on_gpu, on_cpu, tiny_data(45), 0.8);
  }
}

// In single precision rounding changes the sign of a value near zero: those whose updates depend on signs are below.
LOCKSTEP_DEVICE_TEST(Optimizers, LearnWhatTheyLearnOnTheCpu) {
  const std::map<std::string, OptimizerFactory> optimizers{{"adam", adam({.lr = 0.01})},
                                                           {"rmsprop", rmsprop({.lr = 0.01})},
                                                           {"adagrad", adagrad({.lr = 0.05})},
                                                           {"adadelta", adadelta({.lr = 1})},
                                                           {"adamax", adamax({.lr = 0.01})},
                                                           {"nadam", nadam({.lr = 0.01})},
                                                           {"radam", radam({.lr = 0.01})},
                                                           {"asgd", asgd({.lr = 0.02})},
                                                           {"adafactor", adafactor({.lr = 0.02})},
                                                           {"prodigy", prodigy({.lr = 1})},
                                                           {"schedule_free_adamw", schedule_free_adamw({.lr = 0.01})}};
  for (const auto& [name, optimizer] : optimizers) {
    SCOPED_TRACE(name);
    const auto losses_on = [&, &factory = optimizer](ComputeSetup device) {
      TinyTask task(factory);
      return train(training_on(device), task, tiny_data(45), tiny_data(8));
    };
    const auto expected = losses_on(ComputeSetup::cpu);
    EXPECT_LE(worst_difference(losses_on(where), expected), 1e-3);
    EXPECT_NE(expected.back(), expected.front());
  }
}

// In double precision hardly a value is so near zero that rounding changes its sign.
LOCKSTEP_DEVICE_TEST(Optimizers, ThatDependOnSignsLearnWhatTheyLearnOnTheCpu) {
  const std::map<std::string, OptimizerFactory> optimizers{
      {"lion", lion({.lr = 0.001})}, {"rprop", rprop({.lr = 0.01})}, {"muon", muon({.lr = 0.01})}};
  for (const auto& [name, optimizer] : optimizers) {
    SCOPED_TRACE(name);
    const auto losses_on = [&, &factory = optimizer](ComputeSetup device) {
      TrainConfig config = training_on(device);
      config.precision = Precision::fp64;
      SmallTask task(0, factory);
      return train(config, task, small_images(45), small_images(8));
    };
    const auto expected = losses_on(ComputeSetup::cpu);
    EXPECT_LE(worst_difference(losses_on(where), expected), name == "muon" ? 1e-2 : 1e-6);
    EXPECT_NE(expected.back(), expected.front());
  }
}

/// bfloat16 values after an update that every device calculates with the same bits.
std::vector<at::Tensor> updated_in_fp32(c10::Device device) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  UpdateLists lists(2);
  std::vector<std::int64_t> positions{0};
  for (const std::int64_t size : {5'000'000, 3, 1, 1000}) {
    for (std::vector<at::Tensor>& list : lists) {
      list.push_back(at::randn({size}, generator, at::kFloat).to(device, at::kBFloat16));
    }
    positions.push_back(positions.back() + size);
  }
  positions[3] += 17;  // another parameter lies between
  update_in_fp32(lists, UpdateUnit::elements, {.key = 5, .positions = positions},
                 [](UpdateLists& part) { at::_foreach_add_(part[0], part[1]); });
  return lists[0];
}

LOCKSTEP_DEVICE_TEST(Optimizers, RoundAtRandomAsOnTheCpu) {
  const std::vector<at::Tensor> expected = updated_in_fp32(at::kCPU);
  const std::vector<at::Tensor> found = updated_in_fp32(where == ComputeSetup::gpu ? at::kCUDA : at::kCPU);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i].cpu(), expected[i])) << i;
  }
}

/// Parameters and states after an update; the fp32 numbers of the CPU if `device` is nothing.
NamedTensors after_an_update(const OptimizerFactory& factory, std::optional<c10::Device> device, bool skips) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  NamedTensors parameters;
  const auto rounded = [&](at::IntArrayRef shape) {
    const at::Tensor value = at::randn(shape, generator, at::kFloat).to(at::kBFloat16);
    return device ? value.to(*device) : value.to(at::kFloat);
  };
  const std::vector<std::vector<std::int64_t>> shapes{{5'000'000}, {2, 3, 4, 5}, {}, {30, 20}};
  for (const std::vector<std::int64_t>& shape : shapes) {
    at::Tensor value = rounded(shape);
    if (shape.size() == 4) {
      value = value.contiguous(at::MemoryFormat::ChannelsLast);
    }
    parameters.emplace_back(fmt::format("p{}", parameters.size()), value.set_requires_grad(true));
    value.mutable_grad() = rounded(shape);
  }
  BuiltOptimizer built = build_optimizer(OptimizerSpec(factory), parameters);
  auto& optimizer = dynamic_cast<ListOptimizer&>(*built.optimizer);
  if (skips) {
    dynamic_cast<SkipsOnDevice&>(optimizer).skip_if(at::ones({}, at::device(*device)));
  }
  if (device) {
    optimizer.round_next(5);
  }
  optimizer.step();
  for (auto& [name, tensor] : optimizer_state(built)) {
    parameters.emplace_back(name, tensor);
  }
  return parameters;
}

LOCKSTEP_DEVICE_TEST(Optimizers, RoundTheirFp32Updates) {
  const c10::Device device = where == ComputeSetup::gpu ? at::kCUDA : at::kCPU;
  for (const auto& factory : {sgd({.lr = 0.1, .momentum = 0.9}), adamw({.lr = 0.02}), adam({.lr = 0.02}),
                              adafactor({.lr = 0.02}), nadam({.lr = 0.01}), schedule_free_adamw({.lr = 0.02})}) {
    const NamedTensors found = after_an_update(factory, device, /*skips=*/false);
    const NamedTensors exact = after_an_update(factory, std::nullopt, /*skips=*/false);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].second.scalar_type() == at::kBFloat16) {
        expect_neighbours(found[i].second.detach(), exact[i].second.detach(), found[i].first);
      }
    }
  }
}

LOCKSTEP_DEVICE_TEST(Optimizers, LeaveTheBitsOfASkippedStep) {
  const c10::Device device = where == ComputeSetup::gpu ? at::kCUDA : at::kCPU;
  const NamedTensors skipped = after_an_update(adamw({.lr = 0.02}), device, /*skips=*/true);
  const NamedTensors updated = after_an_update(adamw({.lr = 0.02}), device, /*skips=*/false);
  EXPECT_TRUE(
      at::equal(skipped[0].second.cpu(),
                at::randn({5'000'000}, at::make_generator<at::CPUGeneratorImpl>(7), at::kFloat).to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(skipped[0].second, updated[0].second)) << "control";
}

TEST_F(TrainerOnGpu, LearnsWhatTheCpuLearnsWithConvolutions) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  SmallTask on_gpu;
  SmallTask on_cpu;
  expect_the_same_training(on_gpu, on_cpu, small_images(45), 1.0);
}

TEST_F(TrainerOnGpu, WouldBeSeenToLearnSomethingElse) {  // the control: another learning rate
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  SmallTask one;
  SmallTask other(0, sgd({.lr = 0.011, .momentum = 0.9}));
  const auto samples = small_images(45);
  EXPECT_GT(worst_difference(train(training_on(ComputeSetup::gpu), one, samples, samples),
                             train(training_on(ComputeSetup::gpu), other, samples, samples)),
            1e-3);
}

LOCKSTEP_DEVICE_TEST(MixedPrecision, TrainsAndKeepsFloat) {
  for (const auto& [precision, dtype] :
       {std::pair(Precision::bf16_mixed, at::kBFloat16), std::pair(Precision::fp16_mixed, at::kHalf)}) {
    SCOPED_TRACE(c10::toString(dtype));
    TrainConfig config = training_on(where);
    config.precision = precision;
    config.max_steps = 200;
    WatchedTask task(adamw({.lr = 0.02}));
    const auto losses = train(config, task, tiny_data(45), tiny_data(8));
    ASSERT_EQ(losses.size(), 200U);
    EXPECT_LT(losses.back(), 0.1 * losses.front());
    EXPECT_THAT(task.training_outputs, ElementsAre(dtype));
    EXPECT_THAT(task.validation_outputs, ElementsAre(dtype));
    EXPECT_THAT(task.losses, ElementsAre(at::kFloat));
    for (const auto& parameter : task.module().parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    }
  }
}

// --- memory ---

/// On the CPU: the bytes that malloc gave out.
GpuMemory memory_of(ComputeSetup where) {
  if (where == ComputeSetup::gpu) {
    return gpu_memory();
  }
  const struct mallinfo2 info = mallinfo2();
  return {.allocated = static_cast<std::int64_t>(info.uordblks + info.hblkhd)};
}

struct Growth {
  std::vector<GpuMemory> at{};  // after steps 100, 550 and 1000
};

/// Keeps `leak` bytes of every step.
Growth train_a_thousand_steps(ComputeSetup where, std::int64_t leak) {
  Growth growth;
  std::vector<at::Tensor> kept;
  kept.reserve(1000);
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 1000, .batch_size = 8, .report = {.every_steps = 50}});
  config.compute_setup = where;
  config.optim.max_grad_norm = 0.5;
  Session session = Session::single(config);
  DataLoader data(small_images(40), session.plan.loader, session.world);
  SmallTask task(0.1, adamw({.lr = 0.001}));
  Trainer(session)
      .add(at_stage(Stage::step_end,
                    [&](const StageContext& context) {
                      if (leak > 0) {
                        kept.push_back(at::zeros({leak}, at::device(context.world.device()).dtype(at::kByte)));
                      }
                      const auto step = context.state.step;
                      if (step == 100 || step == 550 || step == 1000) {
                        growth.at.push_back(memory_of(where));
                        if (where == ComputeSetup::gpu) {
                          reset_peak();
                        }
                      }
                    }))
      .fit(task, data);
  return growth;
}

// What the loader has prepared differs from one moment to the next: a few batches of 8 small images.
constexpr std::int64_t kPrepared = 96 << 10;

LOCKSTEP_DEVICE_TEST(StepTimes, AreThoseOfTheDevice) {
  const TempDir dir;
  TrainConfig config{.max_epochs = 0, .max_steps = 60, .batch_size = 8, .run_dir = dir.path() / "run"};
  config.compute_setup = where;
  config.report.every_steps = 20;
  config.report.step_times = true;
  Session session = Session::single(config);
  SmallTask task;
  DataLoader data(small_images(64), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  const auto times = read_rank_times(real_file_system(), dir.path() / "run");
  ASSERT_EQ(times.size(), 1U);
  std::map<std::string, double> parts(times[0].seconds.begin(), times[0].seconds.end());
  for (const char* part : {"data", "forward", "backward", "optimizer"}) {
    EXPECT_GT(parts[part], 0) << part;
  }
  const std::string events = read_file(real_file_system(), dir.path() / "run" / "events.jsonl");
  EXPECT_EQ(events.find("\"gpu_forward_seconds\"") != std::string::npos, where == ComputeSetup::gpu);
}

LOCKSTEP_DEVICE_TEST(Memory, IsTheSameAfterAHundredAndAThousandSteps) {
  const auto growth = train_a_thousand_steps(where, 0);
  ASSERT_EQ(growth.at.size(), 3U);
  EXPECT_LE(growth.at[2].allocated, growth.at[0].allocated + kPrepared);
  EXPECT_LE(growth.at[2].peak, growth.at[1].peak + kPrepared);
  EXPECT_LE(growth.at[2].reserved, growth.at[0].reserved + (4 << 20));
  EXPECT_LE(growth.at[2].pinned, growth.at[0].pinned + kPrepared);
  if (where == ComputeSetup::gpu) {
    EXPECT_GT(growth.at[0].peak, 0);
    EXPECT_GT(growth.at[0].pinned, 0);
  }
}

LOCKSTEP_DEVICE_TEST(Memory, WouldBeSeenToGrow) {  // the control: half a kilobyte per step
  const auto growth = train_a_thousand_steps(where, 512);
  EXPECT_GT(growth.at[2].allocated, growth.at[0].allocated + kPrepared);
}

TEST(MemoryOnGpu, IsNotTakenFromAnotherGpu) {
  LOCKSTEP_REQUIRE(Requirements().gpus(2));
  SmallTask task;
  train(training_on(ComputeSetup::gpu), task, small_images(45), small_images(8));
  const int used = task.module().parameters().front().device().index();
  for (int gpu = 0; gpu < std::ssize(probe_hardware().gpus); ++gpu) {
    EXPECT_EQ(has_context_on(gpu), gpu == used) << gpu;
  }
}

}  // namespace
}  // namespace lockstep
