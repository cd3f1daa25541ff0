#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <lockstep/base/error.h>
#include <lockstep/data/replay_buffer.h>
#include <lockstep/world/world.h>

#include "support/message_of.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::StartsWith;
using Ids = std::vector<std::int64_t>;

LoaderPlan plan_of(std::int64_t global_batch, std::int64_t batch, std::int64_t steps_per_epoch = 0) {
  return {.batch = {.batch_size = batch, .global_batch_size = global_batch},
          .data = {.steps_per_epoch = steps_per_epoch},
          .seed = 3};
}

Batch transitions(std::int64_t first, std::int64_t count) {
  const at::Tensor number = at::arange(first, first + count);
  return {.input = number.to(at::kFloat).unsqueeze(1).expand({count, 4}),
          .target = number,
          .fields = {{"done", number.remainder(2).to(at::kBool)}}};
}

/// The numbers of the transitions in a step of this rank.
Ids numbers(const StepBatches& step) {
  Ids found;
  for (const Batch& batch : step.micro) {
    for (std::int64_t i = 0; i < batch.samples; ++i) {
      found.push_back(batch.target[i].item<std::int64_t>());
      EXPECT_EQ(batch.input[i][3].item<float>(), static_cast<float>(found.back()));
      EXPECT_EQ(batch["done"][i].item<bool>(), found.back() % 2 == 1);
    }
  }
  EXPECT_EQ(std::ssize(found), step.local_samples);
  return found;
}

