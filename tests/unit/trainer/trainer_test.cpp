#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/data/stream.h>
#include <lockstep/metrics/aggregation.h>
#include <lockstep/sampling/epoch_order.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/trainer.h>

#include "base/mapped.h"
#include "support/at_stage.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/minimize_with.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

TEST(Trainer, IsTheLoopOneWouldWriteByHand) {
  Session session = Session::single(in_memory({.max_epochs = 3, .batch_size = 8, .sampler = {.shuffle = false}}));
  TinyTask task;
  DataLoader data(tiny_data(20), session.plan.loader, session.world);
  const FitResult result = Trainer(session).fit(task, data);
  EXPECT_EQ(result.state.step, 9);
  EXPECT_EQ(result.state.epoch, 3);
  EXPECT_EQ(result.state.samples, 60);
  EXPECT_EQ(result.stop, StopKind::none);

  TinyTask hand;
  torch::optim::SGD optimizer(hand.module().parameters(), torch::optim::SGDOptions(0.1));
  const auto all = tiny_data(20);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (std::int64_t begin = 0; begin < 20; begin += 8) {
      std::vector<std::int64_t> ids;
      for (std::int64_t id = begin; id < std::min<std::int64_t>(begin + 8, 20); ++id) {
        ids.push_back(id);
      }
      optimizer.zero_grad();
      hand.training_step(all->get(ids, {})).loss.backward();
      optimizer.step();
    }
  }
  EXPECT_LE(largest_difference(weights_of(task), weights_of(hand)), 1e-6);
}

// Stages in order, at the right steps.
class Recorder final : public Callback {
 public:
  std::string name() const override { return "recorder"; }
  std::uint32_t stages() const override {
    return Stage::fit_start | Stage::step_end | Stage::epoch_end | Stage::validation_end | Stage::fit_end;
  }
  void on(const StageContext& context) override {
    static const std::map<Stage, std::string> names{{Stage::fit_start, "start"},
                                                    {Stage::step_end, "step"},
                                                    {Stage::epoch_end, "epoch"},
                                                    {Stage::validation_end, "validation"},
                                                    {Stage::fit_end, "end"}};
    seen.push_back(names.at(context.stage) + std::to_string(context.state.step));
    if (context.stage == Stage::validation_end) {
      metrics = *context.metrics;
    }
  }
  std::vector<std::string> seen;
  Metrics metrics;
};

TEST(Trainer, CallsBack) {
  Session session = Session::single(in_memory({.max_epochs = 2, .batch_size = 8}));
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  DataLoader validation(tiny_data(5), session.plan.eval_loader, session.world);
  const auto recorder = std::make_shared<Recorder>();
  Trainer trainer(session);
  trainer.add(recorder);
  EXPECT_THROW(trainer.add(recorder), ConfigError);
  trainer.fit(task, data, &validation);
  EXPECT_THAT(recorder->seen, ElementsAre("start0", "step1", "step2", "epoch2", "validation2", "step3", "step4",
                                          "epoch4", "validation4", "end4"));
  ASSERT_EQ(recorder->metrics.size(), 1U);
  EXPECT_EQ(recorder->metrics[0].first, "val_loss");
  const auto all = tiny_data(5)->get(std::vector<std::int64_t>{0, 1, 2, 3, 4}, {});
  EXPECT_NEAR(recorder->metrics[0].second, task.training_step(all).loss.item<double>(), 1e-6);
}

/// Counts samples and positive targets; the loss is the mean over the positive ones. In double precision.
class CountingTask final : public TinyTask {
 public:
  CountingTask() { net_->to(at::kDouble); }
  StepOutput validation_step(const Batch& batch) override {
    const at::Tensor is_counted = (batch.target > 0).to(at::kDouble);
    const at::Tensor error = (net_(batch.input) - batch.target) * is_counted;
    const at::Tensor count = is_counted.sum();
    samples_.update(at::ones({batch.samples}));
    positive_.update(is_counted);
    StepOutput out = error.square().sum() / count.clamp_min(1);
    out.count = count;
    out.metrics = {{"absolute", error.abs().sum() / count.clamp_min(1)}};
    return out;
  }
  std::vector<metrics::NamedMetric> metrics() override { return {{"samples", samples_}, {"positive", positive_}}; }

 private:
  metrics::SumMetric samples_{};
  metrics::SumMetric positive_{};
};

TEST(Trainer, ValidatesAndTestsExactlyAtAnyNumberOfRanks) {
  constexpr std::int64_t kSamples = 23;  // neither ranks nor batches divide it
  const at::Tensor x = at::sin(at::arange(kSamples * 4, at::kDouble) * 0.37).view({kSamples, 4});
  const std::shared_ptr<Dataset> samples = tensor_dataset(x, x.sum(1, true));
  std::vector<double> weights(kSamples);
  std::iota(weights.begin(), weights.end(), 1.0);
  const auto order = weighted_order(weights, {.samples = 17});
  const auto every_rank_its_own = [&](std::int64_t, int rank, int size) -> SampleSource {
    return [&samples, next = std::int64_t{rank}, size]() mutable -> std::optional<Batch> {
      if (next >= kSamples) {
        return std::nullopt;
      }
      const Batch one = samples->get(std::vector<std::int64_t>{std::exchange(next, next + size)}, {});
      return Batch{.input = one.input[0], .target = one.target[0]};
    };
  };
  struct Case {
    std::string name;
    std::function<DataLoader(const Plan&, World&)> data;
    double samples;
  };
  const std::vector<Case> cases{
      {"plain", [&](const Plan& plan, World& world) { return DataLoader(samples, plan.eval_loader, world); }, 23},
      {"weighted", [&](const Plan& plan, World& world) { return DataLoader(samples, plan.eval_loader, world, order); },
       17},
      {"streamed",
       [&](const Plan& plan, World& world) {
         return DataLoader(sample_stream(every_rank_its_own), plan.eval_loader, world);
       },
       23}};
  for (const Case& c : cases) {
    std::map<std::string, double> expected;  // of one rank
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(c.name + " on " + std::to_string(ranks) + " ranks");
      std::map<std::string, double> found;
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_for(ranks, in_memory({.precision = Precision::fp64, .batch_size = 2}));
        CountingTask task;
        DataLoader data = c.data(plan, world);
        Trainer trainer(plan, world);
        const Metrics metrics = trainer.validate(task, data);
        ASSERT_TRUE(task.module().is_training());
        ASSERT_EQ(trainer.test(task, data), metrics) << "of the same epoch, by validation_step()";
        if (world.is_main()) {
          found = {metrics.begin(), metrics.end()};
        }
      });
      if (ranks == 1) {
        expected = found;
        ASSERT_GT(expected.at("positive"), 1);
        ASSERT_LT(expected.at("positive"), c.samples - 1);
      }
      ASSERT_EQ(found.size(), 4U);
      EXPECT_EQ(found.at("samples"), c.samples);
      EXPECT_EQ(found.at("positive"), expected.at("positive"));
      EXPECT_NEAR(found.at("loss"), expected.at("loss"), 1e-12);
      EXPECT_NEAR(found.at("absolute"), expected.at("absolute"), 1e-12);
      if (c.name != "weighted") {
        const Batch all{.input = x, .target = x.sum(1, true), .samples = kSamples};
        EXPECT_NEAR(found.at("loss"), CountingTask().validation_step(all).loss.item<double>(), 1e-12);
      }
    }
  }
}

