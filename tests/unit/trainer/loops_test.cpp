// When a run validates, how long it is, and evaluations outside of a fit.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callbacks.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// The steps after which a run of 12 steps, 4 per epoch, validates.
std::vector<std::int64_t> validations(TrainConfig config, World& world, std::vector<std::int64_t> stops = {12}) {
  std::vector<std::int64_t> steps;
  config.batch_size = 4 / world.size();
  for (const std::int64_t stop : stops) {
    config.max_epochs = 0;
    config.max_steps = stop;
    const Plan plan = plan_for(world.size(), config);
    TinyTask task;
    DataLoader data(tiny_data(16), plan.loader, world);
    DataLoader validation(tiny_data(6), plan.eval_loader, world);
    Trainer(plan, world)
        .on(Stage::validation_end, [&](const StageContext& at) { steps.push_back(at.state.step); })
        .fit(task, data, &validation);
  }
  return steps;
}

TEST(ValidationTimes, AreInEpochsPartsOfThemAndSteps) {
  for (const int ranks : {1, 2, 4}) {
    thread_world(ranks, [](World& world) {
      const auto with = [&](const ValidateConfig& validate) {
        return validations(in_memory({.validate = validate}), world);
      };
      EXPECT_THAT(with({}), ElementsAre(4, 8, 12));
      EXPECT_THAT(with({.every_epochs = 2}), ElementsAre(8));
      EXPECT_THAT(with({.every_epochs = 0}), IsEmpty());
      EXPECT_THAT(with({.every_epochs = 0.5}), ElementsAre(2, 4, 6, 8, 10, 12));
      EXPECT_THAT(with({.every_epochs = 0.3}), ElementsAre(2, 3, 4, 6, 7, 8, 10, 11, 12));
      EXPECT_THAT(with({.every_epochs = 0, .every_steps = 5}), ElementsAre(5, 10));
      EXPECT_THAT(with({.every_epochs = 0, .every_steps = 8, .at_start = true}), ElementsAre(0, 8));
      EXPECT_THAT(with({.every_epochs = 0, .every_s = 1e-9}), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
      EXPECT_THAT(with({.every_epochs = 0, .every_s = 1e9}), IsEmpty());
    });
  }
}

TEST(ValidationTimes, AreTheSameAfterAResumeInAnEpoch) {
  for (const std::int64_t stop : {1, 2, 3, 5, 6, 7, 11}) {
    const TempDir dir;
    World world = World::single(c10::kCPU);
    const TrainConfig config{.compute_setup = ComputeSetup::cpu,
                             .run_dir = dir.path() / "run",
                             .validate = {.every_epochs = 0.5, .at_start = true}};
    EXPECT_THAT(validations(config, world, {stop, 12}), ElementsAre(0, 2, 4, 6, 8, 10, 12)) << stop;
  }
}

TEST(ValidationTimes, NeedTheLengthOfAnEpochForPartsOfIt) {
  class Endless final : public BatchSource {
   public:
    const StepBatches* next() override { return nullptr; }
    std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
    LoaderPosition position() const override { return {}; }
    void seek(const LoaderPosition&) override {}
  };
  Session session = Session::single(in_memory({.validate = {.every_epochs = 0.25}}));
  Endless data;
  TinyTask task;
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }),
              HasSubstr("--validate.every_epochs 0.25: the number of steps per epoch is not known"));
  EXPECT_THAT(message_of([] { Session::single(in_memory({.validate = {.every_epochs = 1.5}})); }),
              HasSubstr("validate.every_epochs 1.5: expected a whole number, or a part of an epoch"));
}

/// Its validation fails.
class Broken final : public TinyTask {
 public:
  StepOutput validation_step(const Batch&) override { throw Error("the validation is broken"); }
};

TEST(SanitySteps, ShowAnErrorOfTheValidationBeforeTheTraining) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      const auto steps_before_the_error = [&](std::int64_t sanity_steps) {
        const Plan plan =
            plan_for(world.size(), in_memory({.batch_size = 2, .validate = {.sanity_steps = sanity_steps}}));
        Broken task;
        DataLoader data(tiny_data(16), plan.loader, world);
        DataLoader validation(tiny_data(8), plan.eval_loader, world);
        std::int64_t steps = 0;
        Trainer trainer(plan, world);
        trainer.on(Stage::step_end, [&](const StageContext& at) { steps = at.state.step; });
        EXPECT_THAT(message_of([&] { trainer.fit(task, data, &validation); }), HasSubstr("the validation is broken"));
        return steps;
      };
      EXPECT_EQ(steps_before_the_error(1), 0);
      EXPECT_GT(steps_before_the_error(0), 0);  // control
    });
  }
}

