// NaN and infinity: what is said of them, what ends the run, and what is kept.
#include "trainer/watch/finite_watch.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/trainer/trainer.h>

#include "support/captured_stderr.h"
#include "support/runs.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Spoils something in step `when` on rank `where`.
class Spoiled : public TinyTask {
 public:
  enum class What { loss_alone, gradients, later_gradients };
  Spoiled(World& world, std::int64_t when, int where, What what = What::gradients)
      : mine_(world.rank() == where), when_(when), what_(what) {}
  StepOutput training_step(const Batch& batch) override {
    const auto loss = at::mse_loss(net_(batch.input), batch.target);
    const bool now = mine_ && step_ == when_;
    if (what_ == What::later_gradients) {
      return mine_ && step_ >= when_ ? loss * kNan : loss;
    }
    return now ? (what_ == What::gradients ? loss * kNan : loss + kNan) : loss;
  }
  void optimize(Step& step) override {
    step_ = step.number();
    Task::optimize(step);
  }

 private:
  bool mine_;
  std::int64_t when_;
  What what_;
  std::int64_t step_ = 0;
};

/// 24 samples in steps of 4: 6 steps an epoch, 12 in the run.
TrainConfig config_in(const std::filesystem::path& run) {
  TrainConfig config = in_memory({.max_epochs = 2, .batch_size = 4, .global_batch_size = 4});
  config.run_dir = run.string();
  config.report.every_steps = 0;
  config.report.jsonl = true;
  config.checkpoint = {.enabled = true, .every_epochs = 0, .every_steps = 2};
  return config;
}

using MakeTask = std::function<std::unique_ptr<Task>(World&)>;

/// What fit() threw, "" if nothing; on every rank the same.
std::string train(TrainConfig config, int ranks, const MakeTask& make) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  const Plan plan = plan_for(ranks, config);
  thread_world(ranks, [&](World& world) {
    const auto task = make(world);
    DataLoader data(tiny_data(24), plan.loader, world);
    try {
      Trainer(plan, world).fit(*task, data);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_data) << error.what();
      EXPECT_THAT(error.hint(), HasSubstr("--optim.non_finite warn"));
      EXPECT_EQ(error.hint().find("--data.check_finite") == std::string::npos, config.data.check_finite);
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors.front());
  }
  return errors.front();
}

std::vector<std::string> checkpoints(const std::filesystem::path& run) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
    if (const auto name = entry.path().filename().string(); name.starts_with("step-")) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(NonFiniteLoss, EndsTheRunBeforeItIsSaved) {
  for (const int ranks : {1, 2, 3}) {
    const TempDir dir;
    const int where = ranks - 1;
    const std::string error = train(config_in(dir.path() / "run"), ranks,
                                    [&](World& world) { return std::make_unique<Spoiled>(world, /*when=*/6, where); });
    EXPECT_THAT(error, HasSubstr(fmt::format("the loss of step 6 is not finite on rank {}", where)));
    EXPECT_THAT(error, HasSubstr("the first parameter that is not finite is weight"));
    EXPECT_THAT(checkpoints(dir.path() / "run"), ElementsAre("step-0000000004", "step-0000000006"));
  }
}

TEST(NonFiniteLoss, IsNotBlamedOnDataThatWasLookedAt) {
  const TempDir dir;
  TrainConfig config = config_in(dir.path() / "run");
  config.data.check_finite = true;
  EXPECT_THAT(train(config, 1, [&](World& world) { return std::make_unique<Spoiled>(world, /*when=*/6, /*where=*/0); }),
              HasSubstr("the loss of step 6 is not finite on rank 0"));
}

TEST(NonFiniteLoss, IsFoundAtTheEndOfARunThatNeitherReportsNorSaves) {
  for (const int ranks : {1, 2}) {
    for (const SpikePolicy spikes : {SpikePolicy::warn, SpikePolicy::rollback}) {
      const TempDir dir;
      TrainConfig config = config_in(dir.path() / "run");
      config.checkpoint.enabled = false;
      config.spike = {.z_score = 10, .policy = spikes};
      const std::string error =
          train(config, ranks, [&](World& world) { return std::make_unique<Spoiled>(world, /*when=*/3, /*where=*/0); });
      EXPECT_THAT(error, HasSubstr("the loss of step 3 is not finite on rank 0"));
    }
  }
}

