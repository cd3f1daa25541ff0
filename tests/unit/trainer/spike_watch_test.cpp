// Spikes of the inputs, the loss and the gradient norm, and what follows: a warning, an end, or the weights of before.
#include "trainer/watch/spike_watch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "report/record_comparison.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

/// The events of this name.
std::vector<nlohmann::json> events_of(const std::filesystem::path& run, std::string_view name) {
  std::vector<nlohmann::json> events;
  for (const std::string& line : read_lines(run / "events.jsonl")) {
    if (auto event = nlohmann::json::parse(line); event["event"] == name) {
      events.push_back(std::move(event));
    }
  }
  return events;
}

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
      EXPECT_EQ(spike->rank, ranks == 1 ? std::nullopt : std::optional(0)) << "of one rank there is nothing to say";
      EXPECT_FALSE(watch.look(world)) << "nothing is new";
    });
  }
}

TEST(SpikeWatch, NamesNoRankIfSeveralHaveTheSpike) {
  thread_world(3, [](World& world) {
    SpikeWatch watch({.z_score = 4, .window = 10});
    for (std::int64_t step = 0; step < 20; ++step) {
      const double loss = step == 15 && world.rank() > 0 ? 50 : 1 + 0.1 * static_cast<double>(step % 3);
      watch.add(step, {.loss = at::scalar_tensor(loss)}, {.local_samples = 1, .global_samples = 3});
    }
    const auto spike = watch.look(world);
    ASSERT_TRUE(spike);
    EXPECT_EQ(spike->step, 15);
    EXPECT_FALSE(spike->rank);
  });
}

TEST(SpikeWatch, WeighsLossesByTheirCounts) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      SpikeWatch watch({.z_score = 4, .window = 10});
      for (std::int64_t step = 0; step < 20; ++step) {
        const double spike = step == 15 ? 30 : 0;
        // Of four numbers, 0 + 0 + 0 + 4 (1 + spike): rank 0 of two has three of them.
        const std::int64_t count = ranks == 1 ? 4 : world.is_main() ? 3 : 1;
        const double sum = ranks == 1 || !world.is_main() ? 4 * (1 + spike + 0.1 * static_cast<double>(step % 3)) : 0;
        watch.add(
            step,
            {.loss = at::scalar_tensor(sum / static_cast<double>(count)), .count = at::scalar_tensor(count, at::kLong)},
            {.local_samples = 2 / ranks, .global_samples = 2});
      }
      const auto spike = watch.look(world);
      ASSERT_TRUE(spike);
      EXPECT_EQ(spike->step, 15);
      EXPECT_NEAR(spike->value, 31, 1e-5);
      EXPECT_EQ(spike->rank, ranks == 1 ? std::nullopt : std::optional(1));
    });
  }
}

// As of a task that updates in every second step only.
TEST(SpikeWatch, StepsWithoutAGradientNormAreNotCounted) {
  for (const std::int64_t updates : {0, 1}) {
    for (const std::int64_t at_once : {1, 5, 40}) {
      thread_world(2, [&](World& world) {
        SpikeWatch watch({.z_score = 6, .window = 10});
        std::vector<std::int64_t> found;
        for (std::int64_t step = 0; step < 40; ++step) {
          const double norm = step / 2 == 15 ? 1.2 : 1 + 0.01 * static_cast<double>(step / 2 % 2);
          watch.add(step,
                    {.loss = at::scalar_tensor(1.0),
                     .grad_norm = step % 2 == updates ? at::scalar_tensor(norm) : at::Tensor()},
                    {.local_samples = 1, .global_samples = 2});
          if ((step + 1) % at_once == 0) {
            if (const auto spike = watch.look(world)) {
              EXPECT_EQ(spike->name, "grad_norm");
              found.push_back(spike->step);
            }
          }
        }
        EXPECT_THAT(found, testing::ElementsAre(30 + updates)) << "looked every " << at_once << " steps";
      });
    }
  }
}

TEST(SpikeWatch, LooksAtTheInputsOfAllSamples) {
  std::vector<double> values;
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [&](World& world) {
      SpikeWatch watch({.z_score = 4, .window = 10, .inputs = true});
      for (std::int64_t step = 0; step < 20; ++step) {
        // The mean squares of three samples are a, a and b. Rank 0 of several has the first two; rank 2 has none.
        const double b = 1 + 0.1 * static_cast<double>(step % 3);
        const double a = step == 15 ? 400 : b;
        const std::int64_t mine = ranks == 1 ? 3 : world.rank() == 0 ? 2 : world.rank() == 1 ? 1 : 0;
        const double square = ranks == 1 ? (2 * a + b) / 3 : world.is_main() ? a : b;
        watch.add(step,
                  {.loss = mine > 0 ? at::scalar_tensor(2.0) : at::Tensor(),
                   .inputs = mine > 0 ? at::scalar_tensor(square, at::kDouble) : at::Tensor()},
                  {.local_samples = mine, .global_samples = 3});
      }
      const auto spike = watch.look(world);
      ASSERT_TRUE(spike);
      EXPECT_EQ(spike->step, 15);
      EXPECT_EQ(spike->name, "inputs");
      EXPECT_NEAR(spike->value, std::sqrt((2 * 400 + 1) / 3.0), 1e-9);
      EXPECT_THAT(spike->text(), HasSubstr("the root mean square of the inputs of step 15 is 16.34, "));
    });
  }
}

TEST(SpikeWatch, NamesTheInputsFirst) {
  thread_world(1, [](World& world) {
    for (const bool inputs : {false, true}) {
      SpikeWatch watch({.z_score = 4, .window = 10, .inputs = inputs});
      for (std::int64_t step = 0; step < 20; ++step) {
        const double value = step == 15 ? 50 : 1;
        watch.add(step, {.loss = at::scalar_tensor(value), .inputs = at::scalar_tensor(value, at::kDouble)},
                  {.local_samples = 2, .global_samples = 2});
      }
      const auto spike = watch.look(world);
      ASSERT_TRUE(spike);
      EXPECT_EQ(spike->name, inputs ? "inputs" : "loss");
    }
  });
}

TEST(SpikeWatch, LoadsWindowsWithAndWithoutInputs) {
  thread_world(1, [](World& world) {
    const auto config = [](bool inputs) { return SpikeConfig{.z_score = 4, .window = 10, .inputs = inputs}; };
    const StepBatches batches{.local_samples = 2, .global_samples = 2};
    const auto result = [](double loss, double square) {
      return StepResult{.loss = at::scalar_tensor(loss), .inputs = at::scalar_tensor(square, at::kDouble)};
    };
    for (const bool before : {false, true}) {
      SpikeWatch saved(config(before));
      for (std::int64_t step = 0; step < 12; ++step) {
        saved.add(step, result(1, 1), batches);
      }
      EXPECT_FALSE(saved.look(world));
      using Names = std::vector<std::string>;
      EXPECT_EQ(names(saved.save()), before ? Names({"inputs", "loss"}) : Names({"loss"}));
      for (const bool now : {false, true}) {
        SpikeWatch resumed(config(now));
        resumed.load(saved.save());
        EXPECT_EQ(names(resumed.save()).size(), before && now ? 2U : 1U) << "what is not looked at is not kept";
        resumed.add(12, result(1, 50), batches);
        const auto of_inputs = resumed.look(world);
        EXPECT_EQ(of_inputs.has_value(), before && now) << "without a window it is the first value";
        resumed.add(13, result(9, 1), batches);
        const auto of_loss = resumed.look(world);
        ASSERT_TRUE(of_loss);
        EXPECT_EQ(of_loss->name, "loss");
      }
    }
  });
}