/// The numbers of all transitions in the buffer, in ascending order.
Ids content(ReplayBuffer& buffer) {
  Ids found;
  for (int step = 0; step < 20; ++step) {
    const Ids more = numbers(*buffer.next());
    found.insert(found.end(), more.begin(), more.end());
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

TEST(ReplayBuffer, KeepsTheLastTransitions) {
  World world = World::single(c10::kCPU);
  ReplayBuffer buffer(5, plan_of(8, 3), world);
  EXPECT_EQ(buffer.capacity(), 5);
  EXPECT_EQ(buffer.size(), 0);
  buffer.add(transitions(0, 3));
  EXPECT_EQ(buffer.size(), 3);
  EXPECT_THAT(content(buffer), ElementsAre(0, 1, 2));
  buffer.add(transitions(3, 4));
  EXPECT_EQ(buffer.size(), 5);
  EXPECT_THAT(content(buffer), ElementsAre(2, 3, 4, 5, 6));
  buffer.add(transitions(7, 1));
  EXPECT_THAT(content(buffer), ElementsAre(3, 4, 5, 6, 7));
  buffer.add(transitions(8, 13));
  EXPECT_THAT(content(buffer), ElementsAre(16, 17, 18, 19, 20));
  buffer.add(transitions(21, 0));
  EXPECT_THAT(content(buffer), ElementsAre(16, 17, 18, 19, 20));
}

TEST(ReplayBuffer, TakesTransitionsOfInferenceMode) {
  World world = World::single(c10::kCPU);
  ReplayBuffer buffer(5, plan_of(8, 3), world);
  {
    const c10::InferenceMode playing;
    buffer.add(transitions(0, 3));
  }
  buffer.add(transitions(3, 2));
  EXPECT_THAT(content(buffer), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_FALSE(buffer.next()->micro.front().input.is_inference());
}

TEST(ReplayBuffer, DrawsUniformly) {
  World world = World::single(c10::kCPU);
  ReplayBuffer buffer(10, plan_of(1000, 1000), world);
  buffer.add(transitions(0, 10));
  std::vector<int> counts(10);
  for (int step = 0; step < 100; ++step) {
    for (const std::int64_t number : numbers(*buffer.next())) {
      ++counts[static_cast<std::size_t>(number)];
    }
  }
  for (const int count : counts) {
    EXPECT_NEAR(count, 10'000, 5 * std::sqrt(9'000));  // five standard deviations
  }
}

TEST(ReplayBuffer, DrawsTheSameGlobalBatchOnAnyNumberOfRanks) {
  const auto drawn = [](int ranks, std::uint64_t seed) {
    std::vector<std::vector<Ids>> found(5, std::vector<Ids>(static_cast<std::size_t>(ranks)));
    thread_world(ranks, [&](World& world) {
      LoaderPlan plan = plan_of(7, 2);
      plan.seed = seed;
      ReplayBuffer buffer(50, plan, world);
      buffer.add(transitions(0, 30));
      for (auto& step : found) {
        const StepBatches& batches = *buffer.next();
        EXPECT_EQ(batches.global_samples, 7);
        EXPECT_EQ(std::ssize(batches.micro), ranks == 1 ? 4 : 2);
        step[static_cast<std::size_t>(world.rank())] = numbers(batches);
      }
    });
    std::vector<Ids> steps;
    for (const auto& of_ranks : found) {
      Ids& step = steps.emplace_back();
      for (const Ids& ids : of_ranks) {
        step.insert(step.end(), ids.begin(), ids.end());
      }
    }
    return steps;
  };
  EXPECT_EQ(drawn(2, 3), drawn(1, 3));
  EXPECT_EQ(drawn(3, 3), drawn(1, 3));
  EXPECT_NE(drawn(1, 4), drawn(1, 3));
}

TEST(ReplayBuffer, ContinuesWhereThePositionSays) {
  World world = World::single(c10::kCPU);
  const auto filled = [&](std::int64_t global_batch = 6) {
    auto buffer = std::make_unique<ReplayBuffer>(50, plan_of(global_batch, 6, /*steps_per_epoch=*/4), world);
    buffer->add(transitions(0, 30));
    return buffer;
  };
  const auto straight = filled();
  EXPECT_EQ(straight->steps_per_epoch(), 4);
  std::vector<Ids> steps;
  std::vector<LoaderPosition> positions = {straight->position()};
  std::vector<bool> ends;
  for (int step = 0; step < 10; ++step) {
    const StepBatches& batches = *straight->next();
    EXPECT_EQ(batches.epoch, step / 4);
    ends.push_back(batches.ends_epoch);
    steps.push_back(numbers(batches));
    positions.push_back(straight->position());
  }
  EXPECT_THAT(ends, ElementsAre(0, 0, 0, 1, 0, 0, 0, 1, 0, 0));
  EXPECT_NE(steps[0], steps[4]) << "an epoch has random numbers of its own";
  const auto resumed = filled();
  for (const std::size_t start : {6U, 0U, 4U, 9U}) {
    resumed->seek(positions[start]);
    EXPECT_EQ(numbers(*resumed->next()), steps[start]) << "step " << start;
    EXPECT_EQ(resumed->position(), positions[start + 1]);
  }
  const auto other = filled(5);
  other->seek(positions[1]);
  EXPECT_EQ(other->next()->global_samples, 6) << "the global batch of the checkpoint";
  EXPECT_THROW(resumed->seek({.dataset_size = 100}), CheckpointError);

  ReplayBuffer endless(50, plan_of(6, 6), world);
  endless.add(transitions(0, 30));
  EXPECT_EQ(endless.steps_per_epoch(), std::nullopt);
  for (int step = 0; step < 10; ++step) {
    EXPECT_FALSE(endless.next()->ends_epoch);
  }

  LoaderPlan part = plan_of(6, 6);
  part.data.steps_per_epoch = StepCount::percent(10);
  EXPECT_THAT(message_of([&] { const ReplayBuffer buffer(50, part, world); }),
              StartsWith("--data.steps_per_epoch 10%: the length of this data is not known"));
  LoaderPlan least = plan_of(6, 6);
  least.data.min_steps_per_epoch = 3;
  EXPECT_THAT(message_of([&] { const ReplayBuffer buffer(50, least, world); }),
              StartsWith("--data.min_steps_per_epoch 3: the length of this data is not known"));
}

TEST(ReplayBuffer, GivesCopies) {
  World world = World::single(c10::kCPU);
  ReplayBuffer buffer(2, plan_of(4, 4), world);
  Batch added = transitions(0, 2);
  buffer.add(added);
  added.target.fill_(99);
  const at::Tensor drawn = buffer.next()->micro[0].target;
  const at::Tensor before = drawn.clone();
  buffer.add(transitions(5, 2));
  EXPECT_TRUE(at::equal(drawn, before));
  EXPECT_TRUE(drawn.lt(2).all().item<bool>());
}

TEST(ReplayBuffer, RejectsWhatDoesNotFit) {
  World world = World::single(c10::kCPU);
  EXPECT_EQ(message_of<ConfigError>([&] { ReplayBuffer(0, plan_of(4, 4), world); }),
            "replay buffer: capacity is 0, expected 1 or more");
  EXPECT_THROW(ReplayBuffer(1, plan_of(0, 4), world), ConfigError);
  ReplayBuffer buffer(8, plan_of(4, 4), world);
  EXPECT_THAT(message_of<DataError>([&] { buffer.next(); }), StartsWith("replay buffer: it is empty"));
  EXPECT_EQ(buffer.position().consumed, 0);
  const auto error = [&](const Batch& batch) { return message_of<DataError>([&] { buffer.add(batch); }); };
  EXPECT_EQ(error({}), "replay buffer: found a batch without tensors, expected tensors only");
  EXPECT_EQ(error({.input = at::ones({2}), .extra = 1}),
            "replay buffer: found a batch with `extra`, expected tensors only");
  EXPECT_EQ(error({.input = at::ones({2, 4}), .target = at::ones({3})}),
            "replay buffer: found input of shape [2, 4] and target of shape [3], expected [N, ...] for all");
  EXPECT_EQ(error({.input = at::ones({})}),
            "replay buffer: found input of shape [] and input of shape [], expected [N, ...] for all");
  EXPECT_EQ(error({.input = at::ones({2, 4})}), "no error");
  EXPECT_EQ(error({.input = at::ones({3, 4})}), "no error");
  EXPECT_EQ(
      error({.input = at::ones({3, 5})}),
      "replay buffer: found transitions with input [*, 5] Float, expected input [*, 4] Float as in the first call");
  EXPECT_EQ(error({.input = at::ones({3, 4}), .target = at::ones({3}, at::kLong)}),
            "replay buffer: found transitions with input [*, 4] Float, target [*] Long, expected input [*, 4] Float as "
            "in the first call");
  EXPECT_EQ(buffer.size(), 5);
}

/// Adds the transitions that it sees after each step, as a program that acts in an environment.
class Actor final : public Callback {
 public:
  explicit Actor(ReplayBuffer& buffer, int rank) : buffer_(buffer), rank_(rank) {}
  std::string name() const override { return "actor"; }
  std::uint32_t stages() const override { return static_cast<std::uint32_t>(Stage::step_end); }
  void on(const StageContext&) override {
    const auto x = at::sin(at::arange(8, at::kFloat) + static_cast<double>(++steps_ + 100 * rank_)).view({2, 4});
    buffer_.add({.input = x, .target = x.sum(1, true)});
  }

 private:
  ReplayBuffer& buffer_;
  int rank_;
  int steps_ = 0;
};

TEST(ReplayBuffer, TrainsWhileTheProgramAdds) {
  const Plan plan = plan_for(2, in_memory({.max_steps = 60, .batch_size = 4}));
  thread_world(2, [&](World& world) {
    TinyTask task;
    ReplayBuffer buffer(32, plan.loader, world);
    const auto x = at::ones({1, 4}) * (world.rank() + 1);
    buffer.add({.input = x, .target = x.sum(1, true)});
    Trainer(plan, world).add(std::make_shared<Actor>(buffer, world.rank())).fit(task, buffer);
    EXPECT_EQ(buffer.size(), 32);
    const at::Tensor weight = task.module().parameters()[0];
    EXPECT_LT((weight - 1).abs().max().item<double>(), 0.1) << "the target is the sum of the inputs";
  });
}

}  // namespace
}  // namespace lockstep