// Losses of fp32 on a CPU are looked at at once, others later.
TEST(FiniteWatch, FindsTheFirstStepAmongLossesOfSeveralTypes) {
  constexpr std::int64_t kSteps = 5;
  World world = World::single(c10::kCPU);
  const torch::nn::Linear net(1, 1);
  for (std::int64_t bad = 0; bad < kSteps; ++bad) {
    FiniteWatch watch;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const at::ScalarType type = step % 2 == 0 ? at::kFloat : at::kDouble;
      watch.add(step, {.loss = at::full({}, step < bad ? 1.0 : kNan, type)}, {});
    }
    const auto found = watch.look(*net, world);
    ASSERT_TRUE(found && found->loss);
    EXPECT_EQ(found->loss->step, bad);
    EXPECT_FALSE(watch.look(*net, world).has_value()) << "a step is told once";
  }
}

TEST(FiniteWatch, KeepsNoLossThatWasLookedAt) {
  const at::Tensor loss = at::ones({});
  FiniteWatch watch;
  watch.add(0, {.loss = loss}, {});
  EXPECT_EQ(loss.use_count(), 1U);
  const at::Tensor later = at::ones({}, at::kDouble);  // the control
  watch.add(1, {.loss = later}, {});
  EXPECT_EQ(later.use_count(), 2U);
}

// Of 300 steps, more than are kept at a time, the first bad one is named.
TEST(NonFiniteLoss, IsFoundInALongRunWithoutReports) {
  const TempDir dir;
  for (const std::int64_t when : {2, 255, 256, 299}) {
    TrainConfig config = config_in(dir.path() / std::to_string(when));
    config.checkpoint.enabled = false;
    config.max_epochs = 50;
    const std::string error = train(config, 1, [&](World& world) {
      return std::make_unique<Spoiled>(world, when, /*where=*/0, Spoiled::What::later_gradients);
    });
    EXPECT_THAT(error, HasSubstr(fmt::format("the loss of step {} is not finite", when)));
  }
}

TEST(NonFiniteLoss, AloneLeavesFiniteParameters) {
  const TempDir dir;
  const std::string error = train(config_in(dir.path() / "run"), 2, [&](World& world) {
    return std::make_unique<Spoiled>(world, /*when=*/5, /*where=*/1, Spoiled::What::loss_alone);
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr("the loss of step 5 is not finite on rank 1"), HasSubstr("all parameters are finite")));
}

TEST(NonFiniteParameter, IsNamed) {
  class Overflowing final : public TinyTask {
   public:
    void optimize(Step& step) override {
      Task::optimize(step);
      if (step.number() == 3) {
        const at::NoGradGuard no_grad;
        net_->bias.fill_(std::numeric_limits<float>::infinity());
      }
    }
  };
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    const std::string error =
        train(config_in(dir.path() / "run"), ranks, [&](World&) { return std::make_unique<Overflowing>(); });
    EXPECT_EQ(error, "the first parameter that is not finite is bias");
    EXPECT_THAT(checkpoints(dir.path() / "run"), ElementsAre("step-0000000002"));
  }
}