TEST(SpikeGate, LoadsWindowsWithAndWithoutInputs) {
  const auto config = [](bool inputs) {
    return SpikeConfig{.z_score = 4, .window = 10, .inputs = inputs, .policy = SpikePolicy::skip};
  };
  const auto check = [](SpikeGate& gate, std::int64_t step, double square, double loss) {
    return gate
        .check(
            step, 0,
            {.inputs = at::scalar_tensor(square), .loss = at::scalar_tensor(loss), .grad_norm = at::scalar_tensor(1.0)})
        .item<double>();
  };
  for (const bool before : {false, true}) {
    SpikeGate saved(config(before));
    for (std::int64_t step = 0; step < 12; ++step) {
      EXPECT_EQ(check(saved, step, 1, 1), 0);
    }
    EXPECT_EQ(saved.save().size(), before ? 3U : 2U);
    for (const bool now : {false, true}) {
      SpikeGate resumed(config(now));
      resumed.load(saved.save());
      EXPECT_EQ(check(resumed, 12, 50, 1), before && now ? 1 : 0) << "without a window it is the first value";
      EXPECT_EQ(check(resumed, 13, 1, 9), 1);
    }
  }
}

TEST(SpikeGate, JudgesOnTheHostAsByOperations) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  const std::map<int, double> loud{{13, 40}, {14, 1e9}, {15, nan}, {16, infinity}, {17, -infinity}, {18, -50}, {31, 3}};
  World world = World::single(at::kCPU);
  for (const bool inputs : {false, true}) {
    for (const std::int64_t window : {1, 7, 20, 100}) {
      const SpikeConfig config{.z_score = 3, .window = window, .inputs = inputs, .policy = SpikePolicy::skip};
      SpikeGate on_host(config);
      SpikeGate by_operations(config);
      int spikes = 0;
      for (int step = 0; step < 150; ++step) {
        const auto optimizer = static_cast<std::size_t>(step % 3 == 2);
        // In each step another one of the three is loud.
        const auto value = [&](int which) {
          const auto found = loud.find(step % 60);
          return found != loud.end() && (step + which) % 3 == 0 ? found->second : 1.3 + 0.1 * std::sin(step + which);
        };
        const SpikeGate::Values values{.inputs = at::scalar_tensor(value(0) * value(0), at::kFloat),
                                       .loss = at::scalar_tensor(value(1), at::kFloat),
                                       .grad_norm = at::scalar_tensor(value(2), at::kFloat)};
        const at::Tensor flag = on_host.check(step, optimizer, values);
        ASSERT_TRUE(at::equal(flag, by_operations.check_by_operations(step, optimizer, values))) << "step " << step;
        ASSERT_TRUE(are_equal(on_host.save(), by_operations.save())) << "step " << step;
        spikes += flag.item<float>() > 0 ? 1 : 0;
      }
      EXPECT_GT(spikes, 0);
      EXPECT_LT(spikes, 150);
      const std::vector<Spike> of_host = on_host.take_skipped(world);
      const std::vector<Spike> expected = by_operations.take_skipped(world);
      ASSERT_EQ(of_host.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(of_host[i].text(), expected[i].text());
      }
    }
  }
}

TEST(SpikeGate, GivesACopyOfItsWindows) {
  SpikeGate gate({.z_score = 3, .window = 4, .policy = SpikePolicy::skip});
  const auto check = [&](double value) {
    gate.check(0, 0, {.loss = at::scalar_tensor(value), .grad_norm = at::scalar_tensor(value)});
  };
  check(1);
  check(2);
  const NamedTensors saved = gate.save();
  check(3);
  EXPECT_TRUE(at::equal(saved.front().second, at::tensor({1.0, 2.0}, at::kDouble)));
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
      weights = copies(module_tensors(task.module()));
    }
  });
  return weights;
}

TEST(Spike, StopsTheRun) {
  EXPECT_THAT(message_of([] { weights_after(2, spiking_config(SpikePolicy::stop), {27}); }),
              HasSubstr("the loss of step 27 is"));
}

TEST(Spike, WarnsAndChangesNothing) {
  CapturedStderr captured;
  const NamedTensors warned = weights_after(2, spiking_config(SpikePolicy::warn), {27});
  EXPECT_THAT(captured.text(), HasSubstr("the loss of step 27 is"));
  TrainConfig off = spiking_config(SpikePolicy::warn);
  off.spike.z_score = 0;
  EXPECT_EQ(largest_difference(warned, weights_after(2, off, {27})), 0);
}

/// Multiplies the gradients of chosen steps; the losses stay ordinary.
class SteepTask final : public TinyTask {
 public:
  explicit SteepTask(std::set<std::int64_t> steep, OptimizerSpec optimizer = adamw({.lr = 0.05}))
      : TinyTask(std::move(optimizer)), steep_(std::move(steep)) {}
  void optimize(Step& step) override {
    factor_ = steep_.contains(step.number()) ? 1e3 : 1;
    TinyTask::optimize(step);
  }
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor loss = TinyTask::training_step(batch).loss;
    return loss * factor_ - (loss * (factor_ - 1)).detach();
  }

 private:
  std::set<std::int64_t> steep_;
  double factor_ = 1;
};

/// tiny_data() with a field that no task uses. Its numbers are 0.5, and 1000 in the samples `loud`.
std::shared_ptr<Dataset> noisy_data(std::set<std::int64_t> loud) {
  const auto samples = tiny_data(480);
  return sample_dataset(samples->size(), [samples, loud = std::move(loud)](std::int64_t id, std::uint64_t) {
    const Batch row = samples->get(std::vector{id}, {});
    return Batch{.input = row.input[0],
                 .target = row.target[0],
                 .fields = {{"noise", at::full({3}, loud.contains(id) ? 1000.0 : 0.5, at::kFloat)}}};
  });
}

/// For noisy_data(): step i has the samples from i * global_batch_size on.
TrainConfig input_config(SpikePolicy policy) {
  TrainConfig config = spiking_config(policy);
  config.spike.inputs = true;
  config.sampler.shuffle = false;
  return config;
}

/// One sample of 480 has a number that is not finite in its input.
std::shared_ptr<Dataset> broken_data(std::int64_t id, double value) {
  std::vector<std::int64_t> ids(480);
  std::iota(ids.begin(), ids.end(), 0);
  const Batch all = tiny_data(std::ssize(ids))->get(ids, {});
  all.input[id][2].fill_(value);
  return tensor_dataset(all.input, all.target);
}

/// Parameters and optimizer state at the end of a run.
NamedTensors state_after(int ranks, const TrainConfig& config,
                         const std::function<std::unique_ptr<Task>(const World&)>& make,
                         const std::shared_ptr<Dataset>& samples = tiny_data(60)) {
  NamedTensors state;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    const auto task = make(world);
    DataLoader data(samples, plan.loader, world);
    Trainer trainer(plan, world);
    trainer.on(Stage::fit_end, [&](const StageContext& at) {
      const NamedTensors optimizer = at.strategy->optimizer_state();  // collective if it is sharded
      if (world.is_main()) {
        state = copies(module_tensors(at.module));
        std::ranges::move(copies(optimizer), std::back_inserter(state));
      }
    });
    trainer.fit(*task, data);
  });
  return state;
}

/// Leaves out the optimizer in chosen steps, with everything else as usual.
class PausedTask final : public TinyTask {
 public:
  PausedTask(std::set<std::int64_t> pauses, OptimizerSpec optimizer)
      : TinyTask(std::move(optimizer)), pauses_(std::move(pauses)) {}
  void optimize(Step& step) override {
    if (!pauses_.contains(step.number())) {
      TinyTask::optimize(step);
    }
  }

 private:
  std::set<std::int64_t> pauses_;
};

