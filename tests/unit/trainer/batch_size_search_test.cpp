// The largest batch size that every rank can train.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/metrics/regression.h>
#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/trainer/batch_size_search.h>

#include "support/captured_stderr.h"
#include "support/limited_memory.h"
#include "support/message_of.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

[[noreturn]] void run_out() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2 GiB");
}

TrialLoaderFactory loaders_of(std::shared_ptr<Dataset> data) {
  return [data = std::move(data)](const LoaderPlan& plan, World& world) {
    return std::make_shared<DataLoader>(data, plan, world);
  };
}

/// Where a task runs out of memory.
enum class Place { forward, backward, update };

/// Has memory for so many samples.
class GreedyTask : public TinyTask {
 public:
  explicit GreedyTask(std::int64_t room, Place place = Place::forward) : room_(room), place_(place) {}

  StepOutput training_step(const Batch& batch) override {
    sizes.push_back(batch.samples);
    const bool is_full = batch.samples > room_;
    if (is_full && place_ == Place::forward) {
      run_out();
    }
    const at::Tensor output = net_(batch.input);
    if (is_full && place_ == Place::backward) {
      output.register_hook([](const at::Tensor&) { run_out(); });
    }
    return at::mse_loss(output, batch.target);
  }

  void optimize(Step& step) override {
    batches.push_back(step.batches().size());
    OptimizerStep& optimizer = step.optimizer();
    optimizer.zero_grad();
    for (const Batch& batch : step.batches()) {
      optimizer.backward(optimizer.forward(batch, [this](const Batch& b) { return training_step(b); }));
    }
    if (sizes.back() > room_ && place_ == Place::update) {
      throw std::bad_alloc();
    }
    optimizer.update();
  }

  std::vector<std::int64_t> sizes{};   // of the micro-batches
  std::vector<std::size_t> batches{};  // of each step

 private:
  std::int64_t room_;
  Place place_;
};

std::vector<std::int64_t> sizes_of(const BatchSizeSearch& search) {
  std::vector<std::int64_t> sizes;
  for (const BatchSizeTrial& trial : search.trials) {
    sizes.push_back(trial.batch_size);
  }
  return sizes;
}

TrainConfig with_batches(std::int64_t global_batch_size) {
  return in_memory({.max_epochs = 1, .global_batch_size = global_batch_size});
}

/// Each rank has its own room; the search is the same on all of them.
BatchSizeSearch search_on(const std::vector<std::int64_t>& rooms, const BatchSizeSearchOptions& options,
                          Place place = Place::forward, std::int64_t global_batch_size = 0) {
  const int ranks = static_cast<int>(rooms.size());
  std::vector<BatchSizeSearch> found(rooms.size());
  thread_world(ranks, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    GreedyTask task(rooms[rank], place);
    found[rank] = find_batch_size(plan_for(ranks, with_batches(global_batch_size)), world, task,
                                  loaders_of(tiny_data(1000)), options);
  });
  for (const BatchSizeSearch& of_rank : found) {
    EXPECT_EQ(of_rank.largest, found.front().largest);
    EXPECT_EQ(of_rank.flags, found.front().flags);
    EXPECT_EQ(sizes_of(of_rank), sizes_of(found.front()));
  }
  return found.front();
}

TEST(BatchSizeSearch, DoublesUntilMemoryRunsOutOnARank) {
  const std::vector<std::vector<std::int64_t>> worlds{{21}, {21, 900}, {900, 21}, {900, 900, 21}, {900, 21, 900, 21}};
  for (const Place place : {Place::forward, Place::backward, Place::update}) {
    for (const std::vector<std::int64_t>& rooms : worlds) {
      const BatchSizeSearch found = search_on(rooms, {}, place);
      EXPECT_EQ(found.largest, 16);
      EXPECT_THAT(sizes_of(found), ElementsAre(2, 4, 8, 16, 32));
      std::vector<int> full;
      for (std::size_t rank = 0; rank < rooms.size(); ++rank) {
        if (rooms[rank] == 21) {
          full.push_back(static_cast<int>(rank));
        }
      }
      EXPECT_EQ(found.trials.back().full_ranks, full) << "of " << rooms.size() << " ranks";
      EXPECT_THAT(found.trials[3].full_ranks, IsEmpty());
    }
  }
}