TEST(Trainer, ValidatesOnAtMostSoManySteps) {
  class Counts final : public TinyTask {
   public:
    StepOutput validation_step(const Batch& batch) override {
      ++steps;
      return TinyTask::training_step(batch);
    }
    int steps = 0;
  };
  const std::pair<StepCount, int> cases[] = {
      {0, 5}, {2, 2}, {9, 5}, {StepCount::percent(1), 1}, {StepCount::percent(50), 3}, {StepCount::percent(100), 5}};
  for (const auto& [most, steps] : cases) {
    for (const int ranks : {1, 2, 4}) {
      thread_world(ranks, [&, most = most, steps = steps](World& world) {
        const Plan plan =
            plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4 / ranks, .validate = {.max_batches = most}}));
        Counts task;
        DataLoader data(tiny_data(8), plan.loader, world);
        DataLoader validation(tiny_data(20), plan.eval_loader, world);
        Trainer(plan, world).fit(task, data, &validation);
        EXPECT_EQ(task.steps, steps) << ranks << " ranks";
      });
    }
  }
}

TEST(Trainer, RefusesAPartOfValidationDataOfUnknownLength) {
  const StepCount part = StepCount::percent(10);
  Session session = Session::single(in_memory({.batch_size = 4,
                                               .validate = {.max_batches = part},
                                               .test = {.max_batches = part},
                                               .predict = {.max_batches = part}}));
  TinyTask task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  DataLoader validation(
      sample_stream([](std::int64_t, int, int) -> SampleSource { return [] { return std::nullopt; }; }),
      session.plan.eval_loader, session.world);
  EXPECT_THAT(
      message_of([&] { Trainer(session).fit(task, data, &validation); }),
      StartsWith("--validate.max_batches 10%: the length of this data is not known, expected a number of steps"));
  Trainer trainer(session);
  EXPECT_EQ(message_of<ConfigError>([&] { trainer.validate(task, validation); }),
            "--validate.max_batches 10%: the length of this data is not known, expected a number of steps | use "
            "--validate.max_batches N");
  EXPECT_THAT(message_of<ConfigError>([&] { trainer.test(task, validation); }), StartsWith("--test.max_batches 10%: "));
  EXPECT_THAT(message_of<ConfigError>([&] { trainer.predict(task, validation); }),
              StartsWith("--predict.max_batches 10%: "));
}

TEST(Trainer, RanksAsThreadsAreOneRank) {
  TinyTask one;
  {
    Session session = Session::single(in_memory({.max_epochs = 4, .batch_size = 6, .global_batch_size = 6}));
    DataLoader data(tiny_data(20), session.plan.loader, session.world);
    Trainer(session).fit(one, data);
  }
  for (const int ranks : {2, 4}) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 4, .batch_size = 6, .global_batch_size = 6});
      const Plan plan = plan_for(ranks, config);
      TinyTask task;
      DataLoader data(tiny_data(20), plan.loader, world);
      Trainer(plan, world).fit(task, data);
      ASSERT_LE(largest_difference(weights_of(task), weights_of(one)), 1e-5);
    });
  }
}

// Two trainings in one process; the second with another plan and frozen parameters.
TEST(Trainer, LeavesAnOrdinaryModuleForTheNextTraining) {
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 4}));
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  task.module().zero_grad();
  auto bias = task.module().named_parameters()["bias"];
  bias.set_requires_grad(false);
  const auto before = bias.detach().clone();
  const auto weight = task.module().named_parameters()["weight"].detach().clone();

  TrainConfig second = session.plan.config;
  second.max_epochs = 2;
  const Plan plan = resolve(second, probe_hardware(), std::nullopt);
  DataLoader again(tiny_data(16), plan.loader, session.world);
  EXPECT_EQ(Trainer(plan, session.world).fit(task, again).state.step, 8);
  EXPECT_TRUE(at::equal(bias, before));
  EXPECT_FALSE(at::equal(task.module().named_parameters()["weight"], weight));
}

TEST(Trainer, StopsWhenAThreadAsks) {
  Session session = Session::single(in_memory({.max_epochs = 0, .max_steps = 1000000, .batch_size = 4}));
  class Stopper final : public Callback {
   public:
    std::string name() const override { return "stopper"; }
    std::uint32_t stages() const override { return 0 | Stage::step_end; }
    void on(const StageContext& context) override {
      if (context.state.step == 5) {
        context.control.request_stop("loss is low enough");
      }
    }
  };
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  Trainer trainer(session);
  trainer.add(std::make_shared<Stopper>());
  const FitResult result = trainer.fit(task, data);
  EXPECT_EQ(result.stop, StopKind::program);
  EXPECT_EQ(result.state.step, 6);  // the request travels with the next step
  EXPECT_THAT(result.why, HasSubstr("loss is low enough"));
}