// Clipping makes infinity finite, or NaN.
TEST(NonFiniteGradients, AreFoundWithEachPolicyAndClipping) {
  // The root of zero has an infinite derivative, and the loss is finite.
  class Rooted final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      const auto loss = at::mse_loss(net_(batch.input), batch.target);
      return step_ == 2 ? loss + (net_->bias - net_->bias.detach()).sqrt().sum() : loss;
    }
    void optimize(Step& step) override {
      step_ = step.number();
      Task::optimize(step);
    }

   private:
    std::int64_t step_ = 0;
  };
  struct Clipping {
    double norm;
    double value;
    std::string found;
  };
  const std::string of_step = "the gradient norm of step 2 is not finite";
  const std::vector<Clipping> clippings{
      {0, 0, "the first parameter that is not finite is bias"}, {1, 0, of_step}, {0, 0.5, of_step}};
  for (const Clipping& clipping : clippings) {
    const std::vector<std::pair<NonFinitePolicy, std::string>> policies{
        {NonFinitePolicy::stop, clipping.found},
        {NonFinitePolicy::warn, clipping.found},
        {NonFinitePolicy::skip, "step 2 was skipped since the last report: a gradient was not finite"},
        {NonFinitePolicy::rollback, "the weights are those of step 0 again"}};
    for (const auto& [policy, expected] : policies) {
      const TempDir dir;
      TrainConfig config = config_in(dir.path() / "run");
      config.checkpoint.every_steps = 3;
      config.optim.non_finite = policy;
      config.optim.max_grad_norm = clipping.norm;
      config.optim.max_grad_value = clipping.value;
      CapturedStderr captured;
      const std::string error = train(config, 2, [](World&) { return std::make_unique<Rooted>(); });
      EXPECT_EQ(error.empty(), policy != NonFinitePolicy::stop) << error;
      EXPECT_THAT(error + captured.text(), HasSubstr(expected)) << clipping.norm << ", " << clipping.value;
    }
  }
}

// Values that mean something: a metric, a frozen mask, and a micro-batch in which nothing counts.
TEST(NonFiniteValues, ThatAreMeantAreNoFailure) {
  class Meant final : public TinyTask {
   public:
    Meant() {
      const auto mask = net_->register_parameter("mask", at::full({2}, -std::numeric_limits<float>::infinity()));
      mask.set_requires_grad(false);
    }
    StepOutput training_step(const Batch& batch) override {
      StepOutput out(at::mse_loss(net_(batch.input), batch.target),
                     {{"perplexity", at::full({}, std::numeric_limits<float>::infinity())}});
      out.count = at::full({}, batch.ids.front() < 8 ? 0 : batch.samples);
      return out;
    }
  };
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    EXPECT_EQ(train(config_in(dir.path() / "run"), ranks, [](World&) { return std::make_unique<Meant>(); }), "");
  }
}

TEST(NonFinitePolicy, WarnGoesOnAndKeepsTheLastFiniteCheckpoint) {
  for (const int ranks : {1, 2}) {
    for (const bool async : {false, true}) {
      const TempDir dir;
      TrainConfig config = config_in(dir.path() / "run");
      config.optim.non_finite = NonFinitePolicy::warn;
      config.report.every_steps = 1;
      config.checkpoint.async = async;
      CapturedStderr captured;
      EXPECT_EQ(
          train(config, ranks, [&](World& world) { return std::make_unique<Spoiled>(world, /*when=*/4, /*where=*/0); }),
          "");
      EXPECT_THAT(captured.text(), HasSubstr("not finite is weight; --data.check_finite looks for it in the data"));
      EXPECT_THAT(checkpoints(dir.path() / "run"),
                  ElementsAre("step-0000000004", "step-0000000010", "step-0000000012"));
      const auto state = [&](const std::string& step) {
        return read_text(dir.path() / "run/checkpoints" / step / "state.json");
      };
      EXPECT_THAT(state("step-0000000004"), HasSubstr("\"parameters_finite\": \"true\""));
      EXPECT_THAT(state("step-0000000012"), HasSubstr("\"parameters_finite\": \"false\""));
      const std::string events = read_text(dir.path() / "run/events.jsonl");
      EXPECT_THAT(events, HasSubstr("the loss of step 4 is not finite on rank 0"));
      EXPECT_EQ(events.find("non_finite"), events.rfind("non_finite")) << "said once";

      // The run goes on in a process that knows of the checkpoints only what is in them.
      config.max_epochs = 3;
      EXPECT_EQ(train(config, ranks, [&](World&) { return std::make_unique<TinyTask>(); }), "");
      EXPECT_THAT(checkpoints(dir.path() / "run"),
                  ElementsAre("step-0000000004", "step-0000000016", "step-0000000018"));
    }
  }
}

/// The model and the optimizer state.
NamedTensors state_of(const StageContext& at) {
  NamedTensors all = module_tensors(at.module);
  for (auto& entry : at.strategy->optimizer_state()) {
    all.push_back(std::move(entry));
  }
  for (auto& [name, tensor] : all) {
    tensor = tensor.clone();
  }
  return all;
}