TEST(SanitySteps, ChangeNothing) {
  const auto train = [](std::int64_t sanity_steps) {
    Session session = Session::single(in_memory({.batch_size = 4, .validate = {.sanity_steps = sanity_steps}}));
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    DataLoader validation(tiny_data(24), session.plan.eval_loader, session.world);
    return Trainer(session).fit(task, data, &validation).metrics;
  };
  EXPECT_EQ(train(2).front(), train(0).front());
}

/// The stages of a run, and a "v" for each batch that is validated. `stop_at`: which of them asks for a stop.
std::string stages_around_sanity_steps(World& world, std::int64_t sanity_steps, int stop_at) {
  std::string order;
  class Noting final : public TinyTask {
   public:
    Noting(std::string& order, TrainControl control, int stop_at)
        : order_(order), control_(std::move(control)), stop_at_(stop_at) {}
    StepOutput validation_step(const Batch& batch) override {
      order_ += 'v';
      if (--stop_at_ == 0) {
        control_.request_stop("the test", StopKind::terminate);
      }
      return TinyTask::training_step(batch);
    }

   private:
    std::string& order_;
    TrainControl control_;
    int stop_at_;
  };
  const Plan plan = plan_for(
      world.size(),
      in_memory({.max_epochs = 1, .batch_size = 2, .validate = {.at_start = true, .sanity_steps = sanity_steps}}));
  TrainControl control;
  Noting task(order, control, stop_at);
  DataLoader data(tiny_data(8), plan.loader, world);
  DataLoader validation(tiny_data(6 * world.size()), plan.eval_loader, world);
  Trainer trainer(plan, world, control);
  for (const auto& [stage, sign] : std::map<Stage, std::string>{{Stage::fit_start, "fit "},
                                                                {Stage::epoch_start, "e "},
                                                                {Stage::sanity_start, "("},
                                                                {Stage::sanity_end, ") "},
                                                                {Stage::validation_start, "<"},
                                                                {Stage::validation_batch_start, "."},
                                                                {Stage::validation_end, "> "},
                                                                {Stage::evaluation_stopped, "! "},
                                                                {Stage::fit_end, "end"}}) {
    trainer.on(stage, [&order, text = sign](const StageContext&) { order += text; });
  }
  trainer.fit(task, data, &validation);
  return order;
}

TEST(SanitySteps, HaveStagesOfTheirOwn) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      EXPECT_EQ(stages_around_sanity_steps(world, 2, 0), "fit (vv) <.v.v.v> e <.v.v.v> end");
      EXPECT_EQ(stages_around_sanity_steps(world, 0, 0), "fit <.v.v.v> e <.v.v.v> end");
      EXPECT_EQ(stages_around_sanity_steps(world, 2, 1), "fit (v! end");
    });
  }
}

TEST(Minimum, KeepsTheProgramFromEndingARun) {
  struct Case {
    std::int64_t min_steps, min_epochs, ends_at;
  };
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      for (const auto& [min_steps, min_epochs, ends_at] :
           {Case{0, 0, 3}, Case{3, 0, 3}, Case{7, 0, 7}, Case{0, 2, 8}, Case{9, 2, 9}}) {
        const Plan plan = plan_for(
            world.size(),
            in_memory(
                {.max_epochs = 5, .min_epochs = min_epochs, .min_steps = min_steps, .batch_size = 4 / world.size()}));
        TinyTask task;
        DataLoader data(tiny_data(16), plan.loader, world);
        DataLoader validation(tiny_data(8), plan.eval_loader, world);
        std::vector<std::int64_t> validated;
        Trainer trainer(plan, world);
        trainer.on(Stage::step_end, [&](const StageContext& at) {
          if (at.state.step == 2 && world.is_main()) {
            at.control.request_stop("good enough");
          }
        });
        trainer.on(Stage::validation_end, [&](const StageContext& at) { validated.push_back(at.state.step); });
        const FitResult result = trainer.fit(task, data, &validation);
        EXPECT_EQ(result.state.step, ends_at);
        EXPECT_EQ(result.stop, StopKind::program);
        EXPECT_EQ(validated.empty(), ends_at < 4) << "a stop that waits must not end a validation";
      }
    });
  }
}