// The time is that of all starts, by the clock of rank 0. Each start has ranks of its own.
TEST(Trainer, EndsAfterItsTrainingTimeOverAllStarts) {
  for (const int ranks : {1, 2}) {
    constexpr double kLimit = 3;  // seconds; the disk may take one of them before the first step
    const TempDir dir;
    const auto train = [&](double max_time_s, std::int64_t max_steps) {
      FitResult of_main;
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_for(world.size(), {.compute_setup = ComputeSetup::cpu,
                                                  .max_epochs = 0,
                                                  .max_steps = max_steps,
                                                  .batch_size = 4,
                                                  .run_dir = dir.path() / "run",
                                                  .max_time_s = max_time_s,
                                                  .checkpoint = {.every_epochs = 0}});
        TinyTask task;
        DataLoader data(tiny_data(16), plan.loader, world);
        const FitResult result = Trainer(plan, world).fit(task, data);
        if (world.is_main()) {
          of_main = result;
        }
      });
      return of_main;
    };
    const FitResult first = train(kLimit, 0);
    EXPECT_GT(first.state.step, 0);
    EXPECT_GE(first.duration_s, kLimit);
    EXPECT_EQ(first.stop, StopKind::program) << "the run is finished";
    const FitResult again = train(kLimit, 0);
    EXPECT_EQ(again.state.step, first.state.step) << "no time is left";
    EXPECT_EQ(again.stop, StopKind::program);
    EXPECT_THAT(again.why, HasSubstr("the training time of 00:03 is over (a larger --max_time_s continues), saved in"));
    const FitResult longer = train(1e6, first.state.step + 3);
    EXPECT_EQ(longer.state.step, first.state.step + 3);
    EXPECT_EQ(longer.stop, StopKind::none);
  }
}

TEST(Trainer, StopsAndSavesBeforeTheEndOfTheJob) {
  const TempDir dir;
  Session session = Session::single({.compute_setup = ComputeSetup::cpu,
                                     .max_epochs = 0,
                                     .max_steps = 1'000'000'000,
                                     .batch_size = 4,
                                     .run_dir = dir.path() / "run"});
  // The disk may take one of them before the first step.
  session.plan.facts.job_end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  const auto begin = std::chrono::steady_clock::now();
  const FitResult result = Trainer(session).fit(task, data);
  EXPECT_EQ(result.stop, StopKind::terminate);
  EXPECT_GT(result.state.step, 2);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1)) << "and not much before";
  EXPECT_THAT(result.why, HasSubstr("time limit"));
  EXPECT_FALSE(std::filesystem::is_empty(dir.path() / "run" / "checkpoints"));
}

TEST(Trainer, StopsBeforeTheEndOfTheJobWhileARankWaitsForData) {
  for (const int ranks : {1, 2}) {
    Plan plan = plan_for(ranks, in_memory({.max_epochs = 0, .max_steps = 10, .batch_size = 1}));
    plan.facts.job_end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    thread_world(ranks, [&](World& world) {
      std::promise<void> closed;
      std::shared_future<void> end = closed.get_future().share();
      const auto three = [end](std::int64_t, int rank, int) -> SampleSource {
        return [end, rank, i = std::int64_t{0}]() mutable -> std::optional<Batch> {
          if (i == 3 && rank == 0) {
            end.wait();
          }
          const std::vector<std::int64_t> id{i++ % 3};
          Batch sample = tiny_data(3)->get(id, {});
          return Batch{.input = sample.input[0], .target = sample.target[0]};
        };
      };
      DataLoader data(sample_stream(three, {}, [&closed] { closed.set_value(); }), plan.loader, world);
      TinyTask task;
      const FitResult result = Trainer(plan, world).fit(task, data);
      EXPECT_EQ(result.stop, StopKind::terminate);
      EXPECT_THAT(result.why, HasSubstr("time limit"));
      EXPECT_LE(result.state.step, 3);
    });
  }
}