TEST(SpikeSkip, ChangesNeitherParametersNorOptimizer) {
  for (const OptimizerFactory& optimizer :
       {adamw({.lr = 0.05}), sgd({.lr = 0.05, .momentum = 0.9}), lion({.lr = 0.01})}) {
    for (const int ranks : {1, 2, 4}) {
      for (const bool shard : {false, true}) {
        if (shard && ranks == 1) {
          continue;
        }
        TrainConfig config = spiking_config(SpikePolicy::skip);
        config.accumulation = ranks == 1 ? 2 : 1;
        config.dist.shard_optimizer = shard;
        CapturedStderr captured;
        const NamedTensors skipped = state_after(ranks, config, [&](const World&) {
          return std::make_unique<SteepTask>(std::set<std::int64_t>{27}, optimizer);
        });
        EXPECT_THAT(captured.text(), HasSubstr("the gradient norm of step 27 is"));
        config.spike.z_score = 0;
        const NamedTensors expected = state_after(ranks, config, [&](const World&) {
          return std::make_unique<PausedTask>(std::set<std::int64_t>{27}, optimizer);
        });
        EXPECT_TRUE(are_equal(skipped, expected)) << ranks << " ranks, sharded " << shard;
        const NamedTensors control = state_after(ranks, config, [&](const World&) {
          return std::make_unique<PausedTask>(std::set<std::int64_t>{}, optimizer);
        });
        EXPECT_FALSE(are_equal(skipped, control)) << "the control";
      }
    }
  }
}

TEST(SpikeSkip, WritesAnEventWithStepAndSamples) {
  const TempDir dir;
  TrainConfig config = spiking_config(SpikePolicy::skip);
  config.run_dir = (dir.path() / "run").string();
  config.report.jsonl = true;
  CapturedStderr captured;
  state_after(2, config, [](const World&) { return std::make_unique<SteepTask>(std::set<std::int64_t>{23, 24}); });
  EXPECT_THAT(captured.text(), HasSubstr("the step changed nothing, nor did 1 step after it since the last report"));
  std::vector<std::int64_t> steps;
  for (const auto& event : events_of(dir.path() / "run", "spike")) {
    steps.push_back(event["step"].get<std::int64_t>());
    EXPECT_EQ(event["metric"], "grad_norm");
    EXPECT_EQ(event["skipped"], true);
    std::istringstream words(event["samples"].get<std::string>());
    EXPECT_EQ(std::distance(std::istream_iterator<std::int64_t>(words), {}), 12) << "of both ranks";
  }
  EXPECT_THAT(steps, testing::ElementsAre(23, 24));
}

/// Adds to the loss of chosen steps on one rank, or makes it NaN; its gradients stay ordinary.
class LoudTask : public TinyTask {
 public:
  struct Options {
    std::set<std::int64_t> steps{27};
    double added = 100;
    bool counts = false;
    OptimizerFactory optimizer = adamw({.lr = 0.05});
  };
  LoudTask(const World& world, Options options)
      : TinyTask(options.optimizer), options_(std::move(options)), is_loud_(world.rank() == world.size() / 2) {}
  void optimize(Step& step) override {
    added_ = is_loud_ && options_.steps.contains(step.number()) ? options_.added : 0;
    TinyTask::optimize(step);
  }
  StepOutput training_step(const Batch& batch) override {
    StepOutput out = TinyTask::training_step(batch);
    out.loss = out.loss + added_;
    if (options_.counts) {
      out.count = at::scalar_tensor(3.0 * static_cast<double>(batch.samples), at::kFloat);
    }
    return out;
  }

 private:
  Options options_;
  bool is_loud_;
  double added_ = 0;
};

/// Two optimizers, each for one parameter. In step `step`, one of them has steep gradients, a loss to which something
/// is added, or no update. The second one has its first update in step `second_from`.
class TwoPartsTask final : public Task {
 public:
  struct Options {
    std::size_t which = 1;
    double steep = 1;
    double added = 0;
    bool pauses = false;
    std::int64_t step = 27;
    std::int64_t second_from = 0;
  };
  explicit TwoPartsTask(const Options& options) : options_(options) {
    const at::NoGradGuard no_grad;
    a_->weight.fill_(0.1);
    b_->weight.fill_(0.2);
    net_->push_back(a_);
    net_->push_back(b_);
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec first = adamw({.lr = 0.02});
    first.module = a_.get();
    OptimizerSpec second = sgd({.lr = 0.02, .momentum = 0.9});
    second.module = b_.get();
    return {first, second};
  }
  void optimize(Step& step) override {
    for (std::size_t i = 0; i < (step.number() < options_.second_from ? 1U : 2U); ++i) {
      OptimizerStep& optimizer = step.optimizer(i);
      optimizer.zero_grad();
      const Options now = step.number() == options_.step && i == options_.which ? options_ : Options{};
      for (const Batch& batch : step.batches()) {
        const StepOutput out = optimizer.forward(batch, [&](const Batch& b) -> StepOutput {
          const at::Tensor loss = at::mse_loss((i == 0 ? a_ : b_)(b.input), b.target);
          loss.register_hook([&now](const at::Tensor& gradient) { return gradient * now.steep; });
          return loss + now.added;
        });
        optimizer.backward(out);
        if (i == 0) {
          step.add(out);
        }
      }
      if (!now.pauses) {
        optimizer.update();
      }
    }
  }

 private:
  Options options_;
  torch::nn::Linear a_{torch::nn::LinearOptions(4, 1).bias(false)};
  torch::nn::Linear b_{torch::nn::LinearOptions(4, 1).bias(false)};
  torch::nn::Sequential net_{};
};

TEST(SpikeSkip, LooksAtEachOptimizerAlone) {
  for (const int ranks : {1, 2}) {
    for (const std::size_t which : {0U, 1U}) {
      TrainConfig config = spiking_config(SpikePolicy::skip);
      const auto run = [&](const TwoPartsTask::Options& options) {
        const CapturedStderr silent;
        NamedTensors state =
            state_after(ranks, config, [&](const World&) { return std::make_unique<TwoPartsTask>(options); });
        return state;
      };
      const NamedTensors steep = run({.which = which, .steep = 1e3});
      const NamedTensors loud = run({.which = which, .added = 100});
      config.spike.z_score = 0;
      const NamedTensors expected = run({.which = which, .pauses = true});
      EXPECT_TRUE(are_equal(steep, expected)) << ranks << " ranks, optimizer " << which;
      EXPECT_TRUE(are_equal(loud, expected)) << ranks << " ranks, optimizer " << which;
      EXPECT_FALSE(are_equal(steep, run({}))) << "the control";
    }
  }
}

/// What this rank did about an anomaly, in words. Reads weights and results of the steps only, and calls no collective.
class ActionRecorder final : public Callback {
 public:
  std::string name() const override { return "action_recorder"; }
  std::uint32_t stages() const override { return Stage::step_start | Stage::step_end | Stage::exception; }
  void on(const StageContext& at) override {
    const std::string step = std::to_string(at.state.step);
    if (at.stage == Stage::exception) {
      actions.push_back("failure after step " + step);
    } else if (at.stage == Stage::step_end) {
      for (const at::Tensor& left_out : {at.step.skipped, at.step.spike}) {
        if (left_out.defined() && left_out.item<double>() > 0) {
          actions.push_back("skips step " + step);
        }
      }
      if (lr_ != 0 && at.step.lr != lr_) {
        actions.push_back("another rate in step " + step);
      }
      lr_ = at.step.lr;
    } else {
      std::vector<at::Tensor> now;
      for (const at::Tensor& parameter : at.module.parameters()) {
        now.push_back(parameter.detach().clone());
      }
      for (const auto& [number, then] : weights_) {
        if (std::ranges::equal(now, then, [](const auto& a, const auto& b) { return at::equal(a, b); })) {
          actions.push_back("back from step " + step + " to " + std::to_string(number));
        }
      }
      weights_[at.state.step] = std::move(now);
    }
  }

  std::vector<std::string> actions{};

 private:
  double lr_ = 0;
  std::map<std::int64_t, std::vector<at::Tensor>> weights_{};  // before each step
};

/// Loads all checkpoints of a run, and the best one. Returns the step of the newest with finite parameters.
std::int64_t newest_good_checkpoint(const std::filesystem::path& run) {
  World world = World::single(c10::kCPU);
  const auto is_good = [&](const std::filesystem::path& checkpoint) {
    const CheckpointContents contents = load_checkpoint(checkpoint, world);
    const bool is_finite = std::ranges::all_of(contents.tensors.at("model"), [](const auto& entry) {
      return entry.second.isfinite().all().template item<bool>();
    });
    EXPECT_EQ(is_finite, contents.values.at(kParametersFinite) == "true") << checkpoint;
    return is_finite;
  };
  EXPECT_TRUE(is_good(run / "checkpoints" / "best"));
  const CheckpointDir kept(real_file_system(), run / "checkpoints");
  std::int64_t newest = 0;
  for (const std::int64_t step : kept.steps()) {
    newest = is_good(kept.path(step)) ? step : newest;
  }
  return newest;
}