TEST(BatchSizeSearch, BisectsToTheLastSample) {
  for (const std::int64_t room : {1, 2, 3, 21, 31, 32, 33, 199, 200}) {
    EXPECT_EQ(search_on({room, 900}, {.max_size = 200, .bisect = true}).largest, room);
  }
  EXPECT_THAT(sizes_of(search_on({21}, {.bisect = true})), ElementsAre(2, 4, 8, 16, 32, 24, 20, 22, 21));
}

TEST(BatchSizeSearch, HalvesTheFirstSizeUntilOneFits) {
  EXPECT_THAT(sizes_of(search_on({3}, {.init = 50})), ElementsAre(50, 25, 12, 6, 3));
  EXPECT_THAT(sizes_of(search_on({4}, {.init = 50, .bisect = true})), ElementsAre(50, 25, 12, 6, 3, 4, 5));
  const std::string message = message_of([] { search_on({900, 0}, {}); });
  EXPECT_EQ(message,
            "find_batch_size: rank 1 ran out of memory with a single sample | use a smaller model, shorter inputs, "
            "activation recomputation, or a smaller margin");
}

TEST(BatchSizeSearch, EndsAtTheLargestSizeAndAtTheData) {
  EXPECT_THAT(sizes_of(search_on({5000, 5000}, {.init = 3, .max_size = 20})), ElementsAre(3, 6, 12, 20));
  const BatchSizeSearch all = search_on({5000, 5000}, {.init = 400});
  EXPECT_THAT(sizes_of(all), ElementsAre(400, 800, 1600));
  EXPECT_EQ(all.largest, 500) << "a rank's share of the data set is not larger";
  EXPECT_THAT(all.trials.back().full_ranks, IsEmpty());
  World world = World::single(c10::kCPU);
  TrainConfig config = with_batches(0);
  config.sampler.drop_last = true;  // a training with more would have no step
  GreedyTask task(5000);
  EXPECT_EQ(find_batch_size(plan_for(1, config), world, task, loaders_of(tiny_data(30)), {}).largest, 30);
}

TEST(BatchSizeSearch, EndsAtTheShareOfARankInAnyData) {
  const auto largest = [](const TrainConfig& config, const TrialLoaderFactory& make_loader) {
    std::int64_t found = 0;
    thread_world(2, [&](World& world) {
      GreedyTask task(5000);
      const BatchSizeSearch search = find_batch_size(plan_for(2, config), world, task, make_loader, {});
      if (world.is_main()) {
        found = search.largest;
      }
    });
    return found;
  };
  TrainConfig several_passes = with_batches(0);
  several_passes.data.min_steps_per_epoch = 200;
  EXPECT_EQ(largest(several_passes, loaders_of(tiny_data(100))), 50);
  for (const CombineMode mode : {CombineMode::min_size, CombineMode::max_size_cycle, CombineMode::max_size}) {
    const auto combined = [mode](const LoaderPlan& plan, World& world) {
      return std::make_shared<CombinedLoader>(
          std::vector<std::shared_ptr<BatchSource>>{std::make_shared<DataLoader>(tiny_data(300), plan, world),
                                                    std::make_shared<DataLoader>(tiny_data(30), plan, world)},
          mode);
    };
    EXPECT_EQ(largest(with_batches(0), combined), 150) << "mode " << static_cast<int>(mode);
  }
}