TEST(NonFinitePolicy, SkipLeavesModelAndOptimizerAsTheyWereOnAllRanks) {
  const std::vector<std::pair<std::string, OptimizerFactory>> optimizers{
      {"adamw", adamw({.lr = 0.01})}, {"sgd", sgd({.lr = 0.01, .momentum = 0.9})}, {"lion", lion({.lr = 0.01})}};
  for (const int ranks : {1, 2, 4}) {
    for (const auto& [name, factory] : optimizers) {
      for (const bool sharded : {false, true}) {
        if (sharded && ranks == 1) {
          continue;
        }
        const TempDir dir;
        TrainConfig config = config_in(dir.path() / "run");
        config.optim.non_finite = NonFinitePolicy::skip;
        config.optim.max_grad_norm = 1;
        config.dist.shard_optimizer = sharded;
        const Plan plan = plan_for(ranks, config);
        thread_world(ranks, [&](World& world) {
          class Task final : public Spoiled {
           public:
            Task(World& world, OptimizerFactory factory)
                : Spoiled(world, /*when=*/4, world.size() - 1), factory_(std::move(factory)) {}
            std::vector<OptimizerSpec> optimizers() override { return {factory_}; }

           private:
            OptimizerFactory factory_;
          } task(world, factory);
          DataLoader data(tiny_data(24), plan.loader, world);
          std::vector<std::int64_t> unchanged;
          NamedTensors before;
          Trainer(plan, world)
              .on(Stage::step_end,
                  [&](const StageContext& at) {
                    NamedTensors now = state_of(at);
                    if (are_equal(now, before)) {
                      unchanged.push_back(at.state.step);
                    }
                    before = std::move(now);
                  })
              .fit(task, data);
          EXPECT_THAT(unchanged, ElementsAre(5)) << name << ", " << ranks << " ranks, sharded " << sharded;
        });
        EXPECT_THAT(read_text(dir.path() / "run/events.jsonl"),
                    AllOf(HasSubstr("\"skipped\""), HasSubstr("\"steps\":1,\"first\":4,\"last\":4,\"loss_step\":4"),
                          HasSubstr(fmt::format("\"rank\":{},\"samples\":\"", ranks - 1))));
        EXPECT_THAT(checkpoints(dir.path() / "run"), ElementsAre("step-0000000010", "step-0000000012"));
      }
    }
  }
}

TEST(NonFinitePolicy, SkipContinuesTheSameAfterAResume) {
  const auto train_to = [](const std::filesystem::path& run, const std::vector<std::int64_t>& stops) {
    NamedTensors last;
    for (const std::int64_t stop : stops) {
      TrainConfig config = config_in(run);
      config.optim.non_finite = NonFinitePolicy::skip;
      config.max_steps = stop;
      const Plan plan = plan_for(2, config);
      thread_world(2, [&](World& world) {
        Spoiled task(world, /*when=*/4, /*where=*/1);
        DataLoader data(tiny_data(24), plan.loader, world);
        Trainer(plan, world)
            .on(Stage::step_end,
                [&](const StageContext& at) {
                  if (world.is_main()) {
                    last = state_of(at);
                  }
                })
            .fit(task, data);
      });
    }
    return last;
  };
  const TempDir dir;
  const NamedTensors straight = train_to(dir.path() / "straight", {12});
  for (const std::int64_t stop : {4, 5, 6}) {
    EXPECT_TRUE(are_equal(train_to(dir.path() / std::to_string(stop), {stop, 12}), straight)) << stop;
  }
}

TEST(NonFinitePolicy, SkipEndsARunInWhichNoStepIsGood) {
  const TempDir dir;
  TrainConfig config = config_in(dir.path() / "run");
  config.optim.non_finite = NonFinitePolicy::skip;
  config.max_epochs = 20;
  EXPECT_THAT(train(config, 2,
                    [](World& world) {
                      return std::make_unique<Spoiled>(world, /*when=*/4, 1, Spoiled::What::later_gradients);
                    }),
              HasSubstr("a loss or a gradient of each of the last 26 steps was not finite"));
}