TEST(TimeLimit, OfTheProgramWorksInAJobThatEndsLater) {
  Plan plan = plan_for(1, in_memory({.max_epochs = 0, .max_steps = 1'000'000'000, .batch_size = 4}));
  plan.facts.job_end = TimeLimit::Clock::now() + std::chrono::hours(1);
  World world = World::single(c10::kCPU);
  TinyTask task;
  DataLoader data(tiny_data(16), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<TimeLimit>(TimeLimit::Clock::now() + std::chrono::milliseconds(200)));
  EXPECT_EQ(trainer.fit(task, data).stop, StopKind::terminate);
}

TEST(Trainer, StopsAtATimeThatTheProgramGaveBeforeTheFit) {
  Plan plan = plan_for(1, in_memory({.max_epochs = 0, .max_steps = 1'000'000'000, .batch_size = 4}));
  plan.facts.job_end = TimeLimit::Clock::now() + std::chrono::hours(1);
  World world = World::single(c10::kCPU);
  TrainControl control;
  control.request_stop_at(TimeLimit::Clock::now() + std::chrono::milliseconds(200), "the budget is used");
  TinyTask task;
  DataLoader data(tiny_data(16), plan.loader, world);
  const FitResult result = Trainer(plan, world, control).fit(task, data);
  EXPECT_EQ(result.stop, StopKind::program);
  EXPECT_THAT(result.why, HasSubstr("the budget is used"));
}

/// A time limit in a fit that the test plays.
class PlayedLimit {
 public:
  explicit PlayedLimit(std::chrono::milliseconds left) : limit_(TimeLimit::Clock::now() + left) {}

  void at(Stage stage) {
    limit_.on({stage, state_, task_.module(), session_.world, session_.plan, control_, step_, strategy_.get()});
  }
  static void pass(std::chrono::milliseconds time) {
    const auto until = TimeLimit::Clock::now() + time;
    while (TimeLimit::Clock::now() < until) {
    }
  }
  bool stops() const { return control_.stop_requested() == StopKind::terminate; }

 private:
  Session session_ = Session::single(in_memory({}));
  TinyTask task_{};
  TrainControl control_{};
  const TrainState state_{};
  const StepResult step_{};
  std::unique_ptr<Strategy> strategy_ = make_strategy(session_.plan, session_.world);
  TimeLimit limit_;
};

// The slowest step and save so far decide how early the limit acts.
TEST(TimeLimit, LeavesTimeForTwoStepsAndASave) {
  const auto stops = [](std::chrono::milliseconds left, bool saves_slowly) {
    PlayedLimit limit(left);
    limit.at(Stage::fit_start);
    limit.at(Stage::step_end);
    limit.pass(std::chrono::milliseconds(saves_slowly ? 300 : 0));
    limit.at(Stage::checkpoint_saved);
    limit.at(Stage::step_end);
    return limit.stops();
  };
  EXPECT_FALSE(stops(std::chrono::hours(1), false));
  EXPECT_FALSE(stops(std::chrono::hours(1), true));
  EXPECT_TRUE(stops(std::chrono::milliseconds(500), true));  // 200 left, the last save took 300
  EXPECT_TRUE(stops(std::chrono::milliseconds(0), false));
}

// Two steps of this length would take 1200 milliseconds.
TEST(TimeLimit, DoesNotCountAValidationAsAStep) {
  const auto stops = [](Stage end, std::chrono::milliseconds left) {
    PlayedLimit limit(left);
    limit.at(Stage::fit_start);
    limit.pass(std::chrono::milliseconds(600));
    limit.at(end);
    limit.at(Stage::step_end);
    return limit.stops();
  };
  for (const Stage end : {Stage::validation_end, Stage::evaluation_stopped, Stage::sanity_end}) {
    EXPECT_FALSE(stops(end, std::chrono::milliseconds(1740))) << end;
  }
  EXPECT_TRUE(stops(Stage::step_end, std::chrono::milliseconds(1740)));
  EXPECT_TRUE(stops(Stage::validation_end, std::chrono::milliseconds(1000))) << "400 left, the last one took 600";
}

TEST(Trainer, ClipsAndSchedules) {
  Session session = Session::single(
      in_memory({.max_epochs = 1, .batch_size = 4, .optim = {.max_grad_norm = 1e-3, .schedule = "warmup:4"}}));
  class Watch final : public Callback {
   public:
    std::string name() const override { return "watch"; }
    std::uint32_t stages() const override { return 0 | Stage::step_end; }
    void on(const StageContext& context) override {
      rates.push_back(context.step.lr);
      EXPECT_GT(context.step.grad_norm.item<double>(), 1e-3);
      double sum = 0;
      for (const auto& parameter : context.module.parameters()) {
        sum += parameter.grad().square().sum().item<double>();
      }
      EXPECT_NEAR(std::sqrt(sum), 1e-3, 1e-6);
    }
    std::vector<double> rates;
  };
  TinyTask task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  const auto watch = std::make_shared<Watch>();
  Trainer trainer(session);
  trainer.add(watch).fit(task, data);
  ASSERT_EQ(watch->rates.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(watch->rates[i], 0.1 * static_cast<double>(i + 1) / 4, 1e-12);
  }
}

/// With LBFGS.
class LbfgsTask final : public TinyTask {
 public:
  explicit LbfgsTask(torch::optim::LBFGSOptions options = torch::optim::LBFGSOptions(1).max_iter(10))
      : TinyTask(OptimizerSpec([options](ParamGroups groups) -> OptimizerPtr {
          return std::make_unique<torch::optim::LBFGS>(std::move(groups), options);
        })) {}
  void optimize(Step& step) override {
    step.add(minimize_with(step, [this](const Batch& batch) { return training_step(batch); }));
  }
};

// LBFGS evaluates as often on every rank, whatever its own loss is.
TEST(Trainer, DrivesAnOptimizerWithAClosure) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 2, .batch_size = 16 / ranks});
      const Plan plan = plan_for(ranks, config);
      LbfgsTask task;
      DataLoader data(tiny_data(16), plan.loader, world);
      Trainer(plan, world).fit(task, data);
      DataLoader all(tiny_data(16), plan.eval_loader, world);
      ASSERT_LT(Trainer(plan, world).validate(task, all).at(0).second, 1e-6);
    });
  }
}

TEST(Trainer, SaysThatLbfgsNeedsAClosure) {
  TinyTask task(OptimizerSpec([](ParamGroups groups) -> OptimizerPtr {
    return std::make_unique<torch::optim::LBFGS>(std::move(groups), torch::optim::LBFGSOptions(1));
  }));
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 8}));
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }),
              AllOf(StartsWith("optimizer 'main' is LBFGS, which needs a closure"),
                    HasSubstr("override Task::optimize and call Step::optimizer().minimize()")));
}

TEST(Trainer, WeighsAMetricOfSomeMicroBatchesInAClosureAsWithoutOne) {
  class Some final : public TinyTask {
   public:
    explicit Some(bool has_closure)
        : TinyTask(has_closure ? OptimizerSpec([](ParamGroups groups) -> OptimizerPtr {
            return std::make_unique<torch::optim::LBFGS>(std::move(groups), torch::optim::LBFGSOptions(0).max_iter(1));
          })
                               : OptimizerSpec(sgd({.lr = 0}))),
          has_closure_(has_closure) {}
    StepOutput training_step(const Batch& batch) override {
      StepOutput out = TinyTask::training_step(batch);
      if (const std::int64_t id = batch.ids.front(); id < 5 || id == 12) {
        out.metrics = {{"some", at::full({}, id, at::kFloat)}};
      }
      return out;
    }
    void optimize(Step& step) override {
      if (!has_closure_) {
        Task::optimize(step);
        return;
      }
      StepOutput mean = minimize_with(step, [this](const Batch& batch) { return training_step(batch); });
      mean.metrics.emplace_back("mine", at::full({}, 7.0));
      step.add(mean);
    }

   private:
    bool has_closure_;
  };
  for (const int ranks : {1, 2, 3}) {
    const auto metrics_of = [&](bool has_closure) {
      Metrics metrics;
      TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 2, .global_batch_size = 12});
      config.sampler.shuffle = false;
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_for(ranks, config);
        Some task(has_closure);
        DataLoader data(tiny_data(24), plan.loader, world);
        const FitResult result = Trainer(plan, world).fit(task, data);
        if (world.is_main()) {
          metrics = result.metrics;
        }
      });
      return std::map<std::string, double>(metrics.begin(), metrics.end());
    };
    const auto plain = metrics_of(false);
    const auto with_closure = metrics_of(true);
    EXPECT_NEAR(with_closure.at("some"), plain.at("some"), 1e-6) << ranks;
    EXPECT_NEAR(with_closure.at("loss"), plain.at("loss"), 1e-6) << ranks;
    EXPECT_EQ(with_closure.at("mine"), 7);
  }
}