TEST(Minimum, DoesNotHoldASignalBack) {
  Session session = Session::single(in_memory({.max_steps = 9, .min_steps = 9, .batch_size = 4}));
  TinyTask task;
  DataLoader data(tiny_data(64), session.plan.loader, session.world);
  Trainer trainer(session);
  trainer.on(Stage::step_end, [](const StageContext& at) {
    if (at.state.step == 2) {
      at.control.request_stop_from_signal(StopKind::terminate);
    }
  });
  EXPECT_EQ(trainer.fit(task, data).state.step, 3);
}

TEST(Minimum, IsAtMostTheMaximum) {
  const std::string text = message_of(
      [] { Session::single(in_memory({.max_epochs = 2, .max_steps = 5, .min_epochs = 3, .min_steps = 6})); });
  EXPECT_THAT(text, HasSubstr("min_steps 6 with config.max_steps 5: the run ends earlier"));
  EXPECT_THAT(text, HasSubstr("min_epochs 3 with config.max_epochs 2: the run ends earlier"));
}

TEST(Minimum, ThatALimitCutsOffIsRefusedAtTheStart) {
  const auto message = [](TrainConfig config) {
    config.batch_size = 2;
    Session session = Session::single(in_memory(std::move(config)));
    TinyTask task;
    DataLoader data(tiny_data(16), session.plan.loader, session.world);
    return message_of<ConfigError>([&] { Trainer(session).fit(task, data); });
  };
  EXPECT_EQ(message({.max_epochs = 5, .min_steps = 41}),
            "--min_steps 41 with --max_epochs 5 of 8 steps: the run ends at step 40 | raise the maximum, or leave out "
            "the minimum");
  EXPECT_THAT(message({.max_epochs = 0, .max_steps = 15, .min_epochs = 2}),
              HasSubstr("--min_epochs 2 with --max_steps 15, where an epoch has 8 steps: the run ends earlier"));
}

TEST(Minimum, ThatALimitCutsOffIsAWarningWhereTheLengthOfAnEpochIsNotKnown) {
  class OfUnknownLength final : public BatchSource {
   public:
    explicit OfUnknownLength(DataLoader& loader) : loader_(loader) {}
    const StepBatches* next() override { return loader_.next(); }
    std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
    LoaderPosition position() const override { return loader_.position(); }
    void seek(const LoaderPosition& position) override { loader_.seek(position); }

   private:
    DataLoader& loader_;
  };
  const auto warnings = [](TrainConfig config) {
    config.batch_size = 2;
    Session session = Session::single(in_memory(std::move(config)));
    TinyTask task;
    DataLoader loader(tiny_data(16), session.plan.loader, session.world);
    OfUnknownLength data(loader);
    CapturedStderr captured;
    Trainer(session).fit(task, data);
    return captured.text();
  };
  EXPECT_THAT(warnings({.max_epochs = 2, .min_steps = 17}),
              HasSubstr("--min_steps 17 was not reached: --max_epochs 2 ended the training at step 16"));
  EXPECT_THAT(warnings({.max_epochs = 0, .max_steps = 15, .min_epochs = 2}),
              HasSubstr("--min_epochs 2 was not reached: --max_steps 15 ended the training at step 15"));
  EXPECT_THAT(warnings({.max_epochs = 2, .min_steps = 16}), Not(HasSubstr("was not reached")));
}

TEST(FastDevRun, TriesEverythingAndWritesNothing) {
  const TempDir dir;
  Session session = Session::single({.compute_setup = ComputeSetup::cpu,
                                     .max_epochs = 100,
                                     .min_steps = 50,
                                     .fast_dev_run = 3,
                                     .batch_size = 4,
                                     .run_dir = dir.path() / "run"});
  TinyTask task;
  DataLoader data(tiny_data(64), session.plan.loader, session.world);
  DataLoader validation(tiny_data(64), session.plan.eval_loader, session.world);
  const FitResult result = Trainer(session).fit(task, data, &validation);
  EXPECT_EQ(result.state.step, 3);
  EXPECT_THAT(result.metrics, testing::Contains(testing::Key("val_loss")));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run"));
}

