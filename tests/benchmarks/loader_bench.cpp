// Samples per second that a DataLoader hands over, for CIFAR-shaped rows in memory (3 x 32 x 32 bytes and a label).
// Arg: worker threads. "scaled" converts them to float as well, which is what the workers are for.
#include <cstdint>
#include <memory>

#include <benchmark/benchmark.h>

#include <ATen/ATen.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

namespace lockstep {
namespace {

constexpr std::int64_t kSamples = 50'000;
constexpr std::int64_t kBatch = 256;

std::shared_ptr<Dataset> images() {
  return tensor_dataset(at::randint(256, {kSamples, 3, 32, 32}, at::kByte), at::randint(10, {kSamples}, at::kLong));
}

/// Bytes to floats in [0, 1).
class Scaled final : public Dataset {
 public:
  explicit Scaled(std::shared_ptr<const Dataset> data) : data_(std::move(data)) {}
  std::int64_t size() const override { return data_->size(); }
  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    Batch batch = data_->get(ids, seed);
    batch.input = batch.input.to(at::kFloat).mul_(1.0 / 256);
    return batch;
  }

 private:
  std::shared_ptr<const Dataset> data_;
};

void run_epochs(benchmark::State& state, std::shared_ptr<const Dataset> data) {
  World world = World::single(c10::kCPU);
  DataLoader loader(std::move(data),
                    {.batch = {.batch_size = kBatch, .global_batch_size = kBatch},
                     .data = {.workers = static_cast<int>(state.range(0))}},
                    world);
  std::int64_t samples = 0;
  for (auto _ : state) {
    samples += loader.next()->local_samples;
  }
  state.SetItemsProcessed(samples);
}

void bytes(benchmark::State& state) { run_epochs(state, images()); }
void scaled(benchmark::State& state) { run_epochs(state, std::make_shared<Scaled>(images())); }

BENCHMARK(bytes)->Arg(0)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(scaled)->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