class AnomaliesOnRanks : public testing::TestWithParam<int> {};

// One rank alone has the anomaly, in step 27, whose number after it is 28; a report follows step 30, and saves the
// steps 24 and 32. Two checkpoints are kept, the best one, and the newest with finite parameters.
TEST_P(AnomaliesOnRanks, HaveTheSameConsequenceOnAllWithAccumulationAndTwoOptimizers) {
  const int ranks = GetParam();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  enum class Where { loss, gradient, inputs };  // the gradient alone, or one number of the inputs
  struct Case {
    NonFinitePolicy non_finite = NonFinitePolicy::stop;
    std::optional<SpikePolicy> spike{};
    std::size_t optimizer = 0;  // that of the reported loss is the first
    Where where = Where::loss;
    double value = kNan;  // without a spike
    DataConfig data{};
    std::vector<std::string> actions{};
    std::int64_t good_checkpoint = 33;  // the newest; the run has 33 steps
  };
  const std::vector<std::string> nothing;
  const std::vector<std::string> failure{"failure after step 30"};
  const std::vector<std::string> skip{"skips step 28"};
  const std::vector<std::string> skip_both{"skips step 28", "back from step 28 to 27"};  // no weight changes
  const std::vector<std::string> back{"back from step 30 to 25"};
  const std::vector<Case> cases{
      {.non_finite = NonFinitePolicy::stop, .actions = failure, .good_checkpoint = 24},
      {.non_finite = NonFinitePolicy::warn, .actions = nothing},
      {.non_finite = NonFinitePolicy::skip, .actions = skip},
      {.non_finite = NonFinitePolicy::skip, .optimizer = 1, .actions = skip},
      {.non_finite = NonFinitePolicy::rollback, .actions = back},
      {.spike = SpikePolicy::stop, .actions = failure, .good_checkpoint = 24},
      {.spike = SpikePolicy::warn, .actions = nothing},
      {.spike = SpikePolicy::skip, .actions = skip},
      {.spike = SpikePolicy::skip, .optimizer = 1, .actions = skip},
      {.spike = SpikePolicy::lower_lr, .actions = {"another rate in step 31"}},
      {.spike = SpikePolicy::rollback, .actions = back},
      {.spike = SpikePolicy::stop, .optimizer = 1, .where = Where::gradient, .actions = failure, .good_checkpoint = 24},
      {.spike = SpikePolicy::warn, .optimizer = 1, .where = Where::gradient, .actions = nothing},
      {.spike = SpikePolicy::skip, .where = Where::gradient, .actions = skip},
      {.spike = SpikePolicy::skip, .optimizer = 1, .where = Where::gradient, .actions = skip},
      {.spike = SpikePolicy::lower_lr,
       .optimizer = 1,
       .where = Where::gradient,
       .actions = {"another rate in step 31"}},
      {.spike = SpikePolicy::rollback, .optimizer = 1, .where = Where::gradient, .actions = back},
      {.spike = SpikePolicy::rollback, .where = Where::gradient, .actions = back},
      {.spike = SpikePolicy::stop, .where = Where::inputs, .actions = failure, .good_checkpoint = 24},
      {.spike = SpikePolicy::warn, .where = Where::inputs, .actions = nothing},
      {.spike = SpikePolicy::skip, .where = Where::inputs, .actions = skip_both},
      {.spike = SpikePolicy::lower_lr, .where = Where::inputs, .actions = {"another rate in step 31"}},
      {.spike = SpikePolicy::rollback, .where = Where::inputs, .actions = back},
      {.non_finite = NonFinitePolicy::stop, .value = kInfinity, .actions = failure, .good_checkpoint = 24},
      {.non_finite = NonFinitePolicy::warn, .value = -kInfinity, .actions = nothing},
      {.non_finite = NonFinitePolicy::skip, .value = kInfinity, .actions = skip},
      {.non_finite = NonFinitePolicy::rollback, .value = -kInfinity, .actions = back},
      {.non_finite = NonFinitePolicy::stop, .where = Where::gradient, .actions = failure, .good_checkpoint = 24},
      {.non_finite = NonFinitePolicy::warn, .where = Where::gradient, .actions = nothing, .good_checkpoint = 24},
      {.non_finite = NonFinitePolicy::skip, .where = Where::gradient, .actions = skip},
      {.non_finite = NonFinitePolicy::skip,
       .optimizer = 1,
       .where = Where::gradient,
       .value = kInfinity,
       .actions = skip},
      {.non_finite = NonFinitePolicy::rollback, .where = Where::gradient, .value = kInfinity, .actions = back},
      {.non_finite = NonFinitePolicy::stop, .where = Where::inputs, .actions = failure, .good_checkpoint = 24},
      {.non_finite = NonFinitePolicy::warn, .where = Where::inputs, .actions = nothing, .good_checkpoint = 24},
      {.non_finite = NonFinitePolicy::skip, .where = Where::inputs, .actions = skip_both},
      {.non_finite = NonFinitePolicy::rollback, .where = Where::inputs, .value = kInfinity, .actions = back},
      {.where = Where::inputs,
       .data = {.check_finite = true},
       .actions = {"failure after step 27"},
       .good_checkpoint = 24},
      {.where = Where::inputs,
       .value = kInfinity,
       .data = {.max_bad_samples = 1, .check_finite = true},
       .actions = nothing},
  };
  const CapturedStderr silent;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const TempDir dir;
    const SpikePolicy policy = c.spike.value_or(SpikePolicy::warn);
    TrainConfig config = c.where == Where::inputs ? input_config(policy) : spiking_config(policy);
    config.global_batch_size = 8;
    config.accumulation = 2;
    config.max_steps = 33;
    config.optim.non_finite = c.non_finite;
    config.data = c.data;
    config.checkpoint = {.enabled = true, .every_epochs = 0, .every_steps = 8, .monitor = "loss"};
    config.run_dir = (dir.path() / "run").string();
    if (!c.spike) {
      config.spike = {};
    } else if (c.where == Where::gradient) {
      config.optim.max_grad_norm = 10;
    }
    constexpr std::int64_t kSample = 27 * 8 + 5;
    std::shared_ptr<Dataset> samples = tiny_data(60);
    if (c.where == Where::inputs) {
      samples = c.spike ? noisy_data({kSample}) : broken_data(kSample, c.value);
    }
    std::vector<std::vector<std::string>> actions(static_cast<std::size_t>(ranks));
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, config);
      TwoPartsTask::Options options{.which = c.optimizer};
      if (world.rank() == ranks / 2 && c.where == Where::loss) {
        options.added = c.spike ? 1000 : c.value;
      } else if (world.rank() == ranks / 2 && c.where == Where::gradient) {
        options.steep = c.spike ? 1e4 : c.value;
      }
      TwoPartsTask task(options);
      DataLoader data(samples, plan.loader, world);
      const auto recorder = std::make_shared<ActionRecorder>();
      Trainer trainer(plan, world);
      trainer.add(recorder);
      message_of([&] { trainer.fit(task, data); });
      actions[static_cast<std::size_t>(world.rank())] = recorder->actions;
    });
    EXPECT_THAT(actions, testing::Each(c.actions)) << "case " << i << " on " << ranks << " ranks";
    // A failure of all ranks between two steps is saved, and one rank alone is all of them.
    const bool is_saved_after_failure = c.data.check_finite && c.data.max_bad_samples == 0 && ranks == 1;
    EXPECT_EQ(newest_good_checkpoint(dir.path() / "run"), is_saved_after_failure ? 27 : c.good_checkpoint)
        << "case " << i << " on " << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AnomaliesOnRanks, testing::Values(1, 2, 4));