// The steps after the resume use what the steps before it have found out about the loss.
TEST(Trainer, ResumesAnOptimizerWithAClosureBitwise) {
  const TempDir dir;
  const auto train = [&](const char* name, int ranks, std::int64_t steps) {
    TrainConfig config = in_memory({.max_epochs = 0, .max_steps = steps, .batch_size = 8 / ranks});
    config.run_dir = (dir.path() / name).string();
    config.checkpoint.enabled = true;
    std::vector<at::Tensor> weights(static_cast<std::size_t>(ranks));
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, config);
      LbfgsTask task(torch::optim::LBFGSOptions(0.1).max_iter(2));
      DataLoader data(tiny_data(16), plan.loader, world);
      EXPECT_EQ(Trainer(plan, world).fit(task, data).state.step, steps);
      weights[static_cast<std::size_t>(world.rank())] = task.module().parameters().front().detach().clone();
    });
    EXPECT_TRUE(at::equal(weights.front(), weights.back())) << "the ranks differ";
    return weights.front();
  };
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const std::string resumed = "resumed" + std::to_string(ranks);
    const at::Tensor straight = train(("straight" + std::to_string(ranks)).c_str(), ranks, 6);
    train(resumed.c_str(), ranks, 3);
    EXPECT_TRUE(at::equal(train(resumed.c_str(), ranks, 6), straight));
    EXPECT_TRUE(at::equal(train(resumed.c_str(), ranks, 6), straight)) << "finished before";
  }
  train("changed", 2, 3);
  EXPECT_LT(largest_difference(train("changed", 1, 6), train("straight1", 1, 6)), 1e-3);
}

TEST(Trainer, ClipsTheGradientsOfEachEvaluationOfAClosure) {
  const auto train = [](const OptimConfig& optim) {
    TrainConfig config = in_memory({.max_steps = 1, .batch_size = 16});
    config.optim = optim;
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    LbfgsTask task;
    const at::Tensor before = task.module().parameters().front().detach().clone();
    DataLoader data(tiny_data(16), plan.loader, world);
    Trainer(plan, world).fit(task, data);
    return largest_difference(task.module().parameters().front().detach(), before);
  };
  const double free = train({});
  EXPECT_LT(train({.max_grad_norm = 1e-9}), free / 2);
  EXPECT_LT(train({.max_grad_value = 1e-9}), free / 2);
}

/// Of a program, so that nobody knows its state.
class UnknownOptimizer final : public torch::optim::Optimizer {
 public:
  explicit UnknownOptimizer(ParamGroups groups)
      : Optimizer(std::move(groups), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

OptimizerSpec unknown_optimizer() {
  return OptimizerFactory(
      [](ParamGroups groups) -> OptimizerPtr { return std::make_unique<UnknownOptimizer>(std::move(groups)); });
}

TEST(Trainer, RefusesWhatNeedsTheStateOfAnOptimizerThatHasNone) {
  TrainConfig rollback = in_memory({.max_steps = 1, .batch_size = 16});
  rollback.optim.non_finite = NonFinitePolicy::rollback;
  TrainConfig spikes = in_memory({.max_steps = 1, .batch_size = 16});
  spikes.spike = {.z_score = 6, .policy = SpikePolicy::rollback};
  TrainConfig replicas = in_memory({.max_steps = 1, .batch_size = 16});
  replicas.dist.check_replicas = true;
  for (const auto& [config, setting] : {std::pair(rollback, "--optim.non_finite rollback: "),
                                        {spikes, "--spike.policy rollback: "},
                                        {replicas, "--dist.check_replicas: "}}) {
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    TinyTask task(unknown_optimizer());
    DataLoader data(tiny_data(16), plan.loader, world);
    EXPECT_THAT([&] { Trainer(plan, world).fit(task, data); }, ThrowsMessage<ConfigError>(HasSubstr(setting)));
  }
}

TEST(Trainer, RefusesAStaticGraphWhoseResumedStepsHaveSeveralMicroBatches) {
  const TempDir dir;
  TrainConfig config = in_memory({.max_steps = 3, .batch_size = 4});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  config.dist.static_graph = true;
  const auto train = [&](int ranks) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, config);
      TinyTask task;
      DataLoader data(tiny_data(160), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
  };
  train(4);
  config.max_steps = 6;
  EXPECT_THAT([&] { train(2); },
              ThrowsMessage<ConfigError>(HasSubstr("the checkpoint's global batch of 16 is 2 "
                                                   "micro-batches of 4 samples on each of 2 ranks")));
}

TEST(Trainer, RefusesAStaticGraphWithTheMicroBatchesOfSeveralLoaders) {
  const auto train = [](int ranks, CombineMode mode) {
    return message_of<ConfigError>([&] {
      thread_world(ranks, [&](World& world) {
        const Plan plan =
            plan_for(ranks, in_memory({.max_epochs = 1, .batch_size = 4, .dist = {.static_graph = true}}));
        TinyTask task;
        CombinedLoader both({std::make_shared<DataLoader>(tiny_data(16), plan.loader, world),
                             std::make_shared<DataLoader>(tiny_data(8), plan.loader, world)},
                            mode);
        Trainer(plan, world).fit(task, both);
      });
    });
  };
  EXPECT_THAT(train(2, CombineMode::min_size),
              AllOf(HasSubstr("--dist.static_graph: the source gave a step of 2 micro-batches, expected one"),
                    HasSubstr("combine loaders with CombineMode::sequential")));
  EXPECT_EQ(train(2, CombineMode::sequential), "no error");
  EXPECT_EQ(train(1, CombineMode::min_size), "no error");
}

TEST(Trainer, NamesTheStateOfACallbackThatIsNoDenseTensor) {
  class Saving final : public Callback {
   public:
    explicit Saving(at::Tensor state) : state_(std::move(state)) {}
    std::string name() const override { return "counter"; }
    std::uint32_t stages() const override { return 0; }
    void on(const StageContext&) override {}
    NamedTensors save() const override { return {{"seen", state_}}; }

   private:
    at::Tensor state_;
  };
  const auto saved = [](const at::Tensor& state) {
    return message_of<CheckpointError>([&] {
      const TempDir dir;
      TrainConfig config = in_memory({.max_steps = 1, .batch_size = 4});
      config.run_dir = (dir.path() / "run").string();
      config.checkpoint.enabled = true;
      Session session = Session::single(config);
      TinyTask task;
      DataLoader data(tiny_data(16), session.plan.loader, session.world);
      Trainer(session).add(std::make_shared<Saving>(state)).fit(task, data);
    });
  };
  EXPECT_THAT(saved({}), HasSubstr("callback 'counter' saved an undefined tensor as 'seen', expected a dense tensor"));
  EXPECT_THAT(saved(at::eye(2).to_sparse()), HasSubstr("callback 'counter' saved a tensor without dense values as"));
  EXPECT_EQ(saved(at::eye(2)), "no error");
}

// Not at the first save, which would lose the training until then.
TEST(Trainer, RefusesAnOptimizerThatCheckpointsCannotHoldAtTheStart) {
  const TempDir dir;
  TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 4});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  Session session = Session::single(config);
  TinyTask task(unknown_optimizer());
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  std::int64_t started = 0;
  Trainer trainer(session);
  trainer.add(at_stage(Stage::step_start, [&](const StageContext&) { ++started; }));
  EXPECT_THAT([&] { trainer.fit(task, data); },
              ThrowsMessage<CheckpointError>(HasSubstr("UnknownOptimizer is not supported")));
  EXPECT_EQ(started, 0);
}