TEST(FiniteWatch, ForgetsWhatItTold) {
  World world = World::single(c10::Device(c10::kCPU));
  TinyTask task;
  FiniteWatch watch;
  EXPECT_FALSE(watch.look(task.module(), world));
  std::vector<Batch> micro(2);
  micro[0].ids = {4, 0, 7};
  micro[1].ids = {1, 2, 3, 5, 6, 8, 9};
  const StepBatches batches{.micro = micro};
  watch.add(7, {.loss = at::full({}, 1.0)}, {});
  watch.add(8, {}, {});
  watch.add(9, {.loss = at::full({}, kNan), .grad_norm = at::full({}, 2.0)}, batches);
  const auto found = watch.look(task.module(), world);
  ASSERT_TRUE(found && found->loss);
  EXPECT_EQ(found->loss->step, 9);
  EXPECT_EQ(found->loss->samples, "4, 0, 7, 1, 2, 3, 5, 6 and 2 more");
  EXPECT_FALSE(found->grad_norm);
  EXPECT_EQ(found->parameter, "");
  EXPECT_FALSE(watch.look(task.module(), world));
  watch.add(10, {.loss = at::full({}, kNan)}, {});
  EXPECT_EQ(watch.look(task.module(), world)->text(),
            "the loss of step 10 is not finite on rank 0; all parameters are finite")
      << "a stream has no ids";
}

TEST(FiniteWatch, TellsWhichStepsWereSkipped) {
  World world = World::single(c10::Device(c10::kCPU));
  TinyTask task;
  FiniteWatch watch;
  const auto add = [&](std::int64_t step, double loss, bool skipped, const StepBatches& batches = {}) {
    watch.add(step, {.loss = at::full({}, loss), .skipped = at::full({}, skipped ? 1.0 : 0.0)}, batches);
  };
  std::vector<Batch> micro(1);
  micro[0].ids = {4, 0, 7};
  add(3, 1, false);
  add(4, 1, true);
  add(5, kNan, true, {.micro = micro});
  add(6, 1, false);
  EXPECT_FALSE(watch.look(task.module(), world));
  EXPECT_EQ(watch.skipped().text(),
            "2 steps from 4 to 5 were skipped since the last report: the loss of step 5 is not finite on rank 0 "
            "(samples 4, 0, 7)");
  add(7, 1, true);
  EXPECT_FALSE(watch.look(task.module(), world));
  EXPECT_EQ(watch.skipped().text(), "step 7 was skipped since the last report: a gradient was not finite");
  for (std::int64_t step = 8; step < 1008; ++step) {  // more than are kept one by one
    add(step, step == 300 ? kNan : 1, step == 20 || step == 300 || step == 900);
  }
  EXPECT_FALSE(watch.look(task.module(), world));
  EXPECT_EQ(watch.skipped().text(),
            "3 steps from 20 to 900 were skipped since the last report: the loss of step 300 is not finite on rank 0");
  EXPECT_FALSE(watch.look(task.module(), world));
  EXPECT_EQ(watch.skipped().count, 0);
}

TEST(FiniteWatch, NamesTheRankOfASkippedLoss) {
  for (const int bad : {0, 1, 2}) {
    thread_world(3, [&](World& world) {
      TinyTask task;
      FiniteWatch watch;
      std::vector<Batch> micro(1);
      micro[0].ids = {world.rank()};
      for (std::int64_t step = 0; step < 3; ++step) {
        const double loss = step == 1 && world.rank() >= bad ? kNan : 1;
        watch.add(step, {.loss = at::full({}, loss), .skipped = at::full({}, step == 1 ? 1.0 : 0.0)}, {.micro = micro});
      }
      EXPECT_FALSE(watch.look(task.module(), world));
      const SkippedSteps& skipped = watch.skipped();
      EXPECT_EQ(skipped.count, 1);
      EXPECT_EQ(skipped.first, 1);
      EXPECT_EQ(skipped.last, 1);
      ASSERT_TRUE(skipped.loss);
      EXPECT_EQ(skipped.loss->rank, bad);
      EXPECT_EQ(skipped.loss->samples, std::to_string(bad));
    });
  }
}

}  // namespace
}  // namespace lockstep