/// Leaves out the update of chosen steps; everything else is that of LoudTask.
class QuietTask final : public LoudTask {
 public:
  QuietTask(const World& world, Options options, std::set<std::int64_t> pauses)
      : LoudTask(world, std::move(options)), pauses_(std::move(pauses)) {}
  void optimize(Step& step) override {
    if (!pauses_.contains(step.number())) {
      LoudTask::optimize(step);
    }
  }

 private:
  std::set<std::int64_t> pauses_;
};

/// A run with this task ends like one that leaves out the update of step 27, and not like one without.
void expect_left_out(int ranks, TrainConfig config, const LoudTask::Options& options, std::string_view warning) {
  CapturedStderr captured;
  const NamedTensors skipped =
      state_after(ranks, config, [&](const World& world) { return std::make_unique<LoudTask>(world, options); });
  EXPECT_THAT(captured.text(), HasSubstr(warning));
  config.spike.z_score = 0;
  LoudTask::Options quiet = options;
  quiet.added = 0;
  const auto without = [&](const std::set<std::int64_t>& pauses) {
    return state_after(ranks, config,
                       [&](const World& world) { return std::make_unique<QuietTask>(world, quiet, pauses); });
  };
  EXPECT_TRUE(are_equal(skipped, without({27}))) << ranks << " ranks";
  EXPECT_FALSE(are_equal(skipped, without({}))) << "the control";
}

TEST(SpikeSkip, LooksAtTheLossOfAllRanksBeforeTheUpdate) {
  for (const OptimizerFactory& optimizer : {adamw({.lr = 0.05}), lion({.lr = 0.01})}) {
    for (const int ranks : {1, 2, 4}) {
      for (const bool shard : {false, true}) {
        if (shard && ranks == 1) {
          continue;
        }
        TrainConfig config = spiking_config(SpikePolicy::skip);
        config.accumulation = ranks == 1 ? 2 : 1;
        config.dist.shard_optimizer = shard;
        expect_left_out(ranks, config, {.optimizer = optimizer}, "the loss of step 27 is");
      }
    }
  }
}

TEST(SpikeSkip, WeighsLossesByCounts) {
  for (const int ranks : {1, 2, 4}) {
    expect_left_out(ranks, spiking_config(SpikePolicy::skip), {.counts = true}, "the loss of step 27 is");
  }
}

TEST(SpikeSkip, LooksAtTheLossIfRanksHaveNoSamples) {
  TrainConfig config = spiking_config(SpikePolicy::skip);
  config.global_batch_size = 3;  // rank 2 has the last one, rank 3 none
  expect_left_out(4, config, {}, "the loss of step 27 is");
}

TEST(SpikeSkip, SeesTheSameLossWithOtherGradientsBetweenRanks) {
  for (const GradCompression compression : {GradCompression::bf16, GradCompression::fp32_stochastic}) {
    TrainConfig config = spiking_config(SpikePolicy::skip);
    config.dist.compression = compression;
    expect_left_out(2, config, {}, "the loss of step 27 is");
  }
}

TEST(SpikeSkip, NamesTheLossInItsEvent) {
  const TempDir dir;
  TrainConfig config = spiking_config(SpikePolicy::skip);
  config.run_dir = (dir.path() / "run").string();
  config.report.jsonl = true;
  const CapturedStderr silent;
  state_after(3, config, [](const World& world) { return std::make_unique<LoudTask>(world, LoudTask::Options{}); });
  const auto events = events_of(dir.path() / "run", "spike");
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0]["step"], 27);
  EXPECT_EQ(events[0]["metric"], "loss");
  EXPECT_EQ(events[0]["skipped"], true);
  EXPECT_EQ(events[0]["rank"], 1);
  EXPECT_NEAR(events[0]["value"].get<double>(), 100.0 / 3, 5) << "the mean over the ranks, as it is reported";
}

TEST(SpikeInputs, AreLeftOutLikeAPausedStep) {
  struct Case {
    int ranks = 1;
    int accumulation = 1;
    bool shard = false;
    std::int64_t batch = 12;
    bool counts = false;
  };
  for (const Case& c : {Case{}, Case{.accumulation = 3}, Case{.ranks = 2}, Case{.ranks = 2, .accumulation = 2},
                        Case{.ranks = 2, .shard = true}, Case{.ranks = 4}, Case{.ranks = 4, .counts = true},
                        Case{.ranks = 4, .shard = true, .batch = 3}}) {  // the last rank of it has no samples
    TrainConfig config = input_config(SpikePolicy::skip);
    config.global_batch_size = c.batch;
    config.accumulation = c.accumulation;
    config.dist.shard_optimizer = c.shard;
    const auto samples = noisy_data({27 * c.batch + 1});
    const LoudTask::Options options{.added = 0, .counts = c.counts};
    CapturedStderr captured;
    const NamedTensors skipped = state_after(
        c.ranks, config, [&](const World& world) { return std::make_unique<LoudTask>(world, options); }, samples);
    EXPECT_THAT(captured.text(), HasSubstr("the root mean square of the inputs of step 27 is"));
    config.spike.z_score = 0;
    const auto without = [&](const std::set<std::int64_t>& pauses) {
      return state_after(
          c.ranks, config, [&](const World& world) { return std::make_unique<QuietTask>(world, options, pauses); },
          samples);
    };
    EXPECT_TRUE(are_equal(skipped, without({27}))) << c.ranks << " ranks, accumulation " << c.accumulation;
    EXPECT_FALSE(are_equal(skipped, without({}))) << "the control";
  }
}

TEST(SpikeInputs, AreOneEventWithTheSameValueOnAnyNumberOfRanks) {
  std::vector<std::int64_t> ids(12);
  std::iota(ids.begin(), ids.end(), 27 * 12);
  const double squares = tiny_data(480)->get(ids, {}).input.to(at::kDouble).square().sum().item<double>();
  for (const SpikePolicy policy : {SpikePolicy::warn, SpikePolicy::skip}) {
    for (const int ranks : {1, 2, 3}) {
      const TempDir dir;
      TrainConfig config = input_config(policy);
      config.accumulation = 2;
      config.run_dir = (dir.path() / "run").string();
      config.report.jsonl = true;
      const CapturedStderr silent;
      state_after(
          ranks, config, [](const World&) { return std::make_unique<TwoPartsTask>(TwoPartsTask::Options{}); },
          noisy_data({27 * 12 + 11}));
      const auto events = events_of(dir.path() / "run", "spike");
      ASSERT_EQ(events.size(), 1U) << ranks << " ranks; both optimizers see the same inputs";
      EXPECT_EQ(events[0]["step"], 27);
      EXPECT_EQ(events[0]["metric"], "inputs");
      EXPECT_EQ(events[0]["skipped"], policy == SpikePolicy::skip);
      EXPECT_THAT(events[0]["samples"].get<std::string>(), HasSubstr("335"));
      const double expected = std::sqrt((squares + 3e6 + 11 * 3 * 0.25) / (12 * 7));
      EXPECT_NEAR(events[0]["value"].get<double>(), expected, 1e-5 * expected) << ranks << " ranks";
    }
  }
}

TEST(SpikeInputs, AreLookedAtOnlyIfAskedForAndChangeNothing) {
  const auto run = [](bool inputs) {
    TrainConfig config = input_config(SpikePolicy::warn);
    config.spike.inputs = inputs;
    NamedTensors weights;
    thread_world(3, [&](World& world) {
      const Plan plan = plan_for(3, config);
      TinyTask task(adamw({.lr = 0.05}));
      DataLoader data(noisy_data({27 * 12 + 1}), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::step_end,
                 [&](const StageContext& at) { EXPECT_EQ(at.step.inputs.defined(), inputs) << at.state.step; });
      trainer.fit(task, data);
      if (world.is_main()) {
        weights = copies(module_tensors(task.module()));
      }
    });
    return weights;
  };
  CapturedStderr captured;
  const NamedTensors without = run(false);
  EXPECT_THAT(captured.text(), testing::Not(HasSubstr("standard deviations")));
  CapturedStderr again;
  const NamedTensors with = run(true);
  EXPECT_THAT(again.text(), HasSubstr("the root mean square of the inputs of step 27 is"));
  EXPECT_TRUE(are_equal(with, without));
}