// Two optimizers by hand, each with its own part of the module.
TEST(Trainer, HandsTheStepToTheTask) {
  struct Two : torch::nn::Module {
    Two() {
      left = register_module("left", torch::nn::Linear(4, 1));
      right = register_module("right", torch::nn::Linear(4, 1));
    }
    torch::nn::Linear left{nullptr}, right{nullptr};
  };
  class Alternating final : public Task {
   public:
    torch::nn::Module& module() override { return *two_; }
    std::vector<OptimizerSpec> optimizers() override {
      OptimizerSpec left(sgd({.lr = 0.2}));
      left.module = two_->left.get();
      OptimizerSpec right(adamw({.lr = 0.1}));
      right.module = two_->right.get();
      return {left, right};
    }
    StepOutput training_step(const Batch& batch) override {
      return at::mse_loss(two_->left(batch.input) + two_->right(batch.input), batch.target);
    }
    void optimize(Step& step) override {
      for (std::size_t i = 0; i < step.optimizer_count(); ++i) {
        update_with(i, step, [this](const Batch& batch) { return training_step(batch); });
      }
    }
    std::shared_ptr<Two> two_ = std::make_shared<Two>();
  };
  Session session = Session::single(in_memory({.max_epochs = 60, .batch_size = 8}));
  Alternating task;
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  DataLoader all(tiny_data(16), session.plan.eval_loader, session.world);
  EXPECT_LT(Trainer(session).validate(task, all).at(0).second, 1e-2);
}

// Ranks and micro-batches with different numbers of tokens give the gradient of all tokens together.
TEST(Trainer, WeighsByTheTasksOwnCount) {
  class Masked final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      const auto mask = (batch.target > 0).to(at::kFloat);
      const auto squares = (net_(batch.input) - batch.target).square() * mask;
      StepOutput out(squares.sum() / mask.sum().clamp_min(1), {{"bias", net_->bias.detach().sum()}});
      out.count = mask.sum();
      return out;
    }
  };
  Masked one;
  {
    Session session = Session::single(in_memory({.max_epochs = 3, .batch_size = 10}));
    DataLoader data(tiny_data(20), session.plan.loader, session.world);
    Trainer(session).fit(one, data);
  }
  thread_world(2, [&](World& world) {
    TrainConfig config = in_memory({.max_epochs = 3, .batch_size = 2, .global_batch_size = 10});
    const Plan plan = plan_for(2, config);
    Masked task;
    DataLoader data(tiny_data(20), plan.loader, world);
    Trainer(plan, world).fit(task, data);
    ASSERT_LE(largest_difference(weights_of(task), weights_of(one)), 1e-5);
  });
}

// Two columns of one name would overwrite each other.
TEST(Trainer, RefusesMetricsThatShareAName) {
  class Reporting final : public TinyTask {
   public:
    explicit Reporting(std::vector<std::string> names) : names_(std::move(names)) {}
    StepOutput training_step(const Batch& batch) override {
      StepOutput out = TinyTask::training_step(batch);
      for (const std::string& name : names_) {
        out.metrics.emplace_back(name, at::ones({}));
      }
      return out;
    }
    StepOutput validation_step(const Batch& batch) override { return TinyTask::training_step(batch); }

   private:
    std::vector<std::string> names_;
  };
  for (const int ranks : {1, 2}) {
    for (const char* name : {"loss", "lr", "grad_norm", "epoch", "samples_per_s", "step", "time", "mine", "val_mine"}) {
      const auto train = [&] {
        thread_world(ranks, [&](World& world) {
          TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 2, .optim = {.max_grad_norm = 1}});
          const Plan plan = plan_for(ranks, config);
          Reporting task({"mine", name});
          DataLoader data(tiny_data(8), plan.loader, world);
          DataLoader validation(tiny_data(8), plan.eval_loader, world);
          Trainer(plan, world).fit(task, data, &validation);
        });
      };
      EXPECT_THAT(train, testing::ThrowsMessage<Error>(HasSubstr("'" + std::string(name) + "'")));
    }
  }
}