TEST(BatchSizeSearch, KeepsTheGlobalBatchThatIsSet) {
  const BatchSizeSearch limited = search_on({21, 21}, {}, Place::forward, 200);
  EXPECT_EQ(limited.flags, "--batch_size 16 --accumulation 7 --global_batch_size 200");
  EXPECT_EQ(limited.batch.accumulation, 7);
  EXPECT_TRUE(limited.batch.global_is_given);
  const BatchSizeSearch whole = search_on({900, 900, 900}, {}, Place::forward, 200);
  EXPECT_THAT(sizes_of(whole), ElementsAre(2, 4, 8, 16, 32, 64, 67)) << "a rank has no more samples in a step";
  EXPECT_EQ(whole.flags, "--batch_size 67 --accumulation 1 --global_batch_size 200");
  EXPECT_EQ(search_on({21, 21}, {}).flags, "--batch_size 16 --accumulation 1 --global_batch_size 32");
}

TEST(BatchSizeSearch, TrainsTwoMicroBatchesOfAStep) {
  World world = World::single(c10::kCPU);
  GreedyTask task(1000);
  const Plan plan = plan_for(1, with_batches(100));
  find_batch_size(plan, world, task, loaders_of(tiny_data(1000)), {.init = 10, .max_size = 100, .steps = 4});
  EXPECT_THAT(task.batches, ElementsAre(2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1));
  EXPECT_EQ(task.sizes.front(), 10);
  EXPECT_EQ(task.sizes[8], 20);
  EXPECT_EQ(task.sizes.back(), 100);
}

TEST(BatchSizeSearch, TrainsInThePrecisionOfTheRun) {
  class Watching final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      const at::Tensor output = net_(batch.input);
      outputs.insert(output.scalar_type());
      return at::mse_loss(output.to(at::kFloat), batch.target.to(at::kFloat));
    }
    std::set<at::ScalarType> outputs{};
  };
  const std::vector<std::pair<Precision, at::ScalarType>> dtypes{{Precision::bf16_mixed, at::kBFloat16},
                                                                 {Precision::fp16_mixed, at::kHalf},
                                                                 {Precision::bf16, at::kBFloat16},
                                                                 {Precision::fp64, at::kDouble}};
  for (const auto& [precision, dtype] : dtypes) {
    World world = World::single(c10::kCPU);
    TrainConfig config = with_batches(0);
    config.precision = precision;
    Watching task;
    find_batch_size(plan_for(1, config), world, task, loaders_of(tiny_data(50)), {.max_size = 8});
    EXPECT_THAT(task.outputs, ElementsAre(dtype));
  }
}

struct HeadImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last->forward(dropout->forward(norm->forward(x))); }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(8, 1));
};
TORCH_MODULE(Head);

struct NoisyNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return head->forward(first->forward(x)); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 8));
  Head head = register_module("head", Head());
};
TORCH_MODULE(NoisyNet);

/// With batch norm, dropout, a metric, a frozen part and two optimizers.
class EverythingTask final : public Task {
 public:
  explicit EverythingTask(std::int64_t room) : room_(room) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
    net->first->bias.requires_grad_(false);
    net->head->dropout->options.p(0);
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec first(adamw({.lr = 0.01}), "cosine");
    first.name = "first";
    first.module = net->first.get();
    OptimizerSpec head(sgd({.lr = 0.01, .momentum = 0.9}));
    head.module = net->head.get();
    head.groups = {{.select = named("head.norm.*"), .schedule = "warmup:50%+linear"}, {}};
    return {first, head};
  }
  std::vector<metrics::NamedMetric> metrics() override { return {{"error", error}}; }
  StepOutput training_step(const Batch& batch) override {
    if (batch.samples > room_) {
      run_out();
    }
    const at::Tensor output = net->forward(batch.input);
    error.update(output.detach(), batch.target);
    return at::mse_loss(output, batch.target);
  }
  void optimize(Step& step) override {
    for (std::size_t i = 0; i < step.optimizer_count(); ++i) {
      update_with(i, step, [this](const Batch& batch) { return training_step(batch); });
    }
  }

  NoisyNet net{};
  metrics::MeanAbsoluteError error{};

 private:
  std::int64_t room_;
};