/// The steps with a record that has this flag.
std::vector<std::int64_t> marked(const std::filesystem::path& run, bool StepRecord::*flag) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : read_run_records(real_file_system(), run).ranks.at(1).entries) {
    if (entry.record.*flag) {
      steps.push_back(entry.record.step);
    }
  }
  return steps;
}

/// The numbers of an event's samples, in order.
std::vector<std::int64_t> samples_of(const nlohmann::json& event) {
  std::istringstream words(event["samples"].get<std::string>());
  std::vector<std::int64_t> ids{std::istream_iterator<std::int64_t>(words), {}};
  std::ranges::sort(ids);
  return ids;
}

/// The samples of these steps, in order.
std::vector<std::int64_t> samples_of_steps(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>((last - first + 1) * 12));
  std::iota(ids.begin(), ids.end(), first * 12);
  return ids;
}

/// Without shuffling: step i has the samples from 12 i on.
TrainConfig told_config(SpikePolicy policy, const std::filesystem::path& run) {
  TrainConfig config = spiking_config(policy);
  config.sampler.shuffle = false;
  config.run_dir = run.string();
  config.report.jsonl = true;
  return config;
}

TEST(Anomalies, AreEventsWithStepRankAndSamples) {
  const CapturedStderr silent;
  for (const int ranks : {1, 3}) {
    const int loud = ranks / 2;
    const TempDir dir;
    const auto run = [&](const std::string& name, SpikePolicy policy, NonFinitePolicy non_finite, double added) {
      TrainConfig config = told_config(policy, dir.path() / name);
      config.optim.non_finite = non_finite;
      message_of([&] {
        state_after(
            ranks, config,
            [&](const World& world) { return std::make_unique<LoudTask>(world, LoudTask::Options{.added = added}); },
            tiny_data(480));
      });
      return dir.path() / name;
    };
    for (const NonFinitePolicy policy : {NonFinitePolicy::warn, NonFinitePolicy::rollback, NonFinitePolicy::stop}) {
      const auto of = run(std::to_string(static_cast<int>(policy)), SpikePolicy::warn, policy, std::nan(""));
      const auto found = events_of(of, "non_finite");
      ASSERT_EQ(found.size(), 1U);
      EXPECT_EQ(found[0]["step"], 30);
      EXPECT_EQ(found[0]["loss_step"], 27);
      EXPECT_EQ(found[0]["rank"], loud);
      EXPECT_EQ(found[0]["samples"],
                ranks == 1 ? "324, 325, 326, 327, 328, 329, 330, 331 and 4 more" : "328, 329, 330, 331");
      const auto back = events_of(of, "rollback");
      ASSERT_EQ(back.size(), policy == NonFinitePolicy::rollback ? 1U : 0U);
      for (const auto& event : back) {
        EXPECT_EQ(event["step"], 30);
        EXPECT_EQ(event["to"], 25);
        EXPECT_EQ(event["rank"], loud);
        EXPECT_EQ(samples_of(event), samples_of_steps(25, 29));
      }
    }
    for (const SpikePolicy policy : {SpikePolicy::lower_lr, SpikePolicy::rollback}) {
      const bool lowers = policy == SpikePolicy::lower_lr;
      const auto of = run(lowers ? "lower" : "back", policy, NonFinitePolicy::stop, 100);
      const auto found = events_of(of, lowers ? "lower_lr" : "rollback");
      ASSERT_EQ(found.size(), 1U);
      EXPECT_EQ(found[0]["step"], 30);
      EXPECT_EQ(found[0].contains("rank"), ranks > 1);
      EXPECT_TRUE(ranks == 1 || found[0]["rank"] == loud);
      EXPECT_EQ(samples_of(found[0]), lowers ? samples_of_steps(27, 27) : samples_of_steps(25, 29));
      EXPECT_TRUE(!lowers || found[0]["spike_step"] == 27);
    }
  }
}

TEST(Anomalies, OfARateThatIsLoweredAfterAResumeAreAnEventWithTheSpike) {
  const CapturedStderr silent;
  const TempDir dir;
  for (const std::int64_t end : {28, 40}) {
    TrainConfig config = told_config(SpikePolicy::lower_lr, dir.path() / "run");
    config.checkpoint.enabled = true;
    config.max_steps = end;
    state_after(
        3, config, [](const World& world) { return std::make_unique<LoudTask>(world, LoudTask::Options{}); },
        tiny_data(480));
    EXPECT_EQ(events_of(dir.path() / "run", "lower_lr").size(), end == 28 ? 0U : 1U);
  }
  const auto event = events_of(dir.path() / "run", "lower_lr").at(0);
  EXPECT_EQ(event["step"], 30);
  EXPECT_EQ(event["spike_step"], 27);
  EXPECT_EQ(event["rank"], 1);
  EXPECT_EQ(samples_of(event), samples_of_steps(27, 27));
}

// The task reports the loss of its first optimizer only.
TEST(Anomalies, OfOneOfSeveralOptimizersNameNoRank) {
  const CapturedStderr silent;
  for (const std::int64_t second_from : {0, 35}) {
    const TempDir dir;
    state_after(2, told_config(SpikePolicy::skip, dir.path() / "run"), [&](const World& world) {
      return std::make_unique<TwoPartsTask>(
          TwoPartsTask::Options{.which = 0, .added = world.is_main() ? 0.0 : 100.0, .second_from = second_from});
    });
    const auto events = events_of(dir.path() / "run", "spike");
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0]["step"], 27);
    EXPECT_EQ(events[0]["metric"], "loss");
    EXPECT_FALSE(events[0].contains("rank")) << "second optimizer from step " << second_from;
  }
}

TEST(Anomalies, OfAGradientAreAnEventWithTheSamplesOfAllRanks) {
  const CapturedStderr silent;
  for (const NonFinitePolicy policy : {NonFinitePolicy::skip, NonFinitePolicy::warn}) {
    const TempDir dir;
    TrainConfig config = told_config(SpikePolicy::warn, dir.path() / "run");
    config.optim.non_finite = policy;
    config.optim.max_grad_norm = 10;
    config.max_steps = 28;  // before the next loss
    state_after(
        3, config,
        [](const World&) { return std::make_unique<TwoPartsTask>(TwoPartsTask::Options{.steep = std::nan("")}); },
        tiny_data(480));
    const bool skips = policy == NonFinitePolicy::skip;
    const auto events = events_of(dir.path() / "run", skips ? "skipped" : "non_finite");
    ASSERT_EQ(events.size(), 1U);
    EXPECT_FALSE(events[0].contains("rank"));
    EXPECT_EQ(events[0][skips ? "first" : "grad_norm_step"], 27);
    EXPECT_EQ(events[0]["samples"], "324, 325, 326, 327; 328, 329, 330, 331; 332, 333, 334, 335");
  }
}

TEST(Anomalies, OfDataAreAnEventForEachSampleThatIsReplaced) {
  const CapturedStderr silent;
  for (const int ranks : {1, 2, 4}) {
    const TempDir dir;
    TrainConfig config = told_config(SpikePolicy::warn, dir.path() / "run");
    config.data = {.max_bad_samples = 1, .check_finite = true};
    config.max_steps = 70;  // the sample comes again in step 67
    state_after(
        ranks, config, [](const World&) { return std::make_unique<TinyTask>(); },
        broken_data(27 * 12 + 5, std::nan("")));
    const auto events = events_of(dir.path() / "run", "bad_sample");
    ASSERT_EQ(events.size(), 1U) << ranks;
    EXPECT_EQ(events[0]["step"], 27);
    EXPECT_EQ(events[0]["rank"], 5 * ranks / 12);
    EXPECT_EQ(events[0]["sample"], 329);
    EXPECT_EQ(events[0]["replaced_by"], 330);
  }
}

