// Spikes of the loss and of the gradient norm, and what follows: a warning, an end, or the weights of before.
#include "trainer/spike_watch.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/optimizers.h>

#include "support/message_of.h"
#include "support/named_tensors.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

/// Looks at the losses of consecutive steps, `at_once` of them at a time.
std::vector<std::int64_t> spikes_of(const std::vector<double>& losses, const SpikeConfig& config, std::size_t at_once) {
  std::vector<std::int64_t> found;
  thread_world(1, [&](World& world) {
    SpikeWatch watch(config);
    StepBatches batches{.local_samples = 2, .global_samples = 2};
    for (std::size_t step = 0; step < losses.size(); ++step) {
      watch.add(static_cast<std::int64_t>(step), {.loss = at::scalar_tensor(losses[step])}, batches);
      if ((step + 1) % at_once == 0) {
        if (const auto spike = watch.look(world)) {
          found.push_back(spike->step);
        }
      }
    }
  });
  return found;
}

TEST(SpikeWatch, FindsAValueFarAboveTheOnesBefore) {
  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    losses.push_back(2 + 0.1 * std::sin(step) - 0.01 * step);
  }
  const SpikeConfig config{.z_score = 5, .window = 30};
  EXPECT_THAT(spikes_of(losses, config, 5), testing::IsEmpty());
  losses[3] = 9;  // too early to say
  losses[33] = 4;
  losses[47] = std::nan("");  // not a spike
  losses[50] = -100;          // a loss that is too small is none
  for (const std::size_t at_once : {1U, 4U, 20U}) {
    EXPECT_THAT(spikes_of({losses.begin() + 4, losses.end()}, config, at_once), testing::ElementsAre(29)) << at_once;
  }
}

TEST(SpikeWatch, GetsUsedToALossThatStaysHigh) {
  std::vector<double> losses(20, 1.0);
  for (std::size_t step = 0; step < losses.size(); ++step) {
    losses[step] += 0.01 * static_cast<double>(step % 2);
  }
  losses.resize(200, 3.0);
  const auto found = spikes_of(losses, {.z_score = 4, .window = 20}, 1);
  EXPECT_GE(found.size(), 1U);
  EXPECT_EQ(found.front(), 20);
  EXPECT_LT(found.size(), 40U);
}

TEST(SpikeWatch, IsTheSameOnEveryRankAndNamesTheSamples) {
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [&](World& world) {
      SpikeWatch watch({.z_score = 4, .window = 10});
      for (std::int64_t step = 0; step < 20; ++step) {
        // Rank 0 has two samples, the others one; the last rank of three has none.
        const std::int64_t mine = world.rank() == 0 ? 2 : world.rank() == 2 ? 0 : 1;
        StepBatches batches{.local_samples = mine, .global_samples = ranks == 1 ? 2 : 3};
        if (mine > 0) {
          batches.micro.push_back({.ids = {10 * step + world.rank()}, .samples = mine});
        }
        const double loss = step == 15 && world.rank() == 0 ? 50 : 1 + 0.1 * static_cast<double>(step % 3);
        watch.add(step, {.loss = mine > 0 ? at::scalar_tensor(loss) : at::Tensor()}, batches);
      }
      const auto spike = watch.look(world);
      ASSERT_TRUE(spike);
      EXPECT_EQ(spike->step, 15);
      EXPECT_EQ(spike->name, "loss");
      EXPECT_EQ(spike->ids.size(), std::min(ranks, 2));
      EXPECT_EQ(spike->ids.front(), 150);
      EXPECT_FALSE(watch.look(world)) << "nothing is new";
    });
  }
}

/// Scales the loss of chosen steps of this process, or makes it NaN.
class SpikingTask final : public TinyTask {
 public:
  SpikingTask() : TinyTask(adamw({.lr = 0.05})) {}
  StepOutput training_step(const Batch& batch) override {
    const double factor = bad_steps.contains(step++) ? bad_factor : 1;
    return TinyTask::training_step(batch).loss * factor;
  }
  std::set<std::int64_t> bad_steps{};
  double bad_factor = 1e4;
  std::int64_t step = 0;
};

TrainConfig spiking_config(SpikePolicy policy) {
  TrainConfig config = in_memory({.max_steps = 40, .global_batch_size = 12});
  config.max_epochs = 0;
  config.report.every_steps = 5;
  config.spike = {.z_score = 10, .window = 20, .policy = policy};
  return config;
}

NamedTensors weights_after(int ranks, const TrainConfig& config, const std::set<std::int64_t>& bad_steps,
                           double factor = 1e4) {
  NamedTensors weights;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    SpikingTask task;
    task.bad_steps = bad_steps;
    task.bad_factor = factor;
    DataLoader data(tiny_data(60), plan.loader, world);
    Trainer(plan, world).fit(task, data);
    if (world.is_main()) {
      for (const auto& item : task.module().named_parameters()) {
        weights.emplace_back(item.key(), item.value().detach().clone());
      }
    }
  });
  return weights;
}

