// What a sample costs a training loop: rows of bytes in memory (3 x 32 x 32 and a label) given as floats, windows of
// 1024 tokens of a mapped file, and the same without a loader. Arg: worker threads.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include <ATen/ATen.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/data/file_datasets.h>
#include <lockstep/world/world.h>

namespace lockstep {
namespace {

constexpr std::int64_t kImages = 50'000;
constexpr std::int64_t kImageBatch = 256;
constexpr std::int64_t kTokens = 50'000'000;
constexpr std::int64_t kTokenBatch = 64;

at::Tensor image_bytes() { return at::randint(256, {kImages, 3, 32, 32}, at::kByte); }
at::Tensor labels() { return at::randint(10, {kImages}, at::kLong); }

void run_epochs(benchmark::State& state, const std::shared_ptr<const Dataset>& data, std::int64_t batch) {
  World world = World::single(c10::kCPU);
  DataLoader loader(data,
                    {.batch = {.batch_size = batch, .global_batch_size = batch},
                     .data = {.workers = static_cast<int>(state.range(0))}},
                    world);
  std::int64_t samples = 0;
  for (auto _ : state) {
    const StepBatches& step = *loader.next();
    samples += step.local_samples;
    benchmark::DoNotOptimize(step.micro.front().input.const_data_ptr());
  }
  state.counters["us_per_sample"] = benchmark::Counter(static_cast<double>(samples) * 1e-6,
                                                       benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void cifar_bytes(benchmark::State& state) { run_epochs(state, tensor_dataset(image_bytes(), labels()), kImageBatch); }

void cifar(benchmark::State& state) { run_epochs(state, scaled_bytes_dataset(image_bytes(), labels()), kImageBatch); }

/// The same gather and conversion with plain loops into memory that is there.
void cifar_limit(benchmark::State& state) {
  const at::Tensor bytes = image_bytes();
  const at::Tensor target = labels();
  std::vector<float> out(static_cast<std::size_t>(kImageBatch * 3072));
  std::vector<std::int64_t> out_target(static_cast<std::size_t>(kImageBatch));
  const at::Tensor order = at::randperm(kImages);
  const auto* from = bytes.const_data_ptr<std::uint8_t>();
  const auto* ids = order.const_data_ptr<std::int64_t>();
  std::int64_t at = 0;
  std::int64_t samples = 0;
  for (auto _ : state) {
    for (std::int64_t row = 0; row < kImageBatch; ++row) {
      const std::uint8_t* const source = from + ids[at + row] * 3072;
      float* const to = out.data() + row * 3072;
      for (std::int64_t i = 0; i < 3072; ++i) {
        to[i] = static_cast<float>(source[i]) * (1.0F / 255);
      }
      out_target[static_cast<std::size_t>(row)] = target.const_data_ptr<std::int64_t>()[ids[at + row]];
    }
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
    samples += kImageBatch;
    at = at + 2 * kImageBatch <= kImages ? at + kImageBatch : 0;
  }
  state.counters["us_per_sample"] = benchmark::Counter(static_cast<double>(samples) * 1e-6,
                                                       benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

/// A file of random tokens that lives as long as the program.
const std::filesystem::path& token_file() {
  struct File {
    std::filesystem::path path = std::filesystem::temp_directory_path() / "lockstep_loader_bench.bin";
    File() {
      std::vector<std::uint16_t> tokens(static_cast<std::size_t>(kTokens));
      std::mt19937 random(1);
      for (std::uint16_t& token : tokens) {
        token = static_cast<std::uint16_t>(random() % 50'257);
      }
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(2 * tokens.size()));
    }
    ~File() { std::filesystem::remove(path); }
  };
  static const File file;
  return file.path;
}

void tokens(benchmark::State& state) { run_epochs(state, token_dataset(token_file(), {.context = 1024}), kTokenBatch); }

BENCHMARK(cifar_bytes)->Arg(0)->UseRealTime();
BENCHMARK(cifar)->Arg(0)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(cifar_limit)->UseRealTime();
BENCHMARK(tokens)->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
