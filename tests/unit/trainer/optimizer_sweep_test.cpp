// Every optimizer, with clipping, accumulation, a schedule, an average, two groups, one of them with a gradient norm of
// its own, and a ragged last step: ranks agree with one rank, and a resumed run has the bytes of the undisturbed one in
// every precision.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callbacks.h>

#include "support/all_optimizers.h"
#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/sweep.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

/// Those that refuse half parameters with their usual eps, with a larger one.
std::vector<NamedOptimizer> optimizers_with_larger_eps() {
  return {{"rmsprop", rmsprop({.lr = 0.01, .eps = 1e-3, .momentum = 0.5, .centered = true})},
          {"adagrad", adagrad({.lr = 0.1, .lr_decay = 0.01, .eps = 1e-3})},
          {"adamax", adamax({.lr = 0.02, .eps = 1e-3})},
          {"nadam", nadam({.lr = 0.01, .eps = 1e-3})},
          {"radam", radam({.lr = 0.01, .beta2 = 0.9, .eps = 1e-3})},
          {"muon", muon({.lr = 0.02, .adamw = {.lr = 0.02, .eps = 1e-3}})},
          {"prodigy", prodigy({.eps = 1e-3, .weight_decay = 0.1, .d0 = 1e-3})},
          {"schedule_free_adamw", schedule_free_adamw({.lr = 0.02, .eps = 1e-3, .weight_decay = 0.1, .r = 1})}};
}

/// All of them, such that they train parameters of the precision.
std::vector<NamedOptimizer> optimizers_for(Precision precision) {
  std::vector<NamedOptimizer> found = all_optimizers();
  if (precision == Precision::fp16) {
    for (const NamedOptimizer& other : optimizers_with_larger_eps()) {
      std::ranges::find(found, std::string_view(other.name), &NamedOptimizer::name)->make = other.make;
    }
  }
  return found;
}

/// Prodigy looks at all parameters together.
std::vector<NamedOptimizer> shardable_optimizers() {
  auto found = all_optimizers();
  std::erase_if(found, [](const NamedOptimizer& optimizer) { return optimizer.name == std::string_view("prodigy"); });
  return found;
}

/// Parameters, average and optimizer state at the end.
NamedTensors train(const OptimizerFactory& make, World& world, TrainConfig config) {
  config.global_batch_size = 4;
  config.batch_size = world.size() == 4 ? 1 : 2;
  config.optim.schedule = "warmup:3+cosine:until=40";
  config.optim.max_grad_norm = 0.5;
  OptimizerSpec spec(make);
  spec.groups = {{.select = named("*weight"), .max_grad_norm = 0.3},
                 {.select = named("*"), .lr_scale = 0.5, .weight_decay = 0}};
  if (config.run_name == "rprop") {
    spec.groups.back().weight_decay.reset();  // it has none
  }
  TinyTask task(spec);
  const Plan plan = plan_for(world.size(), config);
  DataLoader data(tiny_data(23), plan.loader, world);  // 5 full steps and one of 3 samples
  const auto average = std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.9, .every_steps = 2});
  NamedTensors result;
  Trainer trainer(plan, world);
  trainer.add(average);
  trainer.add(at_stage(Stage::fit_end, [&](const StageContext& context) {
    for (auto& [name, tensor] : context.strategy->optimizer_state()) {
      result.emplace_back(name, tensor.clone());
    }
  }));
  trainer.fit(task, data);
  for (const auto& item : task.module().named_parameters()) {
    result.emplace_back(item.key(), item.value().detach().clone());
  }
  for (const auto& [name, tensor] : average->average()) {
    result.emplace_back("average." + name, tensor.clone());
  }
  return result;
}

TrainConfig base(const NamedOptimizer& optimizer, Precision precision) {
  TrainConfig config = in_memory({.max_epochs = 3});
  config.run_name = optimizer.name;
  config.precision = precision;
  return config;
}

/// Between one rank and several. Prodigy's rate grows from 0.001 of the others', and what was rounded grows with it.
double tolerance(const NamedOptimizer& optimizer, Precision precision) {
  if (precision == Precision::fp64) {
    return 1e-10;
  }
  return optimizer.name == std::string_view("prodigy") ? 1e-3 : 1e-5;
}