double distance(const NamedTensors& a, const NamedTensors& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += (a[i].second - b[i].second).abs().sum().item<double>();
  }
  return sum;
}

TEST(Spike, StopsTheRun) {
  EXPECT_THAT(message_of([] { weights_after(2, spiking_config(SpikePolicy::stop), {27}); }),
              HasSubstr("the loss of step 27 is"));
}

TEST(Spike, WarnsAndChangesNothing) {
  testing::internal::CaptureStderr();
  const NamedTensors warned = weights_after(2, spiking_config(SpikePolicy::warn), {27});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the loss of step 27 is"));
  TrainConfig off = spiking_config(SpikePolicy::warn);
  off.spike.z_score = 0;
  EXPECT_EQ(distance(warned, weights_after(2, off, {27})), 0);
}

TEST(Rollback, PutsTheWeightsOfTheLastReportBack) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool shard : {false, true}) {
      TrainConfig config = spiking_config(SpikePolicy::rollback);
      config.dist.shard_optimizer = shard && ranks > 1;
      testing::internal::CaptureStderr();
      const NamedTensors found = weights_after(ranks, config, {27});
      EXPECT_THAT(testing::internal::GetCapturedStderr(),
                  HasSubstr("the weights are those of step 25 again; the samples of steps 25 to 29 are left out"));
      // A run whose steps 25 to 29 do not change anything, weights or moments.
      NamedTensors expected;
      thread_world(ranks, [&](World& world) {
        config.spike.z_score = 0;
        const Plan plan = plan_for(ranks, config);
        class Paused final : public TinyTask {
         public:
          Paused() : TinyTask(adamw({.lr = 0.05})) {}
          void optimize(Step& step) override {
            if (step.number() < 25 || step.number() > 29) {
              TinyTask::optimize(step);
            }
          }
        } task;
        DataLoader data(tiny_data(60), plan.loader, world);
        Trainer(plan, world).fit(task, data);
        if (world.is_main()) {
          for (const auto& item : task.module().named_parameters()) {
            expected.emplace_back(item.key(), item.value().detach().clone());
          }
        }
      });
      EXPECT_EQ(distance(found, expected), 0) << ranks << " ranks" << (shard ? ", sharded" : "");
      EXPECT_GT(distance(found, weights_after(ranks, config, {})), 0) << "the control";
    }
  }
}

TEST(Rollback, HelpsAgainstNaN) {
  TrainConfig config = spiking_config(SpikePolicy::warn);
  config.spike.z_score = 0;
  EXPECT_THAT(message_of([&] { weights_after(2, config, {12}, std::nan("")); }), HasSubstr("is not finite"));
  config.optim.non_finite = NonFinitePolicy::rollback;
  for (const auto& [bad, back] : {std::pair{12, 10}, {2, 0}}) {
    testing::internal::CaptureStderr();
    const NamedTensors weights = weights_after(2, config, {bad}, std::nan(""));
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("the weights are those of step " + std::to_string(back) + " again"));
    for (const auto& [name, weight] : weights) {
      EXPECT_TRUE(weight.isfinite().all().item<bool>()) << name;
    }
  }
}

TEST(Rollback, EndsTheRunIfItDoesNotHelp) {
  TrainConfig config = spiking_config(SpikePolicy::warn);
  config.spike.z_score = 0;
  config.optim.non_finite = NonFinitePolicy::rollback;
  std::set<std::int64_t> all;
  for (std::int64_t step = 12; step < 40; ++step) {
    all.insert(step);
  }
  EXPECT_THAT(message_of([&] { weights_after(2, config, all, std::nan("")); }),
              HasSubstr("3 rollbacks to step 10 in a row did not help"));
}

TEST(Rollback, IsTheSameInAResumedRun) {
  const auto config = [](const TempDir& dir, std::int64_t steps) {
    TrainConfig made = spiking_config(SpikePolicy::rollback);
    made.checkpoint.enabled = true;
    made.checkpoint.every_steps = 23;
    made.max_steps = steps;
    made.run_dir = (dir.path() / "run").string();
    return made;
  };
  // The spike of step 24 is found at step 25; the last copy is that of the save at step 23, also in the straight run.
  const TempDir whole;
  const NamedTensors straight = weights_after(2, config(whole, 40), {24});
  const TempDir parts;
  weights_after(2, config(parts, 23), {});
  const NamedTensors resumed = weights_after(2, config(parts, 40), {1});  // the task counts its own steps
  EXPECT_EQ(distance(straight, resumed), 0);
}

}  // namespace
}  // namespace lockstep