/// The model of the main rank after a training, with or without a search before.
NamedTensors trained_on(int ranks, const TrainConfig& config, bool searches) {
  NamedTensors trained;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    EverythingTask task(world.rank() == ranks - 1 ? 10 : 900);
    if (searches) {
      EXPECT_EQ(find_batch_size(plan, world, task, loaders_of(tiny_data(72)), {.bisect = true}).largest, 10);
    }
    DataLoader data(tiny_data(72), plan.loader, world);
    Trainer(plan, world).fit(task, data);
    if (world.is_main()) {
      trained = copies(module_tensors(task.module()));
    }
  });
  return trained;
}

TEST(BatchSizeSearch, IsFollowedByTheTrainingThatIsWithoutIt) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    TrainConfig config = in_memory({.max_epochs = 3, .batch_size = 4, .accumulation = 2});
    config.dist.shard_optimizer = ranks == 3;
    config.dist.find_unused_parameters = true;  // each backward is one optimizer's and reaches the other's parameters
    const NamedTensors straight = trained_on(ranks, config, /*searches=*/false);
    expect_equal(trained_on(ranks, config, /*searches=*/true), straight);
    EverythingTask untrained(900);
    EXPECT_FALSE(at::equal(straight.front().second, untrained.net->first->weight)) << "nothing was trained";
    EXPECT_TRUE(straight.front().second.isfinite().all().item<bool>()) << straight.front().second;
  }
}

TEST(BatchSizeSearch, LeavesEverythingAsItWas) {
  World world = World::single(c10::kCPU);
  EverythingTask task(10);
  task.net->head->dropout->options.p(0.5);
  task.error.update(at::ones({4, 1}), at::zeros({4, 1}));
  task.net->head->last->weight.mutable_grad() = at::full_like(task.net->head->last->weight, 3);
  const at::Tensor gradient = task.net->head->last->weight.grad();
  const NamedTensors before = copies(module_tensors(task.module()));
  ASSERT_EQ(before.at(6).first, "head.norm.running_mean");
  const at::Tensor rng = rng_state(c10::kCPU);
  std::atomic<int> changes = 0;
  class Changing final : public Dataset {
   public:
    Changing(std::shared_ptr<Dataset> data, const EverythingTask& task, const NamedTensors& before,
             std::atomic<int>& changes)
        : data_(std::move(data)), task_(task), before_(before), changes_(changes) {}
    std::int64_t size() const override { return data_->size(); }
    Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
      changes_ += at::equal(task_.net->head->norm->running_mean, before_.at(6).second) ? 0 : 1;
      return data_->get(ids, seed);
    }

   private:
    std::shared_ptr<Dataset> data_;
    const EverythingTask& task_;
    const NamedTensors& before_;
    std::atomic<int>& changes_;
  };
  TrainConfig config = with_batches(0);
  config.data.workers = 0;
  find_batch_size(plan_for(1, config), world, task,
                  loaders_of(std::make_shared<Changing>(tiny_data(64), task, before, changes)), {});
  expect_equal(copies(module_tensors(task.module())), before);
  EXPECT_TRUE(at::equal(rng_state(c10::kCPU), rng));
  EXPECT_TRUE(task.net->head->last->weight.grad().is_same(gradient));
  EXPECT_TRUE(at::equal(gradient, at::full_like(gradient, 3)));
  EXPECT_FALSE(task.net->first->weight.grad().defined());
  EXPECT_FALSE(task.net->first->bias.requires_grad());
  EXPECT_EQ(task.error.value(world).item<double>(), 1);
  EXPECT_GT(changes, 0) << "the trials change nothing that would have to be restored";
}