TEST(OptimizerSweep, RanksAgreeWithOneRank) {
  Sweep sweep("optimizers on ranks");
  for (const Precision precision : {Precision::fp64, Precision::fp32}) {
    for (const NamedOptimizer& optimizer : all_optimizers()) {
      SCOPED_TRACE(std::string(optimizer.name) + (precision == Precision::fp64 ? " in fp64" : " in fp32"));
      const TrainConfig config = base(optimizer, precision);
      NamedTensors one;
      thread_world(1, [&](World& world) { one = train(optimizer.make, world, config); });
      for (const int ranks : {2, 4}) {
        std::vector<NamedTensors> found(static_cast<std::size_t>(ranks));
        thread_world(ranks, [&](World& world) {
          found[static_cast<std::size_t>(world.rank())] = train(optimizer.make, world, config);
        });
        const double distance = largest_difference(found.front(), one);
        const bool same = distance < tolerance(optimizer, precision);
        EXPECT_TRUE(same) << ranks << " ranks: " << distance;
        EXPECT_TRUE(are_equal(found.front(), found.back())) << "the ranks differ";
        sweep.count(same);
      }
      // Control: another seed is seen.
      TrainConfig other = config;
      other.seed = 43;
      thread_world(1, [&](World& world) {
        EXPECT_GT(largest_difference(train(optimizer.make, world, other), one), tolerance(optimizer, precision));
      });
    }
  }
  EXPECT_EQ(sweep.points(), 2 * 16 * 2);
}

TEST(OptimizerSweep, AResumedRunHasTheBytesOfTheUndisturbedOne) {
  Sweep sweep("resumed optimizers");
  int ranks = 1;
  for (const auto& [precision, rounds] :
       {std::pair(Precision::fp32, false), std::pair(Precision::fp64, false), std::pair(Precision::bf16, false),
        std::pair(Precision::bf16, true), std::pair(Precision::fp16, false), std::pair(Precision::fp16_mixed, false)}) {
    for (const NamedOptimizer& optimizer : optimizers_for(precision)) {
      const TempDir dir;
      TrainConfig config = base(optimizer, precision);
      config.optim.stochastic_rounding = rounds;
      NamedTensors straight;
      NamedTensors resumed;
      thread_world(ranks, [&](World& world) {
        const NamedTensors found = train(optimizer.make, world, config);
        if (world.is_main()) {
          straight = found;
        }
      });
      config.run_dir = (dir.path() / "run").string();
      config.checkpoint.enabled = true;
      for (const std::int64_t steps : {7, 0}) {  // in the middle of the second epoch
        config.max_steps = steps;
        thread_world(ranks, [&](World& world) {
          const NamedTensors found = train(optimizer.make, world, config);
          if (world.is_main()) {
            resumed = found;
          }
        });
      }
      const bool same = are_equal(resumed, straight);
      EXPECT_TRUE(same) << optimizer.name << ", precision " << static_cast<int>(precision) << ", " << ranks
                        << " ranks: " << largest_difference(resumed, straight);
      for (const auto& [name, tensor] : resumed) {
        EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << optimizer.name << ": " << name;
      }
      sweep.count(same);
      ranks = 3 - ranks;
    }
    ranks = 3 - ranks;  // each optimizer is trained with both
  }
  EXPECT_EQ(sweep.points(), 16 * 6);
}

TEST(OptimizerSweep, HalfParametersAreTrainedOrRefused) {
  Sweep sweep("optimizers of half parameters");
  const std::vector<NamedOptimizer> refused = optimizers_with_larger_eps();
  thread_world(1, [&](World& world) {
    for (const NamedOptimizer& optimizer : all_optimizers()) {
      NamedTensors found;
      const std::string message =
          message_of([&] { found = train(optimizer.make, world, base(optimizer, Precision::fp16)); });
      const bool is_refused =
          std::ranges::find(refused, std::string_view(optimizer.name), &NamedOptimizer::name) != refused.end();
      EXPECT_EQ(message.find("which is 0 in fp16") != std::string::npos, is_refused) << optimizer.name << message;
      const bool is_finite = std::ranges::all_of(
          found, [](const auto& entry) { return entry.second.isfinite().all().template item<bool>(); });
      EXPECT_TRUE(is_finite) << optimizer.name;
      sweep.count(is_finite);
    }
  });
  EXPECT_EQ(sweep.points(), 16);
}