TEST(StepRecorder, MarksUpdatesThatWereLeftOutAndRollbacks) {
  const TempDir dir;
  const auto record = [&](const std::string& name, SpikePolicy policy, const LoudTask::Options& options) {
    TrainConfig config = spiking_config(policy);
    config.run_dir = (dir.path() / name).string();
    config.report.record = 1;
    config.optim.non_finite = NonFinitePolicy::skip;
    const CapturedStderr silent;
    state_after(2, config, [&](const World& world) { return std::make_unique<LoudTask>(world, options); });
    return dir.path() / name;
  };
  // A record is named by the number of steps after it, a step of a task by the number before it.
  const auto skipped = record("spike", SpikePolicy::skip, {});
  EXPECT_THAT(marked(skipped, &StepRecord::left_out), testing::ElementsAre(28));
  EXPECT_THAT(marked(skipped, &StepRecord::rolled_back), testing::IsEmpty());
  EXPECT_THAT(marked(record("nan", SpikePolicy::warn, {.added = std::nan("")}), &StepRecord::left_out),
              testing::ElementsAre(28));
  const auto back = record("rollback", SpikePolicy::rollback, {});
  EXPECT_THAT(marked(back, &StepRecord::left_out), testing::IsEmpty());
  EXPECT_THAT(marked(back, &StepRecord::rolled_back), testing::ElementsAre(31)) << "found at the report of step 30";
  const auto quiet = record("quiet", SpikePolicy::skip, {.added = 0});
  const auto compared =
      compare_records(read_run_records(real_file_system(), quiet), read_run_records(real_file_system(), back));
  ASSERT_TRUE(compared.difference);
  EXPECT_EQ(compared.difference->step, 28) << "its loss";
}

TEST(NonFiniteSkip, LooksAtTheLossBeforeTheUpdate) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool counts : {false, true}) {
      TrainConfig config = spiking_config(SpikePolicy::warn);
      config.optim.non_finite = NonFinitePolicy::skip;
      for (const double bad : {std::nan(""), HUGE_VAL}) {
        expect_left_out(ranks, config, {.added = bad, .counts = counts},
                        "step 27 was skipped since the last report: the loss of step 27 is not finite");
      }
    }
  }
}

TEST(NonFiniteSkip, AlsoDecidesWithAScaledLossAndSpikes) {
  TrainConfig config = spiking_config(SpikePolicy::skip);
  config.precision = Precision::fp16_mixed;
  config.optim.non_finite = NonFinitePolicy::skip;
  const auto weights = [&](const LoudTask::Options& options, const std::set<std::int64_t>& pauses) {
    const CapturedStderr silent;
    NamedTensors state =
        state_after(2, config, [&](const World& world) { return std::make_unique<QuietTask>(world, options, pauses); });
    std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("loss_scaler"); });  // counts steps
    return state;
  };
  const NamedTensors expected = weights({.added = 0}, {27});
  for (const double added : {100.0, std::nan("")}) {
    EXPECT_TRUE(are_equal(weights({.added = added}, {}), expected)) << added;
  }
  EXPECT_FALSE(are_equal(weights({.added = 0}, {}), expected)) << "the control";
}

TEST(NonFiniteSkip, OfTheFirstOfTwoOptimizersIsNoFailure) {
  for (const int ranks : {1, 2}) {
    TrainConfig config = spiking_config(SpikePolicy::warn);
    config.optim.non_finite = NonFinitePolicy::skip;
    CapturedStderr captured;
    const auto run = [&](const TwoPartsTask::Options& options) {
      return state_after(ranks, config, [&](const World&) { return std::make_unique<TwoPartsTask>(options); });
    };
    const NamedTensors skipped = run({.which = 0, .added = std::nan("")});
    EXPECT_THAT(captured.text(), HasSubstr("step 27 was skipped since the last report: "));
    EXPECT_TRUE(are_equal(skipped, run({.which = 0, .pauses = true}))) << ranks << " ranks";
    EXPECT_FALSE(are_equal(skipped, run({}))) << "the control";
  }
}

TEST(SpikeSkip, LeavesNaNToTheOtherSetting) {
  const CapturedStderr silent;
  EXPECT_THAT(message_of([] { weights_after(2, spiking_config(SpikePolicy::skip), {12}, std::nan("")); }),
              HasSubstr("is not finite"));
}

TEST(SpikeSkip, WorksTogetherWithTheSkippingOfNaN) {
  TrainConfig config = spiking_config(SpikePolicy::skip);
  config.optim.non_finite = NonFinitePolicy::skip;
  CapturedStderr captured;
  const NamedTensors found =
      state_after(2, config, [](const World&) { return std::make_unique<SteepTask>(std::set<std::int64_t>{27}); });
  EXPECT_THAT(captured.text(), testing::Not(HasSubstr("was not finite")));
  config.spike.z_score = 0;
  EXPECT_TRUE(are_equal(found, state_after(2, config, [](const World&) {
                          return std::make_unique<PausedTask>(std::set<std::int64_t>{27}, adamw({.lr = 0.05}));
                        })));
}

struct Stop {
  std::int64_t step = 0;
  int ranks_then = 2;
};

/// With an anomaly in step 24, a straight run and one in two parts end the same.
void expect_same_if_resumed(
    const TrainConfig& base, const std::vector<Stop>& stops,
    const std::function<std::unique_ptr<Task>(const World&)>& make =
        [](const World&) {
          return std::make_unique<SteepTask>(std::set<std::int64_t>{24, 31});
        },
    const std::shared_ptr<Dataset>& samples = tiny_data(60)) {
  const auto config = [&](const TempDir& dir, std::int64_t steps) {
    TrainConfig made = base;
    made.optim.max_grad_norm = 10;
    made.checkpoint.enabled = true;
    made.max_steps = steps;
    made.run_dir = (dir.path() / "run").string();
    return made;
  };
  CapturedStderr captured;
  const TempDir whole;
  const NamedTensors straight = state_after(2, config(whole, 40), make, samples);
  EXPECT_THAT(captured.text(), HasSubstr("step 24 "));
  const CapturedStderr silent;
  for (const auto& [step, ranks_then] : stops) {
    const TempDir parts;
    state_after(2, config(parts, step), make, samples);
    const NamedTensors resumed = state_after(ranks_then, config(parts, 40), make, samples);
    ASSERT_EQ(straight.size(), resumed.size());
    if (ranks_then == 2) {
      EXPECT_TRUE(are_equal(straight, resumed)) << "stopped after step " << step;
    } else {
      EXPECT_LT(largest_difference(straight, resumed), 1e-3) << "stopped after step " << step;
    }
  }
}

/// A run with rollbacks has a copy of its reports. The spike of step 24 is found at the second.
const std::vector<Stop> kStopsAtCopies{{20}, {25}, {30}};

/// Before and after spikes in the steps 24 and 31, and once with other ranks.
std::vector<Stop> stops_around_spikes(int other_ranks) {
  return {{7}, {19}, {23}, {24}, {25}, {26}, {31}, {33}, {22, other_ranks}};
}

TEST(SpikeSkip, IsTheSameInARunThatIsResumedAtAnyStep) {
  expect_same_if_resumed(spiking_config(SpikePolicy::skip), stops_around_spikes(4));
}

TEST(SpikeSkip, OfALossIsTheSameInARunThatIsResumedAtAnyStep) {
  const auto make = [](const World& world) {
    return std::make_unique<LoudTask>(world, LoudTask::Options{.steps = {24, 31}, .added = 1000});
  };
  expect_same_if_resumed(spiking_config(SpikePolicy::skip), stops_around_spikes(4), make);
}

TEST(SpikeLowerLr, IsTheSameInARunThatIsResumedAtAnyStep) {
  expect_same_if_resumed(spiking_config(SpikePolicy::lower_lr), stops_around_spikes(1));
}