// Steps and micro-batches in which nothing counts: cross_entropy is NaN there.
class Labelled final : public Task {
 public:
  explicit Labelled(std::int64_t unlabelled) : unlabelled_(unlabelled) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : net_->parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.1})}; }
  StepOutput training_step(const Batch& batch) override {
    constexpr std::int64_t kIgnored = -100;
    const auto labels = mapped(batch.ids, [this](std::int64_t id) { return id < unlabelled_ ? kIgnored : id % 3; });
    const auto target = at::tensor(labels);
    const auto loss = at::cross_entropy_loss(net_(batch.input), target, /*weight=*/{}, at::Reduction::Mean, kIgnored);
    StepOutput out(loss, {{"wrong", loss.detach() * 2}});
    out.count = target.ne(kIgnored).sum();
    return out;
  }

 private:
  std::int64_t unlabelled_;
  torch::nn::Linear net_{4, 3};
};

class LastReport final : public Callback {
 public:
  std::string name() const override { return "last_report"; }
  std::uint32_t stages() const override { return Stage::report | Stage::step_end; }
  void on(const StageContext& context) override {
    if (context.stage == Stage::report) {
      metrics = *context.metrics;
    } else if (context.step.loss.defined()) {
      finite = finite && context.step.loss.isfinite().item<bool>();
    }
  }
  double value(const std::string& name) const {
    const auto found =
        std::find_if(metrics.begin(), metrics.end(), [&](const auto& metric) { return metric.first == name; });
    return found == metrics.end() ? -1 : found->second;
  }
  Metrics metrics;
  bool finite = true;  // the losses of steps
};

TEST(Counts, OfZeroInAllOfAStepChangeNothing) {
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 1, .batch_size = 2, .global_batch_size = 6});
      config.report.every_steps = 1;
      const Plan plan = plan_for(ranks, config);
      Labelled task(/*unlabelled=*/12);
      Labelled before(12);
      DataLoader data(tiny_data(12), plan.loader, world);
      const auto last = std::make_shared<LastReport>();
      Trainer trainer(plan, world);
      trainer.add(last).fit(task, data);
      ASSERT_EQ(largest_difference(weights_of(task), weights_of(before)), 0);
      ASSERT_TRUE(last->finite);
      ASSERT_EQ(last->value("loss"), -1) << "a mean over nothing is not reported";
    });
  }
}

TEST(Counts, OfZeroInAMicroBatchAreLeftOutOfTheMeans) {
  const auto train = [](int ranks, std::int64_t batch_size, Task& task) {
    double loss = 0;
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 1, .batch_size = batch_size, .global_batch_size = 12});
      config.sampler.shuffle = false;
      const Plan plan = plan_for(ranks, config);
      Labelled mine(/*unlabelled=*/5);
      DataLoader data(tiny_data(12), plan.loader, world);
      const auto last = std::make_shared<LastReport>();
      Trainer trainer(plan, world);
      trainer.add(last).fit(mine, data);
      ASSERT_TRUE(last->finite);
      ASSERT_NEAR(last->value("wrong"), 2 * last->value("loss"), 1e-6);
      if (world.is_main()) {
        loss = last->value("loss");
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < task.module().parameters().size(); ++i) {
          task.module().parameters()[i].copy_(mine.module().parameters()[i]);
        }
      }
    });
    return loss;
  };
  Labelled whole(5);
  Labelled split(5);
  const double expected = train(1, 12, whole);
  ASSERT_GT(expected, 0);
  for (const int ranks : {1, 2, 3}) {
    EXPECT_NEAR(train(ranks, 2, split), expected, 1e-6) << ranks;
    EXPECT_LE(largest_difference(weights_of(split), weights_of(whole)), 1e-6) << ranks;
  }
}

TEST(Counts, InSomeMicroBatchesOnlyAreRefused) {
  class Uneven final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      StepOutput out(at::mse_loss(net_(batch.input), batch.target));
      if (calls_++ % 2 == 0) {
        out.count = at::full({}, 2);
      }
      return out;
    }

   private:
    int calls_ = 0;
  };
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 2, .accumulation = 2}));
  Uneven task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_THAT(
      [&] { Trainer(session).fit(task, data); },
      testing::ThrowsMessage<Error>(HasSubstr("one micro-batch of this step has a count, another one has none")));
}

TEST(Counts, BelowZeroAreRefused) {
  class Negative final : public TinyTask {
   public:
    explicit Negative(at::Tensor count) : count_(std::move(count)) {}
    StepOutput training_step(const Batch& batch) override {
      StepOutput out(at::mse_loss(net_(batch.input), batch.target));
      out.count = count_;
      return out;
    }

   private:
    at::Tensor count_;
  };
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 2}));
  for (const auto& [count, shown] : std::vector<std::pair<at::Tensor, const char*>>{
           {at::full({}, -3, at::kLong), "is -3,"}, {at::full({}, -0.5), "is -0.5,"}, {at::full({}, NAN), "is nan,"}}) {
    Negative task(count);
    DataLoader data(tiny_data(8), session.plan.loader, session.world);
    Trainer trainer(session);
    const auto refused =
        testing::AllOf(HasSubstr("StepOutput::count"), HasSubstr(shown), HasSubstr("expected 0 or more"));
    EXPECT_THAT(message_of<DataError>([&] { trainer.fit(task, data); }), refused);
    EXPECT_THAT(message_of<DataError>([&] { trainer.validate(task, data); }), refused);
  }
}