/// Trains in parts, each of which resumes the one before; the results of the last part, by rank.
struct Part {
  int ranks = 1;
  bool shards = false;
  std::int64_t steps = 0;  // 0: to the end
};
std::vector<NamedTensors> train_in_parts(const NamedOptimizer& optimizer, Precision precision,
                                         const std::vector<Part>& parts) {
  const TempDir dir;
  TrainConfig config = base(optimizer, precision);
  config.optim.stochastic_rounding = precision == Precision::bf16;
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  std::vector<NamedTensors> found;
  for (const Part& part : parts) {
    config.max_steps = part.steps;
    config.dist.shard_optimizer = part.shards;
    found.assign(static_cast<std::size_t>(part.ranks), {});
    thread_world(part.ranks, [&](World& world) {
      NamedTensors mine = train(optimizer.make, world, config);
      std::sort(mine.begin(), mine.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      found[static_cast<std::size_t>(world.rank())] = std::move(mine);
    });
  }
  return found;
}

TEST(OptimizerSweep, AShardedStateGivesTheSameBytes) {
  Sweep sweep("sharded optimizers");
  for (const NamedOptimizer& optimizer : shardable_optimizers()) {
    for (const auto& [precision, ranks] :
         {std::pair(Precision::fp32, 4), std::pair(Precision::bf16, 2), std::pair(Precision::fp16_mixed, 2)}) {
      const auto plain = train_in_parts(optimizer, precision, {{ranks, false}});
      const auto sharded = train_in_parts(optimizer, precision, {{ranks, true}});
      const bool same = are_equal(sharded.front(), plain.front());
      EXPECT_TRUE(same) << optimizer.name << ", " << ranks
                        << " ranks: " << largest_difference(sharded.front(), plain.front());
      EXPECT_LT(sharded.back().size(), plain.back().size()) << "a rank keeps its share only";
      sweep.count(same);
    }
  }
  EXPECT_EQ(sweep.points(), static_cast<int>(shardable_optimizers().size()) * 3);
}

TEST(OptimizerSweep, AShardedRunResumesWithAndWithoutShards) {
  Sweep sweep("resumed sharded optimizers");
  for (const NamedOptimizer& optimizer : shardable_optimizers()) {
    const NamedTensors straight = train_in_parts(optimizer, Precision::fp64, {{2, false}}).front();
    for (const auto& [before, after] : {std::pair(true, false), std::pair(false, true)}) {
      const NamedTensors found = train_in_parts(optimizer, Precision::fp64, {{2, before, 7}, {2, after}}).front();
      const bool same = are_equal(found, straight);
      EXPECT_TRUE(same) << optimizer.name << ": " << largest_difference(found, straight);
      sweep.count(same);
    }
    const double distance =
        largest_difference(train_in_parts(optimizer, Precision::fp64, {{4, true, 7}, {2, true}}).front(), straight);
    EXPECT_LT(distance, 1e-10) << optimizer.name << ", other number of ranks";
    sweep.count(distance < 1e-10);
  }
  EXPECT_EQ(sweep.points(), static_cast<int>(shardable_optimizers().size()) * 3);
}

TEST(OptimizerSweep, ASharedEstimateIsNotSharded) {
  TrainConfig config = base({"prodigy", {}}, Precision::fp32);
  config.dist.shard_optimizer = true;
  thread_world(2, [&](World& world) {
    EXPECT_THAT(message_of([&] { train(prodigy(), world, config); }),
                testing::HasSubstr("optimizer 'main' is Prodigy, which updates all parameters together"));
  });
}

TEST(OptimizerSweep, AWeightDecayThatAnOptimizerHasNotIsRefused) {
  OptimizerSpec spec(rprop());
  spec.groups = {{.weight_decay = 0.1}};
  TinyTask task(spec);
  Session session = Session::single(in_memory({.max_epochs = 1}));
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }),
              testing::HasSubstr("group 0 sets weight decay 0.1, which this optimizer does not support"));
}

}  // namespace
}  // namespace lockstep