TEST(BatchSizeSearch, ThrowsOtherErrorsAsTheyAre) {
  class Failing final : public TinyTask {
   public:
    explicit Failing(bool fails) : fails_(fails) {}
    StepOutput training_step(const Batch& batch) override {
      if (fails_ && batch.samples == 8) {
        throw std::invalid_argument("8 is not my number");
      }
      return TinyTask::training_step(batch);
    }

   private:
    bool fails_;
  };
  for (const int ranks : {1, 3}) {
    const auto search = [&] {
      thread_world(ranks, [&](World& world) {
        Failing task(world.rank() == ranks - 1);
        find_batch_size(plan_for(ranks, with_batches(0)), world, task, loaders_of(tiny_data(100)));
      });
    };
    CapturedStderr captured;
    EXPECT_EQ(message_of<std::invalid_argument>(search), "8 is not my number");
    EXPECT_THAT(captured.text(), HasSubstr("find_batch_size: batch size 8 failed, and not because of memory"));
  }
}

TEST(BatchSizeSearch, EndsWhereTheDataSetRunsOutOfMemory) {
  for (const int workers : {0, 2}) {
    thread_world(2, [&](World& world) {
      TrainConfig config = with_batches(0);
      config.data.workers = workers;
      TinyTask task;
      class Large final : public Dataset {
       public:
        explicit Large(std::size_t room) : room_(room) {}
        std::int64_t size() const override { return data_->size(); }
        Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
          if (ids.size() > room_) {
            throw std::bad_alloc();
          }
          return data_->get(ids, seed);
        }

       private:
        std::size_t room_;
        std::shared_ptr<Dataset> data_ = tiny_data(100);
      };
      const auto found = find_batch_size(plan_for(2, config), world, task,
                                         loaders_of(std::make_shared<Large>(world.rank() == 0 ? 5 : 99)), {});
      EXPECT_EQ(found.largest, 4);
      EXPECT_THAT(found.trials.back().full_ranks, ElementsAre(0));
    });
  }
}

// Their loaders exchange messages in a training.
TEST(BatchSizeSearch, DoesNotWaitForOtherRanksInAStream) {
  const auto start = [](std::int64_t, int, int) -> SampleSource {
    return [at = 0]() mutable -> std::optional<Batch> {
      if (at == 60) {
        return std::nullopt;
      }
      ++at;
      return Batch{.input = at::ones({4}), .target = at::ones({1})};
    };
  };
  thread_world(2, [&](World& world) {
    GreedyTask task(world.rank() == 0 ? 900 : 21);
    const auto found =
        find_batch_size(plan_for(2, with_batches(0)), world, task, [&](const LoaderPlan& plan, World& alone) {
          EXPECT_EQ(alone.size(), 1);
          return std::make_shared<DataLoader>(sample_stream(start), plan, alone);
        });
    EXPECT_EQ(found.largest, 16);
  });
}

TEST(BatchSizeSearch, TrainsBatchesOfEachLoader) {
  World world = World::single(c10::kCPU);
  GreedyTask task(900);
  find_batch_size(
      plan_for(1, with_batches(40)), world, task,
      [](const LoaderPlan& plan, World& alone) {
        return std::make_shared<CombinedLoader>(
            std::vector<std::shared_ptr<BatchSource>>{std::make_shared<DataLoader>(tiny_data(100), plan, alone),
                                                      std::make_shared<DataLoader>(tiny_data(80), plan, alone)},
            CombineMode::max_size_cycle);
      },
      {.init = 10, .max_size = 40, .steps = 2});
  EXPECT_THAT(task.batches, ElementsAre(4, 4, 4, 4, 2, 2));
}

TEST(BatchSizeSearch, RunsSyncBatchNormOnEachRankAlone) {
  struct Net : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 3));
    SyncBatchNorm norm = register_module("norm", SyncBatchNorm(3));
  };
  class Normed final : public Task {
   public:
    explicit Normed(std::int64_t room) : room_(room) {}
    torch::nn::Module& module() override { return *net_; }
    std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.1})}; }
    StepOutput training_step(const Batch& batch) override {
      const at::Tensor hidden = net_->first(batch.input);
      if (batch.samples > room_) {
        run_out();
      }
      return net_->norm(hidden).square().mean();
    }

   private:
    std::int64_t room_;
    std::shared_ptr<Net> net_ = std::make_shared<Net>();
  };
  thread_world(2, [](World& world) {
    Normed task(world.rank() == 0 ? 12 : 900);
    EXPECT_EQ(find_batch_size(plan_for(2, with_batches(0)), world, task, loaders_of(tiny_data(100))).largest, 8);
  });
}

