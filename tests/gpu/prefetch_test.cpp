#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

#include "data/device_prefetcher.h"
#include "gpu/device_probe.h"
#include "support/requirements.h"

namespace lockstep {
namespace {

// A large batch behind a busy stream: reading it before its copy has arrived, or after its memory was used again,
// shows.
TEST(DevicePrefetcherOnGpu, GivesTheBatchesOfTheSynchronousPath) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  const c10::Device gpu(c10::kCUDA, 0);
  World world = World::single(gpu);
  World host = World::single(c10::kCPU);
  const at::Tensor rows = at::arange(64 * 100'000, at::kFloat).reshape({64, 100'000});
  const auto data = tensor_dataset(rows, at::arange(64));
  const auto on_device = tensor_dataset(rows.to(gpu), at::arange(64, at::device(gpu)));
  for (const auto& source : {data, on_device}) {
    for (const bool pin_memory : {true, false}) {
      for (const int workers : {0, 2}) {
        const LoaderPlan plan{.batch = {.batch_size = 8, .global_batch_size = 16},
                              .data = {.workers = workers, .pin_memory = pin_memory}};
        DataLoader prefetched(source, plan, world);
        DataLoader synchronous(data, plan, host);
        at::Tensor load = at::ones({2048, 2048}, at::device(gpu));
        std::vector<at::Tensor> differences;
        for (int step = 0; step < 40; ++step) {
          const StepBatches& found = *prefetched.next();
          const StepBatches& expected = *synchronous.next();
          ASSERT_EQ(found.micro.size(), expected.micro.size());
          for (std::size_t micro = 0; micro < found.micro.size(); ++micro) {
            EXPECT_EQ(found.micro[micro].input.device(), gpu);
            EXPECT_EQ(found.micro[micro].ids, expected.micro[micro].ids);
            load = load.matmul(load).sigmoid();  // the step is behind the host, as in training
            const at::Tensor input = expected.micro[micro].input.to(gpu);
            differences.push_back((found.micro[micro].input - input).abs().max());
          }
        }
        EXPECT_EQ(at::stack(differences).max().item<float>(), 0.0F)
            << "workers " << workers << " pinned " << pin_memory;
      }
    }
  }
}

constexpr std::int64_t kNumbers = 1 << 20;
constexpr float kPoison = -1.0F;
constexpr double kBusyMs = 200;

/// A batch on its way to the GPU, behind a copy stream that is busy for a while.
class LateCopy {
 public:
  explicit LateCopy(double busy_ms = kBusyMs) : world_(World::single(gpu_)), prefetcher_(world_, {.pin_memory = true}) {
    const c10::StreamGuard on_copy_stream(prefetcher_.stream());
    // The memory into which the batch is copied next: at first it has the poison.
    at::full({kNumbers}, kPoison, at::device(gpu_)).reset();
    occupy_current_stream(busy_ms);
    prepared_.batch.input = at::arange(kNumbers, at::kFloat);
    prefetcher_.send(prepared_);
  }
  void receive() { prefetcher_.receive(prepared_); }

  /// The numbers that a kernel of the training stream reads now and that differ from the batch.
  std::int64_t wrong_numbers() const {
    const at::Tensor read = prepared_.batch.input.clone();
    const at::Tensor host = read.cpu();
    return (host != at::arange(kNumbers, at::kFloat)).sum().item<std::int64_t>();
  }

 private:
  c10::Device gpu_{c10::kCUDA, 0};
  World world_;
  DevicePrefetcher prefetcher_;
  PreparedBatch prepared_{};
};

at::Tensor pinned_poison() { return at::full({kNumbers}, kPoison).pin_memory(); }

std::vector<at::Tensor> much_pinned_poison() {
  std::vector<at::Tensor> poison;
  for (int i = 0; i < 8; ++i) {
    poison.push_back(pinned_poison());
  }
  return poison;
}

/// Loads the kernels and fills the cache of page-locked memory, because either may wait for the whole GPU.
void warm_up() {
  LateCopy copy(/*busy_ms=*/0);
  copy.receive();
  copy.wrong_numbers();
  much_pinned_poison();
}

TEST(DevicePrefetcherOnGpu, GivesNoBatchBeforeItsCopyHasArrived) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  warm_up();
  LateCopy copy;
  copy.receive();
  EXPECT_EQ(copy.wrong_numbers(), 0);
}

TEST(DevicePrefetcherOnGpu, WouldBeSeenToGiveABatchTooEarly) {  // the control: nobody waits
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  warm_up();
  const LateCopy copy;
  EXPECT_GT(copy.wrong_numbers(), kNumbers / 2);
}

TEST(DevicePrefetcherOnGpu, UsesPinnedMemoryAgainOnlyAfterItsCopy) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  warm_up();
  LateCopy copy;  // has released its page-locked memory
  const auto poison = much_pinned_poison();
  copy.receive();
  EXPECT_EQ(copy.wrong_numbers(), 0);
}

TEST(DevicePrefetcherOnGpu, WouldBeSeenToUsePinnedMemoryTooEarly) {  // the control: overwritten before its copy
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  warm_up();
  const c10::Device gpu(c10::kCUDA, 0);
  const at::Tensor host = at::arange(kNumbers, at::kFloat).pin_memory();
  occupy_current_stream(kBusyMs);
  const at::Tensor copy = host.to(gpu, at::kFloat, /*non_blocking=*/true);
  host.fill_(kPoison);
  EXPECT_GT((copy.cpu() == kPoison).sum().item<std::int64_t>(), kNumbers / 2);
}

}  // namespace
}  // namespace lockstep
