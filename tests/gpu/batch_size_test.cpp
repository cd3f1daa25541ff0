// The largest batch size for the memory of a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/trainer/batch_size_search.h>

#include "gpu/device_tests.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

/// Each sample needs an eighth of the GPU's memory. On the CPU seven samples fit.
class HugeSamples final : public TinyTask {
 public:
  explicit HugeSamples(const LocalDevice& device) : device_(device) {}
  StepOutput training_step(const Batch& batch) override {
    const std::int64_t bytes = device_.id.gpu      ? batch.samples * (device_.memory_bytes / 8)
                               : batch.samples > 7 ? std::int64_t{1} << 50
                                                   : 1;
    const at::Tensor needed = at::empty({bytes}, batch.input.options().dtype(at::kByte));
    return TinyTask::training_step(batch);
  }

 private:
  LocalDevice device_;
};

LOCKSTEP_DEVICE_TEST(BatchSizeSearch, EndsWhereTheMemoryDoes) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 3, .global_batch_size = 64});
  config.compute_setup = where;
  Session session = Session::single(config);
  const auto samples = tiny_data(100);
  HugeSamples task(session.plan.local_devices.front());
  task.module().to(session.world.device());
  const at::Tensor weights = task.module().parameters().front().clone();
  const BatchSizeSearch found = find_batch_size(
      session.plan, session.world, task,
      [&](const LoaderPlan& plan, World& world) { return std::make_shared<DataLoader>(samples, plan, world); },
      {.bisect = true});
  EXPECT_EQ(found.largest, 7);
  std::vector<std::int64_t> sizes;
  for (const BatchSizeTrial& trial : found.trials) {
    sizes.push_back(trial.batch_size);
  }
  EXPECT_THAT(sizes, ElementsAre(2, 4, 8, 6, 7));
  EXPECT_TRUE(at::equal(task.module().parameters().front(), weights));
  LoaderPlan largest = session.plan.loader;
  largest.batch = found.batch;
  DataLoader data(samples, largest, session.world);
  EXPECT_EQ(Trainer(session).fit(task, data).state.step, 3);
}

}  // namespace
}  // namespace lockstep