TEST(BatchSizeSearch, LeavesTheMarginFree) {
  World world = World::single(c10::kCPU);
  Plan plan = plan_for(1, with_batches(0));
  plan.local_devices.front().memory_bytes = std::int64_t{1} << 55;  // no machine has a tenth of it
  const auto search = [&](double margin) {
    TinyTask task;
    return find_batch_size(plan, world, task, loaders_of(tiny_data(100)), {.max_size = 4, .margin = margin});
  };
  EXPECT_EQ(search(0).largest, 4);
  EXPECT_THAT(message_of([&] { search(0.1); }), HasSubstr("rank 0 ran out of memory with a single sample"));
}

/// Keeps 8 KiB for each sample of a micro-batch, beside 256 KiB of weights.
class WideTask final : public Task {
 public:
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {adamw({.lr = 1e-3})}; }
  StepOutput training_step(const Batch& batch) override {
    at::Tensor hidden = net_(batch.input);
    for (int i = 0; i < 2; ++i) {
      hidden = hidden.tanh();
    }
    return at::mse_loss(hidden, batch.target.expand_as(hidden));
  }

 private:
  torch::nn::Linear net_{64, 1024};
};

std::shared_ptr<Dataset> wide_data() { return tensor_dataset(at::ones({2000, 64}), at::ones({2000, 1})); }

Plan wide_plan(std::int64_t batch_size) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 6, .batch_size = batch_size, .accumulation = 2});
  config.data.workers = 0;  // they could be those that run out of memory
  return plan_for(1, config);
}

/// A training with this micro-batch in this memory.
void train_in(std::int64_t bytes, std::int64_t batch_size) {
  World world = World::single(c10::kCPU);
  const Plan plan = wide_plan(batch_size);
  const auto samples = wide_data();
  const LimitedMemory memory(LimitedMemory::used() + bytes);
  WideTask task;
  DataLoader data(samples, plan.loader, world);
  Trainer(plan, world).fit(task, data);
}

TEST(BatchSizeSearch, FindsASizeThatATrainingHasMemoryFor) {
  constexpr std::int64_t kBytes = 8 << 20;
  BatchSizeSearch found;
  {
    World world = World::single(c10::kCPU);
    const Plan plan = wide_plan(1);
    const auto samples = wide_data();
    const LimitedMemory memory(LimitedMemory::used() + kBytes);
    WideTask task;
    found = find_batch_size(plan, world, task, loaders_of(samples), {.max_size = 1000, .bisect = true, .margin = 0});
  }
  EXPECT_GT(found.largest, 100);
  EXPECT_LT(found.largest, 1000);
  train_in(kBytes, found.largest);
  EXPECT_THROW(train_in(kBytes, 2 * found.largest), c10::OutOfMemoryError);
}

TEST(BatchSizeSearch, RefusesOptionsThatAreNone) {
  World world = World::single(c10::kCPU);
  TinyTask task;
  const Plan plan = plan_for(1, with_batches(0));
  const auto message = message_of<ConfigError>([&] {
    find_batch_size(plan, world, task, loaders_of(tiny_data(10)), {.init = 0, .max_size = 0, .steps = 1, .margin = 1});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("init is 0, expected 1 or more"), HasSubstr("max_size is 0"),
                             HasSubstr("steps is 1, expected 2 or more"), HasSubstr("margin is 1, expected")));
  EXPECT_THAT(message_of<ConfigError>([&] { find_batch_size(plan, world, task, {}); }),
              HasSubstr("the function that makes a loader is missing"));
  const TrialLoaderFactory none = [](const LoaderPlan&, World&) { return nullptr; };
  EXPECT_THAT(message_of<ConfigError>([&] { find_batch_size(plan, world, task, none); }),
              HasSubstr("the function returned no loader"));
}

}  // namespace
}  // namespace lockstep
