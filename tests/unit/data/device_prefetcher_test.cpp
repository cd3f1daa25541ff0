#include "data/device_prefetcher.h"

#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

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

}  // namespace
}  // namespace lockstep