// What LBFGS sees does not depend on how the batch is divided.
TEST(Minimize, WeighsMicroBatchesAndCounts) {
  class Newton final : public TinyTask {
   public:
    explicit Newton(bool counts)
        : TinyTask(OptimizerSpec([](ParamGroups groups) -> OptimizerPtr {
            return std::make_unique<torch::optim::LBFGS>(
                std::move(groups), torch::optim::LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe"));
          })),
          counts_(counts) {}
    StepOutput training_step(const Batch& batch) override {
      const auto squares = (net_(batch.input) - batch.target).square();
      if (!counts_) {
        return StepOutput(squares.mean(), {{"twice", squares.detach().mean() * 2}});
      }
      const auto weights = at::tensor(std::vector<float>(batch.ids.begin(), batch.ids.end())).unsqueeze(1);
      const auto mean = (squares * weights).sum() / weights.sum().clamp_min(1);
      StepOutput out(mean, {{"twice", mean.detach() * 2}});
      out.count = weights.sum();
      return out;
    }
    void optimize(Step& step) override {
      step.add(minimize_with(step, [this](const Batch& batch) { return training_step(batch); }));
    }

   private:
    bool counts_;
  };
  for (const bool counts : {false, true}) {
    Newton whole(counts);
    double expected = 0;
    for (const auto& [ranks, batch_size] : {std::pair(1, 7), std::pair(1, 2), std::pair(2, 7), std::pair(3, 1)}) {
      thread_world(ranks, [&, ranks = ranks, batch_size = batch_size](World& world) {
        TrainConfig config = in_memory({.max_epochs = 1, .batch_size = batch_size, .global_batch_size = 7});
        config.sampler.shuffle = false;
        const Plan plan = plan_for(ranks, config);
        Newton task(counts);
        DataLoader data(tiny_data(14), plan.loader, world);
        const auto last = std::make_shared<LastReport>();
        Trainer trainer(plan, world);
        trainer.add(last).fit(task, data);
        ASSERT_NEAR(last->value("twice"), 2 * last->value("loss"), 1e-5);
        if (ranks == 1 && batch_size == 7) {
          expected = last->value("loss");
          whole = task;
        } else {
          ASSERT_NEAR(last->value("loss"), expected, 1e-5) << ranks << " ranks";
          ASSERT_LE(largest_difference(weights_of(task), weights_of(whole)), 1e-4)
              << ranks << " ranks, counts " << counts;
        }
      });
    }
  }
}

TEST(Schedule, WarnsWhenARunBecomesLonger) {
  const TempDir dir;
  const auto train = [&](std::int64_t max_epochs, const char* schedule) {
    TrainConfig config = in_memory({.max_epochs = max_epochs, .batch_size = 4});
    config.run_dir = dir.path() / "run";
    config.checkpoint.enabled = true;
    config.optim.schedule = schedule;
    Session session = Session::single(config);
    TinyTask task;
    DataLoader data(tiny_data(20), session.plan.loader, session.world);
    CapturedStderr captured;
    Trainer(session).fit(task, data);
    return captured.text();
  };
  EXPECT_THAT(train(2, "cosine"), testing::Not(HasSubstr("cosine")));
  const std::string longer = train(4, "cosine");
  EXPECT_THAT(
      longer,
      HasSubstr(
          "the schedule cosine of optimizer 'main' follows the length of the run, which is 20 steps now and was 10 "));
  EXPECT_THAT(longer, HasSubstr("the learning rate of step 10 becomes 0.5 of its base instead of 0"));
  EXPECT_THAT(longer, HasSubstr("until=10"));
  EXPECT_THAT(train(5, "cosine:until=20"), testing::Not(HasSubstr("follows the length of the run")));
}

TEST(Trainer, WeighsOutputsThatAreAddedAtTheEndOfAStep) {
  /// Adds the outputs of all micro-batches after the last forward. `built`: as an output of its own.
  class AddsLate final : public TinyTask {
   public:
    explicit AddsLate(bool built) : built_(built) {}
    StepOutput training_step(const Batch& batch) override {
      sizes.push_back(batch.samples);
      StepOutput output = TinyTask::training_step(batch);
      output.metrics.emplace_back("size", at::full({}, static_cast<double>(batch.samples)));
      return output;
    }
    void optimize(Step& step) override {
      std::vector<StepOutput> outputs;
      step.optimizer().zero_grad();
      for (const Batch& batch : step.batches()) {
        outputs.push_back(step.optimizer().forward(batch, [this](const Batch& b) { return training_step(b); }));
        step.optimizer().backward(outputs.back());
      }
      for (const StepOutput& output : outputs) {
        step.add(built_ ? StepOutput(output.loss, output.metrics) : output);
      }
      step.optimizer().update();
    }
    std::vector<std::int64_t> sizes{};

   private:
    bool built_;
  };
  for (const bool built : {false, true}) {
    Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 2, .global_batch_size = 4}));
    AddsLate task(built);
    DataLoader data(tiny_data(3), session.plan.loader, session.world);
    const FitResult result = Trainer(session).fit(task, data);
    ASSERT_THAT(task.sizes, ElementsAre(2, 1));
    const auto size = std::ranges::find(result.metrics, "size", &Metrics::value_type::first);
    ASSERT_NE(size, result.metrics.end());
    EXPECT_DOUBLE_EQ(size->second, built ? 3.0 / 2 : 5.0 / 3) << "weights 1 and 1 of the last forward, or 2 and 1";
  }
}

TEST(Trainer, RefusesDataThatGivesNoStep) {
  class Empty final : public BatchSource {
   public:
    const StepBatches* next() override { return nullptr; }
    std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
    LoaderPosition position() const override { return {}; }
    void seek(const LoaderPosition&) override {}
  };
  Session session = Session::single(in_memory({.max_epochs = 0, .max_steps = 5}));
  Empty data;
  TinyTask task;
  EXPECT_EQ(message_of<DataError>([&] { Trainer(session).fit(task, data); }),
            "the training data gave no steps | give it at least one");
}

TEST(Trainer, NeedsTheLengthOfARunForCosine) {
  Session session = Session::single(in_memory({.max_epochs = 1, .optim = {.schedule = "cosine"}}));
  class Endless final : public BatchSource {
   public:
    const StepBatches* next() override { return nullptr; }
    std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
    LoaderPosition position() const override { return {}; }
    void seek(const LoaderPosition&) override {}
  };
  Endless data;
  TinyTask task;
  EXPECT_THROW(Trainer(session).fit(task, data), ConfigError);
}

}  // namespace
}  // namespace lockstep
