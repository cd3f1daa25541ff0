// A training allocates what `lockstep plan --parameters` says.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/optim/precision.h>
#include <lockstep/parallel/strategy.h>

#include "base/text.h"
#include "config/field_value.h"
#include "plan/memory_plan.h"
#include "support/barrier_of_ranks.h"
#include "support/limited_memory.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

constexpr int kLayers = 32;
constexpr int kWidth = 64;
constexpr std::int64_t kParameters = std::int64_t{kLayers} * kWidth * kWidth;
// Step counts, the values that are sent with the gradients, a batch of one sample, Adafactor's means.
constexpr std::int64_t kSmall = 40 << 10;

struct Net : torch::nn::Module {
  explicit Net(Precision precision) {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i),
                                       torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false))));
    }
    to(dtype = parameter_dtype(precision).value_or(at::kFloat));
  }
  at::Tensor forward() {
    at::Tensor value = at::ones({1, kWidth}, dtype);
    for (torch::nn::Linear& layer : layers) {
      value = layer(value);
    }
    return value;
  }
  at::ScalarType dtype = at::kFloat;
  std::vector<torch::nn::Linear> layers{};
};

const std::vector<std::pair<std::string, OptimizerFactory>> kOptimizers = {
    {"adamw", adamw({.weight_decay = 0.1})},
    {"adamw+amsgrad", adamw({.weight_decay = 0.1, .amsgrad = true})},
    {"adam", adam({.weight_decay = 0.1})},
    {"adam+amsgrad", adam({.weight_decay = 0.1, .amsgrad = true})},
    {"sgd", sgd({.weight_decay = 0.1})},
    {"sgd+momentum", sgd({.momentum = 0.9, .weight_decay = 0.1})},
    {"rmsprop", rmsprop({.weight_decay = 0.1})},
    {"rmsprop+momentum", rmsprop({.weight_decay = 0.1, .momentum = 0.9})},
    {"rmsprop+centered", rmsprop({.weight_decay = 0.1, .centered = true})},
    {"rmsprop+momentum+centered", rmsprop({.weight_decay = 0.1, .momentum = 0.9, .centered = true})},
    {"adagrad", adagrad({.weight_decay = 0.1})},
    {"adadelta", adadelta({.weight_decay = 0.1})},
    {"adamax", adamax({.weight_decay = 0.1})},
    {"nadam", nadam({.weight_decay = 0.1})},
    {"radam", radam({.weight_decay = 0.1})},
    {"asgd", asgd({.weight_decay = 0.1})},
    {"rprop", rprop()},
    {"lion", lion({.weight_decay = 0.1})},
    {"adafactor", adafactor({.weight_decay = 0.1})},
    {"muon", muon()},
    {"prodigy", prodigy({.weight_decay = 0.1})},
    {"schedule_free_adamw", schedule_free_adamw({.weight_decay = 0.1})},
};

/// Of one rank and its strategy.
class Training {
 public:
  Training(const Plan& plan, World& world, const OptimizerFactory& make)
      : plan_(plan), net_(plan.config.precision), strategy_(make_strategy(plan, world)) {
    const std::vector<OptimizerSpec> optimizers{make};
    strategy_->prepare(net_, optimizers);
    at::set_num_threads(1);  // on a busy machine, the threads of such small operations wait for each other
  }
  ~Training() { at::set_num_threads(threads_); }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void begin_step() {
    strategy_->begin_step(step_++, {});
    optimizer().zero_grad();
  }
  void micro_batch(std::int64_t index) {
    const bool is_last = index + 1 == plan_.loader.batch.accumulation;
    optimizer().begin_forward(is_last ? Gradients::reduce : Gradients::accumulate);
    optimizer().backward(forward().square().mean(), {});
  }
  void update() {
    optimizer().finish();
    optimizer().grad_norm();  // as for clipping; the gradients must not be kept for it until the next one
    optimizer().set_lr({});
    optimizer().step();
  }
  void step() {
    begin_step();
    for (std::int64_t i = 0; i < plan_.loader.batch.accumulation; ++i) {
      micro_batch(i);
    }
    update();
  }
  at::Tensor forward() {
    const AutocastScope autocast(plan_.config.precision, c10::kCPU);
    return net_.forward();
  }

 private:
  StrategyOptimizer& optimizer() { return strategy_->optimizer(0); }

  const int threads_ = at::get_num_threads();
  const Plan& plan_;
  Net net_;
  std::unique_ptr<Strategy> strategy_;
  std::int64_t step_ = 0;
};

