// What one index costs: the next one, a random one, the first of a new epoch. Arg: samples in the data set.
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include <lockstep/sampling/distributed_sampler.h>

namespace lockstep {
namespace {

/// The next indices, as a rank of 8 takes them: 256 a step.
void next_index(benchmark::State& state) {
  constexpr std::int64_t kBatch = 8 * 256;
  const DistributedSampler sampler({.size = state.range(0), .global_batch = kBatch, .world_size = 8});
  std::vector<std::int64_t> ids;
  std::int64_t consumed = 0;
  std::int64_t indices = 0;
  for (auto _ : state) {
    sampler.rank_ids(0, consumed, 3, ids);
    benchmark::DoNotOptimize(ids.data());
    indices += static_cast<std::int64_t>(ids.size());
    consumed += kBatch;
    consumed = consumed < state.range(0) ? consumed : 0;
  }
  state.counters["s_per_index"] =
      benchmark::Counter(static_cast<double>(indices), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

/// Any position of the epoch.
void random_seek(benchmark::State& state) {
  const KeyedPermutation order(state.range(0), 42, 0);
  std::int64_t position = 1;
  for (auto _ : state) {
    position = order(position) ^ 1;  // each waits for the one before
    position = position < state.range(0) ? position : 0;
  }
  benchmark::DoNotOptimize(position);
}

/// From nothing: a sampler's first index of an epoch.
void first_index(benchmark::State& state) {
  std::int64_t epoch = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(KeyedPermutation(state.range(0), 42, epoch++)(state.range(0) / 2));
  }
}

void weighted_index(benchmark::State& state) {
  const std::vector<double> weights(static_cast<std::size_t>(state.range(0)), 1.0);
  const auto order = weighted_order(weights);
  std::vector<std::int64_t> ids(256);
  std::int64_t indices = 0;
  for (auto _ : state) {
    order->fill({}, 0, ids);
    benchmark::DoNotOptimize(ids.data());
    indices += 256;
  }
  state.counters["s_per_index"] =
      benchmark::Counter(static_cast<double>(indices), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  for (const std::int64_t size : {1'000'000LL, 10'000'000LL, 100'000'000LL, 1'000'000'000'000LL}) {
    benchmark->Arg(size);
  }
}

BENCHMARK(next_index)->Apply(sizes);
BENCHMARK(random_seek)->Apply(sizes);
BENCHMARK(first_index)->Apply(sizes);
BENCHMARK(weighted_index)->Arg(1'000'000);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