TEST(FastDevRun, LimitsTheLoopsOutsideOfAFit) {
  class Counts final : public TinyTask {
   public:
    StepOutput validation_step(const Batch& batch) override {
      ++steps;
      return TinyTask::training_step(batch);
    }
    NamedTensors predict_step(const Batch& batch) override {
      ++steps;
      return {{"y", net_(batch.input)}};
    }
    int steps = 0;
  };
  for (const int ranks : {1, 2, 4}) {
    const CapturedStderr silent;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.fast_dev_run = 3, .batch_size = 4}));
      DataLoader data(tiny_data(64), plan.eval_loader, world);
      Trainer trainer(plan, world);
      const auto steps_of = [&](const auto& loop) {
        Counts task;
        loop(task);
        return task.steps;
      };
      EXPECT_EQ(steps_of([&](Task& task) { trainer.validate(task, data); }), 3);
      EXPECT_EQ(steps_of([&](Task& task) { trainer.test(task, data); }), 3);
      EXPECT_EQ(steps_of([&](Task& task) {
                  const NamedTensors results = trainer.predict(task, data);
                  ASSERT_EQ(results.empty(), !world.is_main());
                  if (world.is_main()) {
                    EXPECT_EQ(results.at(1).second.size(0), 3 * 4 * ranks);
                  }
                }),
                3);
    });
  }
}

/// A test step that differs from the validation step.
class Tested final : public TinyTask {
 public:
  StepOutput test_step(const Batch& batch) override {
    StepOutput out = validation_step(batch);
    out.metrics = {{"absolute", at::l1_loss(net_(batch.input), batch.target)}};
    return out;
  }
};

TEST(TrainerTest, UsesTestStep) {
  std::vector<Metrics> all;
  for (const int ranks : {1, 2, 3, 4}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.batch_size = 4}));
      Tested task;
      DataLoader data(tiny_data(7), plan.eval_loader, world);
      Trainer trainer(plan, world);
      const Metrics tested = trainer.test(task, data);
      EXPECT_TRUE(task.module().is_training());
      EXPECT_EQ(trainer.validate(task, data).size(), 1U);
      ASSERT_EQ(tested.size(), 2U);
      EXPECT_EQ(tested[1].first, "absolute");
      if (world.is_main()) {
        all.push_back(tested);
      }
    });
  }
  for (const Metrics& metrics : all) {
    EXPECT_NEAR(metrics[0].second, all[0][0].second, 1e-6);
    EXPECT_NEAR(metrics[1].second, all[0][1].second, 1e-6);
  }
}

// The steps have the same samples on any number of ranks. 29 samples are 5 steps.
TEST(EvaluationLimit, GivesTheMeansOfTheFirstStepsOnAnyNumberOfRanks) {
  const auto evaluate_with = [](int ranks, std::int64_t samples, StepCount most, std::string* told = nullptr) {
    std::pair<Metrics, Metrics> found;
    CapturedStderr captured;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.precision = Precision::fp64,
                                                   .batch_size = 6,
                                                   .global_batch_size = 6,
                                                   .validate = {.max_batches = most},
                                                   .test = {.max_batches = most}}));
      Tested task;
      DataLoader data(take(tiny_data(29), samples), plan.eval_loader, world);
      Trainer trainer(plan, world);
      const Metrics validated = trainer.validate(task, data);
      const Metrics tested = trainer.test(task, data);
      EXPECT_EQ(data.position().consumed, 0) << "it is where it was";
      EXPECT_EQ(trainer.test(task, data), tested);
      if (world.is_main()) {
        found = {validated, tested};
      }
    });
    if (told != nullptr) {
      *told = captured.text();
    }
    return found;
  };
  const auto expect_near = [](const Metrics& found, const Metrics& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, wanted[i].first);
      EXPECT_NEAR(found[i].second, wanted[i].second, 1e-12);
    }
  };
  const std::pair<StepCount, int> cases[] = {
      {0, 5}, {2, 2}, {5, 5}, {9, 5}, {StepCount::percent(1), 1}, {StepCount::percent(50), 3}};
  for (const auto& [most, steps] : cases) {
    const auto [validated, tested] = evaluate_with(1, std::min(29, 6 * steps), {});
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(std::to_string(steps) + " steps, " + std::to_string(ranks) + " ranks");
      std::string told;
      const auto found = evaluate_with(ranks, 29, most, &told);
      expect_near(found.first, validated);
      expect_near(found.second, tested);
      const bool is_part = steps < 5;
      EXPECT_EQ(told.find("the validation used the first ") != std::string::npos, is_part) << told;
      EXPECT_EQ(told.find("(--test.max_batches)") != std::string::npos, is_part) << told;
    }
  }
  EXPECT_GT(std::abs(evaluate_with(1, 29, 2).second.at(0).second - evaluate_with(1, 29, {}).second.at(0).second), 1e-3)
      << "the control";
}