void expect_near(std::int64_t found, std::int64_t expected, std::int64_t tolerance, const std::string& what) {
  EXPECT_LE(std::abs(found - expected), tolerance) << what << ": found " << found << ", expected " << expected;
}

/// Compares what a rank has in the second step after the backward of its first micro-batch.
void expect_kept(const Plan& plan, const std::string& optimizer, const OptimizerFactory& make) {
  const std::int64_t expected = estimate_memory(kParameters, optimizer_memory(optimizer), plan).kept();
  std::int64_t found = 0;
  const LimitedMemory memory;
  std::barrier all(plan.world_size);  // the ranks are threads with one memory, and a barrier of the world has tensors
  thread_world(plan.world_size, [&](World& world) {
    PlaceAtBarrier place(all);
    place.wait();
    const std::int64_t before = LimitedMemory::used();
    place.wait();
    Training training(plan, world, make);
    training.step();
    training.begin_step();
    training.micro_batch(0);
    place.wait();
    if (world.is_main()) {
      // A thread of Gloo may still hold the message that it has just sent.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      do {
        std::this_thread::yield();
        found = (LimitedMemory::used() - before) / plan.world_size;
      } while (found > expected + kSmall && std::chrono::steady_clock::now() < deadline);
    }
    place.wait();
  });
  expect_near(
      found, expected, kSmall,
      fmt::format("{}, {}, {}, sharded {}, accumulation {}", optimizer, counted(plan.world_size, "rank"),
                  to_text(plan.config.precision), plan.config.dist.shard_optimizer, plan.loader.batch.accumulation));
}

Plan plan_of(int ranks, Precision precision = Precision::fp32, bool is_sharded = false, std::int64_t accumulation = 1) {
  Plan plan;
  plan.world_size = ranks;
  plan.local_devices.resize(static_cast<std::size_t>(ranks));
  plan.config.precision = precision;
  plan.config.dist.shard_optimizer = is_sharded;
  plan.loader.batch.accumulation = accumulation;
  return plan;
}

TEST(PlannedMemory, KnowsEveryOptimizer) {
  std::set<std::string> tested;
  for (const auto& [name, make] : kOptimizers) {
    tested.insert(split(name, '+').front());
  }
  EXPECT_THAT(optimizer_names(), testing::UnorderedElementsAreArray(tested));
}

// Matrices that are updated one by one need a few of their size: together less than a value for each parameter.
TEST(PlannedMemory, IsWhatEachOptimizerKeepsAndNeedsForAnUpdate) {
  constexpr std::int64_t kFewMatrices = 8 * 4 * kWidth * kWidth;
  static_assert(kFewMatrices < 4 * kParameters / 2);
  const Plan plan = plan_of(1);
  for (const auto& [name, make] : kOptimizers) {
    const MemoryEstimate expected = estimate_memory(kParameters, optimizer_memory(name), plan);
    World world = World::single(c10::kCPU);
    const LimitedMemory memory;
    const std::int64_t before = LimitedMemory::used();
    Training training(plan, world, make);
    training.step();
    training.begin_step();
    training.micro_batch(0);
    expect_near(LimitedMemory::used() - before, expected.kept(), kSmall, name);
    training.update();
    expect_near(LimitedMemory::peak() - before, expected.kept() + expected.update, kFewMatrices, name);
  }
}

TEST(PlannedMemory, IsWhatTheRanksKeep) {
  for (const char* name : {"adamw", "sgd+momentum", "lion"}) {
    const auto& make = std::ranges::find(kOptimizers, name, [](const auto& entry) { return entry.first; })->second;
    for (const int ranks : {1, 2}) {
      for (const Precision precision : {Precision::fp32, Precision::bf16_mixed, Precision::bf16}) {
        for (const bool is_sharded : {false, true}) {
          for (const std::int64_t accumulation : {1, 2}) {
            expect_kept(plan_of(ranks, precision, is_sharded, accumulation), name, make);
          }
        }
      }
    }
  }
}

TEST(PlannedMemory, HasTheCopiesOfAutocast) {
  for (const Precision precision : {Precision::fp32, Precision::bf16_mixed}) {
    const Plan plan = plan_of(1, precision);
    const LimitedMemory memory;
    Net net(precision);
    const std::int64_t before = LimitedMemory::used();
    const AutocastScope autocast(precision, c10::kCPU);
    const at::Tensor output = net.forward();
    expect_near(LimitedMemory::used() - before, estimate_memory(kParameters, optimizer_memory("sgd"), plan).half_copies,
                kSmall, to_text(precision));
  }
}

}  // namespace
}  // namespace lockstep
