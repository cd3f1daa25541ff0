#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/data/dataset.h>
#include <lockstep/world/world.h>

#include "data/device_prefetcher.h"
#include "device/simulated_device.h"
#include "support/tiny_task.h"
#include "world/device_clock.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

void work(int ms) {
  simulated::launch([ms] { simulated::spend(milliseconds(ms)); });
}

/// A step whose phases last 1, 2, 4 and 8 ms on the device, and 16 ms in which it waits for other ranks.
void step(DeviceClock& clock) {
  clock.begin_step();
  work(1);
  clock.enter(Phase::forward);
  work(2);
  clock.enter(Phase::backward);
  work(3);
  clock.begin_waiting();
  work(16);
  clock.end_waiting();
  work(1);
  clock.enter(Phase::optimizer);
  work(8);
  clock.end_step();
  work(100);  // a report
}

TEST(DeviceClock, KnowsHowLongThePhasesOfAStepLastOnTheDevice) {
  simulated::begin(0);
  DeviceClock clock(simulated::device(), milliseconds(0));
  constexpr int kSteps = 3;
  for (int i = 0; i < kSteps; ++i) {
    step(clock);
    simulated::finish();
  }
  const PhaseTimes times = clock.times();
  EXPECT_EQ(clock.steps(), kSteps);
  EXPECT_EQ(times.of(Phase::data), kSteps * milliseconds(1));
  EXPECT_EQ(times.of(Phase::forward), kSteps * milliseconds(2));
  EXPECT_EQ(times.of(Phase::backward), kSteps * milliseconds(4));
  EXPECT_EQ(times.of(Phase::optimizer), kSteps * milliseconds(8));
  EXPECT_EQ(times.waited, kSteps * milliseconds(16));
  EXPECT_EQ(times.now.time_since_epoch(), kSteps * milliseconds(31));
}

TEST(DeviceClock, NeverWaits) {
  simulated::begin(0);  // as late as possible
  const c10::impl::VirtualGuardImpl guard(simulated::device().type());
  simulated::hold(guard.getStream(simulated::device()));
  DeviceClock clock(simulated::device(), milliseconds(0));
  for (int i = 0; i < 3; ++i) {
    step(clock);
  }
  EXPECT_EQ(clock.steps(), 0) << "the device has not reached the first step";
  EXPECT_EQ(simulated::host_waits(), 0);
  simulated::begin(0);  // and holds it no more
  simulated::finish();
  EXPECT_EQ(clock.steps(), 1) << "the other steps began before the first one was measured";
}

TEST(DeviceClock, KnowsWhetherTheDeviceWaitsForTheCallsOfTheHost) {
  simulated::begin(1);  // at once
  DeviceClock fast(simulated::device(), milliseconds(0));
  step(fast);
  step(fast);
  EXPECT_EQ(fast.steps(), 2);
  EXPECT_EQ(fast.close_steps(), 2);
  simulated::begin(0);  // as late as possible
  DeviceClock slow(simulated::device(), milliseconds(0));
  step(slow);
  simulated::finish();
  EXPECT_EQ(slow.steps(), 1);
  EXPECT_EQ(slow.close_steps(), 0);
}

// The device is close when the host has waited for it, and far behind in the rest of the step.
TEST(DeviceClock, IsNotMisledByAHostThatWaitsInAStep) {
  for (const Phase waits : {Phase::task, Phase::forward, Phase::backward, Phase::optimizer}) {
    simulated::begin(0);
    DeviceClock clock(simulated::device(), milliseconds(0));
    clock.begin_step();
    for (const Phase phase : {Phase::task, Phase::forward, Phase::backward, Phase::optimizer}) {
      clock.enter(phase);
      work(1);
      if (phase == waits) {
        at::ones({1}, at::device(simulated::device())).cpu();
      }
      work(1);
    }
    clock.end_step();
    simulated::finish();
    EXPECT_EQ(clock.steps(), 1);
    EXPECT_EQ(clock.close_steps(), 0) << "waits in phase " << to_string(waits);
  }
}

TEST(DeviceClock, MeasuresSomeStepsOnly) {
  simulated::begin(1);
  DeviceClock clock(simulated::device(), std::chrono::hours(1));
  for (int i = 0; i < 3; ++i) {
    step(clock);
  }
  EXPECT_EQ(clock.steps(), 1);
}

TEST(DeviceClock, ForgetsAStepThatDoesNotEnd) {
  simulated::begin(1);
  DeviceClock clock(simulated::device(), milliseconds(0));
  clock.begin_step();
  work(50);
  step(clock);
  EXPECT_EQ(clock.steps(), 1);
  EXPECT_EQ(clock.times().now.time_since_epoch(), milliseconds(31));
}

/// Made on the device: its tensors cannot be moved there.
struct ScaleImpl final : torch::nn::Module {
  ScaleImpl() { factor = register_parameter("factor", at::full({1}, 0.5, at::device(simulated::device()))); }
  at::Tensor factor{};
};
TORCH_MODULE(Scale);