// The recipe "Overfit a few batches": a validation of the loader of the training, also within an epoch.
TEST(Recipe, OverfitsTheFirstBatchesAndValidatesOnTheSame) {
  static constexpr std::int64_t kSamples = 64;
  constexpr std::int64_t kEpochs = 60;
  /// Counts each sample of its training and of its validations.
  class Counts final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override { return counted(batch, trained); }
    StepOutput validation_step(const Batch& batch) override { return counted(batch, validated); }
    at::Tensor trained = at::zeros({kSamples}, at::kLong);
    at::Tensor validated = at::zeros({kSamples}, at::kLong);

   private:
    StepOutput counted(const Batch& batch, at::Tensor& counts) {
      const at::Tensor ids = at::tensor(batch.ids);
      counts.index_add_(0, ids, at::ones_like(ids));
      return TinyTask::training_step(batch);
    }
  };
  struct Result {
    at::Tensor trained{};
    at::Tensor validated{};
    std::int64_t validations = 0;
    double loss = 0;
    std::vector<at::Tensor> weights{};
  };
  const auto train = [&](int ranks, bool shuffles, std::int64_t samples, StepCount steps_per_epoch) {
    Result result;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.precision = Precision::fp64,
                                                   .max_epochs = kEpochs,
                                                   .batch_size = 2,
                                                   .global_batch_size = 6,
                                                   .data = {.steps_per_epoch = steps_per_epoch},
                                                   .sampler = {.shuffle = shuffles},
                                                   .validate = {.every_epochs = 0, .every_steps = 30}}));
      Counts task;
      DataLoader data(take(tiny_data(kSamples), samples), plan.loader, world);
      Trainer trainer(plan, world);
      std::int64_t validations = 0;
      trainer.on(Stage::validation_end, [&](const StageContext&) { ++validations; });
      const FitResult fitted = trainer.fit(task, data, &data);
      world.all_reduce(task.trained, Reduce::sum);
      world.all_reduce(task.validated, Reduce::sum);
      if (world.is_main()) {
        result = {task.trained, task.validated, validations, metric_of(fitted.metrics, "val_loss"), weights_of(task)};
      }
    });
    return result;
  };
  const auto counts = [&](std::int64_t times) {
    const at::Tensor expected = at::zeros({kSamples}, at::kLong);
    expected.narrow(0, 0, 24).fill_(times);
    return expected;
  };
  const Result one = train(1, /*shuffles=*/false, kSamples, 4);
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const Result found = train(ranks, /*shuffles=*/false, kSamples, 4);
    EXPECT_TRUE(found.trained.equal(counts(kEpochs))) << found.trained;
    EXPECT_EQ(found.validations, 8) << "every second one within an epoch";
    EXPECT_TRUE(found.validated.equal(counts(found.validations))) << found.validated;
    EXPECT_LT(found.loss, 1e-6);
    EXPECT_LE(largest_difference(found.weights, one.weights), 1e-12);
    EXPECT_EQ(largest_difference(found.weights, train(ranks, /*shuffles=*/false, 24, {}).weights), 0)
        << "take() has the same steps";
  }
  EXPECT_FALSE(train(1, /*shuffles=*/true, kSamples, 4).trained.equal(counts(kEpochs))) << "the control";
}

}  // namespace
}  // namespace lockstep