TEST(SpikeInputs, AreTheSameInARunThatIsResumedAtAnyStep) {
  const auto make = [](const World&) { return std::make_unique<TinyTask>(adamw({.lr = 0.05})); };
  const auto samples = noisy_data({24 * 12 + 3, 31 * 12 + 8});
  for (const SpikePolicy policy : {SpikePolicy::skip, SpikePolicy::lower_lr}) {
    expect_same_if_resumed(input_config(policy), {{7}, {24}, {25}, {22, 4}}, make, samples);
  }
  expect_same_if_resumed(input_config(SpikePolicy::rollback), kStopsAtCopies, make, samples);
}

TEST(Anomalies, OfOneOfTwoOptimizersAreTheSameInAResumedRun) {
  const auto with_step_24 = [](TwoPartsTask::Options options) {
    options.step = 24;
    return [options](const World&) { return std::make_unique<TwoPartsTask>(options); };
  };
  const auto steep = with_step_24({.which = 1, .steep = 1e4});
  for (const SpikePolicy policy : {SpikePolicy::skip, SpikePolicy::lower_lr}) {
    expect_same_if_resumed(spiking_config(policy), {{24}, {25}}, steep);
  }
  expect_same_if_resumed(spiking_config(SpikePolicy::rollback), kStopsAtCopies, steep);
  const auto of_gradients = [](NonFinitePolicy policy) {
    TrainConfig config = spiking_config(SpikePolicy::warn);
    config.spike = {};
    config.optim.non_finite = policy;
    return config;
  };
  const auto nan = with_step_24({.which = 1, .steep = std::nan("")});
  expect_same_if_resumed(of_gradients(NonFinitePolicy::skip), {{24}, {25}}, nan);
  expect_same_if_resumed(of_gradients(NonFinitePolicy::rollback), kStopsAtCopies, nan);
}

TEST(SpikeLowerLr, MultipliesTheRatesAtTheNextReport) {
  TrainConfig config = spiking_config(SpikePolicy::lower_lr);
  config.optim.max_grad_norm = 10;
  config.spike.lr_factor = 0.25;
  config.optim.schedule = LrSchedule("step:every=10,factor=0.5");
  for (const int ranks : {1, 2, 4}) {
    std::map<std::int64_t, double> rates;
    CapturedStderr captured;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, config);
      SteepTask task({27});
      DataLoader data(tiny_data(60), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::step_end, [&](const StageContext& at) {
        if (world.is_main()) {
          rates[at.state.step] = at.step.lr;
        }
      });
      trainer.fit(task, data);
    });
    EXPECT_THAT(captured.text(), HasSubstr("step 30: the learning rate is 0.0031"));
    EXPECT_DOUBLE_EQ(rates[30], 0.05 * 0.25);
    EXPECT_DOUBLE_EQ(rates[31], 0.05 * 0.25 * 0.125);
    EXPECT_DOUBLE_EQ(rates[40], 0.05 * 0.25 * 0.125);
  }
}

TEST(SpikeLowerLr, AlsoMultipliesRatesThatAreZeroAtTheReport) {
  TrainConfig config = spiking_config(SpikePolicy::lower_lr);
  config.optim.max_grad_norm = 10;
  config.spike.lr_factor = 0.25;
  config.optim.schedule = LrSchedule("constant:for=28+constant:factor=0,for=5+constant");
  std::map<std::int64_t, double> rates;
  const CapturedStderr silent;
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config);
  SteepTask task({27});
  DataLoader data(tiny_data(60), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.on(Stage::step_end, [&](const StageContext& at) { rates[at.state.step] = at.step.lr; });
  trainer.fit(task, data);
  EXPECT_EQ(rates[28], 0.05);
  EXPECT_EQ(rates[30], 0);
  EXPECT_DOUBLE_EQ(rates[34], 0.05 * 0.25);
}

TEST(Rollback, PutsTheWeightsOfTheLastReportBack) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool shard : {false, true}) {
      if (shard && ranks == 1) {
        continue;
      }
      TrainConfig config = spiking_config(SpikePolicy::rollback);
      config.dist.shard_optimizer = shard;
      CapturedStderr captured;
      const NamedTensors found = weights_after(ranks, config, {27});
      EXPECT_THAT(captured.text(),
                  HasSubstr("the weights are those of step 25 again; the samples of steps 25 to 29 are left out"));
      // A run whose steps 25 to 29 do not change anything, weights or moments.
      config.spike.z_score = 0;
      NamedTensors expected;
      thread_world(ranks, [&](World& world) {
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
          expected = copies(module_tensors(task.module()));
        }
      });
      EXPECT_EQ(largest_difference(found, expected), 0) << ranks << " ranks" << (shard ? ", sharded" : "");
      EXPECT_GT(largest_difference(found, weights_after(ranks, config, {})), 0) << "the control";
    }
  }
}

// With three ranks, one has no parameter of its own.
TEST(Rollback, KeepsARateThatACallbackWroteBeforeOnAllRanks) {
  for (const bool shard : {false, true}) {
    TrainConfig config = spiking_config(SpikePolicy::rollback);
    config.dist.shard_optimizer = shard;
    const CapturedStderr silent;
    thread_world(3, [&](World& world) {
      const Plan plan = plan_for(3, config);
      SpikingTask task;
      task.bad_steps = {27};
      DataLoader data(tiny_data(60), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::report, [](const StageContext& at) {
        if (at.state.step == 10) {
          auto& options = at.strategy->optimizer().torch_optimizer().param_groups().front().options();
          options.set_lr(options.get_lr() / 2);
        }
      });
      double lr = 0;
      trainer.on(Stage::step_end, [&](const StageContext& at) { lr = at.step.lr; });
      trainer.fit(task, data);
      EXPECT_DOUBLE_EQ(lr, 0.025) << "rank " << world.rank();
    });
  }
}

TEST(Rollback, HelpsAgainstNaN) {
  TrainConfig config = spiking_config(SpikePolicy::warn);
  config.spike.z_score = 0;
  EXPECT_THAT(message_of([&] { weights_after(2, config, {12}, std::nan("")); }), HasSubstr("is not finite"));
  config.optim.non_finite = NonFinitePolicy::rollback;
  for (const auto& [bad, back] : {std::pair{12, 10}, {2, 0}}) {
    CapturedStderr captured;
    const NamedTensors weights = weights_after(2, config, {bad}, std::nan(""));
    EXPECT_THAT(captured.text(), HasSubstr("the weights are those of step " + std::to_string(back) + " again"));
    for (const auto& [name, weight] : weights) {
      EXPECT_TRUE(weight.isfinite().all().item<bool>()) << name;
    }
  }
}

// A report after each step finds the value earlier. The one of step 41 comes after the last report by steps, in a run
// that saves nothing.
TEST(Rollback, IsTheSameWithReportsByTime) {
  for (const bool nan : {false, true}) {
    TrainConfig config = spiking_config(nan ? SpikePolicy::warn : SpikePolicy::rollback);
    config.max_steps = 43;
    if (nan) {
      config.spike.z_score = 0;
      config.optim.non_finite = NonFinitePolicy::rollback;
    }
    const auto weights = [&](double every_s) {
      config.report.every_s = every_s;
      CapturedStderr captured;
      NamedTensors found = weights_after(2, config, {27, 41}, nan ? std::nan("") : 1e8);
      EXPECT_THAT(captured.text(), HasSubstr("the samples of steps 25 to 29 are left out"));
      EXPECT_THAT(captured.text(), HasSubstr("the samples of steps 40 to 42 are left out"));
      return found;
    };
    EXPECT_EQ(largest_difference(weights(/*every_s=*/1e-6), weights(/*every_s=*/0)), 0);
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
  const TempDir dir;
  for (const std::int64_t save : {0, 5}) {  // also at the steps of the reports
    config.checkpoint.enabled = save > 0;
    config.checkpoint.every_steps = save;
    config.run_dir = (dir.path() / "run").string();
    EXPECT_THAT(message_of([&] { weights_after(2, config, all, std::nan("")); }),
                HasSubstr("3 rollbacks to step 10 in a row did not help"));
  }
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
  EXPECT_EQ(largest_difference(straight, resumed), 0);
}

}  // namespace
}  // namespace lockstep
