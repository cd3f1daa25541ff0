// The order in which batches are copied, waited for and released. The controls show that the simulated device notices
// each step that is left out.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

#include "data/device_prefetcher.h"
#include "device/simulated_device.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSeeds = 30;
constexpr int kSteps = 12;

c10::Stream current_stream() {
  const c10::Device device = simulated::device();
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// What a prefetcher does, with one step left out.
struct Defect {
  bool no_block = false;
  bool no_record_stream = false;
  bool event_on_other_stream = false;
  bool one_host_buffer = false;  ///< page-locked, and used again at once
};

class Defective {
 public:
  explicit Defective(Defect defect)
      : defect_(defect),
        stream_(c10::impl::VirtualGuardImpl(simulated::device().type()).getNewStream(simulated::device())) {}
  c10::Stream stream() const { return stream_; }

  void send(PreparedBatch& prepared) {
    at::Tensor host = prepared.batch.input.pin_memory();
    if (defect_.one_host_buffer) {
      if (!buffer_.defined()) {
        buffer_ = host;
      }
      buffer_.copy_(prepared.batch.input);
      host = buffer_;
    }
    prepared.batch.input = host.to(simulated::device(), host.scalar_type(), /*non_blocking=*/true);
    prepared.arrived.emplace(simulated::device().type());
    prepared.arrived->record(defect_.event_on_other_stream ? training_ : stream_);
  }

  void receive(PreparedBatch& prepared) {
    if (!defect_.no_block) {
      prepared.arrived->block(current_stream());
    }
    if (!defect_.no_record_stream) {
      prepared.batch.input.record_stream(current_stream());
    }
  }

 private:
  Defect defect_;
  c10::Stream stream_;
  c10::Stream training_ = current_stream();
  at::Tensor buffer_{};
};

/// A loop that reads ahead, as the loader does. Returns whether every step has read its own batch.
template <class Prefetcher>
bool reads_its_batches(Prefetcher& prefetcher, std::uint64_t seed) {
  simulated::begin(seed);
  const at::Tensor sums = at::zeros({kSteps}, at::device(simulated::device()));
  std::vector<PreparedBatch> ahead(3);
  const auto prepare = [&](int step) {
    const c10::StreamGuard on_copy_stream(prefetcher.stream());
    PreparedBatch& prepared = ahead[static_cast<std::size_t>(step) % ahead.size()];
    prepared.batch = {.input = at::full({64}, static_cast<float>(step + 1)), .samples = 64};
    prefetcher.send(prepared);
  };
  for (int step = 0; step < static_cast<int>(ahead.size()); ++step) {
    prepare(step);
  }
  for (int step = 0; step < kSteps; ++step) {
    PreparedBatch& prepared = ahead[static_cast<std::size_t>(step) % ahead.size()];
    prefetcher.receive(prepared);
    const Batch batch = std::exchange(prepared.batch, {});
    simulated::launch(
        [to = simulated::raw(sums.select(0, step)), from = simulated::raw(batch.input)] { to.copy_(from.sum()); });
    if (step + static_cast<int>(ahead.size()) < kSteps) {
      prepare(step + static_cast<int>(ahead.size()));
    }
  }
  return at::equal(sums.cpu(), 64 * at::arange(1, kSteps + 1, at::kFloat));
}

int wrong_seeds(const Defect& defect) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    simulated::begin(seed);
    Defective prefetcher(defect);
    wrong += reads_its_batches(prefetcher, seed) ? 0 : 1;
  }
  return wrong;
}

TEST(PrefetcherOnASimulatedDevice, GivesEachStepItsOwnBatch) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const bool pin_memory : {true, false}) {
      simulated::begin(seed);
      const World world = World::single(simulated::device());
      DevicePrefetcher prefetcher(world, {.pin_memory = pin_memory});
      EXPECT_TRUE(reads_its_batches(prefetcher, seed)) << "seed " << seed << " pinned " << pin_memory;
    }
  }
}

TEST(PrefetcherOnASimulatedDevice, NeverLetsTheHostWait) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    simulated::begin(seed);
    const World world = World::single(simulated::device());
    DevicePrefetcher prefetcher(world, {.pin_memory = true});
    reads_its_batches(prefetcher, seed);
    EXPECT_EQ(simulated::host_waits(), 1) << "only the test reads the result";
  }
}

TEST(PrefetcherOnASimulatedDevice, IsCheckedByADeviceThatNoticesWhatIsLeftOut) {
  EXPECT_EQ(wrong_seeds({}), 0);
  EXPECT_GT(wrong_seeds({.no_block = true}), 0);
  EXPECT_GT(wrong_seeds({.no_record_stream = true}), 0);
  EXPECT_GT(wrong_seeds({.event_on_other_stream = true}), 0);
  EXPECT_GT(wrong_seeds({.one_host_buffer = true}), 0);
}

TEST(LoaderOnASimulatedDevice, MayLiveLongerThanItsWorld) {
  simulated::begin(1);
  for (const int workers : {0, 2}) {
    std::optional<World> world(World::single(simulated::device()));
    const LoaderPlan plan{.batch = {.batch_size = 4, .global_batch_size = 4}, .data = {.workers = workers}};
    DataLoader loader(tensor_dataset(at::arange(8), at::arange(8)), plan, *world);
    world.reset();
    EXPECT_EQ(loader.next()->micro.at(0).input.device(), simulated::device());
  }
}

// The real loader with its threads; data on the host, and on the device behind work that is not done yet.
TEST(LoaderOnASimulatedDevice, GivesTheBatchesOfTheCpu) {
  simulated::begin(0);
  World world = World::single(simulated::device());
  World host = World::single(c10::kCPU);
  const at::Tensor rows = at::arange(48 * 16, at::kFloat).reshape({48, 16});
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    simulated::begin(seed);
    const at::Tensor on_device = at::empty({48, 16}, at::device(simulated::device()));
    simulated::launch([to = simulated::raw(on_device), rows] { to.copy_(rows); });
    for (const at::Tensor& input : {rows, on_device}) {
      for (const int workers : {0, 2}) {
        const LoaderPlan plan{.batch = {.batch_size = 4, .global_batch_size = 8}, .data = {.workers = workers}};
        DataLoader prefetched(tensor_dataset(input, at::arange(48)), plan, world);
        DataLoader synchronous(tensor_dataset(rows, at::arange(48)), plan, host);
        const at::Tensor found = at::zeros({9, 2, 4, 16}, at::device(simulated::device()));
        const at::Tensor expected = at::zeros({9, 2, 4, 16});
        for (int step = 0; step < 9; ++step) {
          const StepBatches& batches = *prefetched.next();
          const StepBatches& right = *synchronous.next();
          ASSERT_EQ(batches.micro.size(), 2U);
          for (int micro = 0; micro < 2; ++micro) {
            const Batch& batch = batches.micro[static_cast<std::size_t>(micro)];
            ASSERT_EQ(batch.input.device(), simulated::device());
            simulated::launch(
                [to = simulated::raw(found[step][micro]), from = simulated::raw(batch.input)] { to.copy_(from); });
            expected[step][micro].copy_(right.micro[static_cast<std::size_t>(micro)].input);
          }
        }
        EXPECT_TRUE(at::equal(found.cpu(), expected))
            << "seed " << seed << " workers " << workers << " on " << input.device();
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