/// Its forward lasts for 3 ms on the device.
class SlowForward final : public Task {
 public:
  torch::nn::Module& module() override { return *scale_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.01})}; }
  StepOutput training_step(const Batch& batch) override {
    work(3);
    return (batch.input * scale_->factor).mean();
  }

 private:
  Scale scale_{};
};

TEST(DeviceClock, TimesTheStepsOfAFit) {
  simulated::begin(1);
  World world = World::single(simulated::device());
  const Plan plan = plan_for(1, in_memory({.max_epochs = 0, .max_steps = 4, .batch_size = 4}));
  DataLoader data(tiny_data(16), plan.loader, world);
  SlowForward task;
  Trainer(plan, world).on(Stage::step_end, [](const StageContext&) { work(5); }).fit(task, data);
  DeviceClock& clock = WorldAccess::clock(world);
  EXPECT_GE(clock.steps(), 1);
  EXPECT_EQ(clock.times().of(Phase::forward), clock.steps() * milliseconds(3));
  EXPECT_EQ(clock.times().of(Phase::callback), clock.steps() * milliseconds(5));
  EXPECT_EQ(clock.times().now.time_since_epoch(), clock.steps() * milliseconds(8));
}

/// Its batches need 7 ms until they are on the device.
class SlowToArrive final : public Dataset {
 public:
  std::int64_t size() const override { return rows_->size(); }
  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    work(7);
    return rows_->get(ids, seed);
  }

 private:
  std::shared_ptr<const Dataset> rows_ = tiny_data(16);
};

TEST(DeviceClock, CountsWhatAStepWaitsForTheCopyOfItsBatch) {
  for (const int workers : {0, 1}) {
    SCOPED_TRACE(workers);
    simulated::begin(0);
    World world = World::single(simulated::device());
    TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 4, .batch_size = 4});
    config.data.workers = workers;
    const Plan plan = plan_for(1, config);
    DataLoader data(std::make_shared<SlowToArrive>(), plan.loader, world);
    SlowForward task;
    Trainer(plan, world).fit(task, data);
    DeviceClock& clock = WorldAccess::clock(world);
    EXPECT_GE(clock.steps(), 1);
    EXPECT_EQ(clock.times().of(Phase::copy), clock.steps() * milliseconds(7));
    EXPECT_EQ(clock.times().of(Phase::data), milliseconds(0));
    EXPECT_EQ(clock.times().of(Phase::forward), clock.steps() * milliseconds(3));
    const auto of_host = WorldAccess::progress(world).times().of(Phase::copy);
    EXPECT_EQ(of_host.count() > 0, workers == 0) << "a worker does it beside the step";
  }
}

/// The time of the device in `phase`, while a step in `now` receives a batch that needs 7 ms on the copy stream.
PhaseTimes::Duration time_of_copy(Phase now, bool has_arrived, Phase phase) {
  simulated::begin(0);
  const World world = World::single(simulated::device());
  DevicePrefetcher prefetcher(world, {});
  PreparedBatch prepared{.batch = {.input = at::ones({4}), .samples = 4}};
  {
    const c10::StreamGuard on_copy_stream(prefetcher.stream());
    work(7);
    prefetcher.send(prepared);
  }
  if (has_arrived) {
    simulated::finish();
  }
  DeviceClock& clock = WorldAccess::clock(world);
  WorldAccess::progress(world).set_phase(now);
  clock.begin_step();
  clock.enter(now);
  prefetcher.receive(prepared);
  clock.enter(Phase::task);
  clock.end_step();
  at::ones({1}, at::device(simulated::device())).cpu();  // waits for the step, and for nothing else
  EXPECT_EQ(clock.steps(), 1);
  return clock.times().of(phase);
}

TEST(DeviceClock, CountsNoCopyThatWasAheadOfItsStep) {
  EXPECT_EQ(time_of_copy(Phase::data, /*has_arrived=*/false, Phase::copy), milliseconds(7));  // the control
  EXPECT_EQ(time_of_copy(Phase::data, /*has_arrived=*/true, Phase::copy), milliseconds(0));
}

TEST(DeviceClock, LeavesTheCopiesOfACallbackToIt) {
  EXPECT_EQ(time_of_copy(Phase::callback, /*has_arrived=*/false, Phase::copy), milliseconds(0));
  EXPECT_EQ(time_of_copy(Phase::callback, /*has_arrived=*/false, Phase::callback), milliseconds(7));
}

TEST(DeviceClock, DoesNothingOnACpu) {
  DeviceClock clock(c10::Device(c10::kCPU), milliseconds(0));
  clock.begin_step();
  clock.enter(Phase::forward);
  clock.end_step();
  EXPECT_EQ(clock.steps(), 0);
}

}  // namespace
}  // namespace lockstep
