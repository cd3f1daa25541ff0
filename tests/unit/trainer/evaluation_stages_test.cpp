// Callbacks in validations, tests and predictions, at the beginning of epochs, and by time.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callbacks.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::Not;
using testing::Pair;
using testing::SizeIs;

/// Predicts too.
class Predicting : public TinyTask {
 public:
  NamedTensors predict_step(const Batch& batch) override { return {{"y", net_(batch.input)}}; }
};

/// The order of the calls of the task and of its callbacks.
class Ordered final : public Predicting {
 public:
  StepOutput validation_step(const Batch& batch) override { return ran(TinyTask::validation_step(batch)); }
  StepOutput test_step(const Batch& batch) override { return ran(TinyTask::training_step(batch)); }
  NamedTensors predict_step(const Batch& batch) override { return ran(Predicting::predict_step(batch)); }
  std::string order;

 private:
  template <class Output>
  Output ran(Output output) {
    order += '.';
    return output;
  }
};

Plan plan_of(const World& world, TrainConfig config = in_memory({})) {
  config.batch_size = std::max(1, 4 / world.size());
  return plan_for(world.size(), config);
}

/// One of Trainer::validate, test and predict, over 7 samples.
struct Loop {
  const char* name;
  Stage start;
  Stage batch_start;
  Stage batch_end;
  Stage end;
  std::function<void(Trainer&, Task&, BatchSource&)> run;
};

std::vector<Loop> loops() {
  return {
      {"validate", Stage::validation_start, Stage::validation_batch_start, Stage::validation_batch_end,
       Stage::validation_end, [](Trainer& trainer, Task& task, BatchSource& data) { trainer.validate(task, data); }},
      {"test", Stage::test_start, Stage::test_batch_start, Stage::test_batch_end, Stage::test_end,
       [](Trainer& trainer, Task& task, BatchSource& data) { trainer.test(task, data); }},
      {"predict", Stage::predict_start, Stage::predict_batch_start, Stage::predict_batch_end, Stage::predict_end,
       [](Trainer& trainer, Task& task, BatchSource& data) { trainer.predict(task, data); }}};
}

TEST(EvaluationStages, AreCalledOutsideOfAFit) {
  for (const Loop& loop : loops()) {
    for (const int ranks : {1, 2, 3, 4}) {
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_of(world);
        Predicting task;
        DataLoader data(tiny_data(7), plan.eval_loader, world);
        std::string order;
        auto samples = at::zeros({}, at::kLong);
        Trainer trainer(plan, world);
        trainer
            .on(loop.start | loop.end,
                [&](const StageContext& at) {
                  order += at.stage == loop.start ? '<' : '>';
                  EXPECT_EQ(at.strategy, nullptr);
                  EXPECT_EQ(at.task, &task);
                })
            .on(loop.batch_end, [&](const StageContext& at) {
              order += order.back() == 'b' ? "" : "b";
              samples += at.batch->samples;
              const bool predicts = loop.batch_end == Stage::predict_batch_end;
              EXPECT_EQ(at.results != nullptr, predicts);
              EXPECT_EQ(at.output != nullptr, !predicts);
              if (predicts) {
                EXPECT_EQ(at.results->front().second.size(0), at.batch->samples);
              }
              EXPECT_FALSE(at.module.is_training());
            });
        loop.run(trainer, task, data);
        loop.run(trainer, task, data);
        world.all_reduce(samples, Reduce::sum);
        EXPECT_EQ(samples.item<std::int64_t>(), 14) << loop.name << " on " << ranks;
        if (world.is_main()) {
          EXPECT_EQ(order, "<b><b>") << loop.name << " on " << ranks;
        }
      });
    }
  }
}

TEST(EvaluationStages, SurroundEachBatch) {
  for (const Loop& loop : loops()) {
    for (const int ranks : {1, 2, 4}) {
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_of(world);
        Ordered task;
        DataLoader data(tiny_data(7), plan.eval_loader, world);
        const Batch* begun = nullptr;
        std::int64_t number = 0;
        Trainer trainer(plan, world);
        trainer
            .on(loop.batch_start,
                [&](const StageContext& at) {
                  task.order += '(';
                  begun = at.batch;
                  EXPECT_GT(at.batch->samples, 0);
                  EXPECT_EQ(at.batch_number, ++number);
                  EXPECT_EQ(at.output, nullptr);
                  EXPECT_EQ(at.results, nullptr);
                  EXPECT_FALSE(at.module.is_training());
                })
            .on(loop.batch_end, [&](const StageContext& at) {
              task.order += ')';
              EXPECT_EQ(at.batch, begun);
              EXPECT_EQ(at.batch_number, number);
            });
        loop.run(trainer, task, data);
        if (world.is_main()) {
          EXPECT_EQ(task.order, "(.)(.)") << loop.name << " on " << ranks;
        }
      });
    }
  }
}

TEST(EvaluationStages, EndWithAStageAfterAStop) {
  for (const Loop& loop : loops()) {
    for (const int ranks : {1, 2}) {
      thread_world(ranks, [&](World& world) {
        const Plan plan = plan_of(world);
        Predicting task;
        DataLoader data(tiny_data(40), plan.eval_loader, world);
        TrainControl control;
        std::string order;
        Trainer trainer(plan, world, control);
        trainer
            .on(loop.start | loop.end | Stage::evaluation_stopped,
                [&](const StageContext& at) {
                  order += at.stage == loop.start ? '<' : at.stage == loop.end ? '>' : '!';
                })
            .on(loop.batch_end, [&](const StageContext& at) {
              if (world.is_main() && at.batch_number == 2) {
                control.request_stop("the test", StopKind::terminate);
              }
            });
        EXPECT_THROW(loop.run(trainer, task, data), Stopped);
        EXPECT_EQ(order, "<!") << loop.name << " on " << ranks;
      });
    }
  }
}

/// Two epochs of five steps: the steps of the stages, and the samples in their order.
std::string stages_of(const std::function<void(Trainer&, Task&, DataLoader&)>& prepare) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 2, .run_dir = dir.path() / "run"});
  config.checkpoint.enabled = true;
  const Plan plan = plan_of(world, config);
  TinyTask task;
  DataLoader train(tiny_data(20), plan.loader, world);
  Trainer trainer(plan, world);
  std::string found;
  const auto note = [&](std::string_view what) {
    return [&found, what](const StageContext& at) { found += fmt::format(" {}{}", what, at.state.step); };
  };
  prepare(trainer, task, train);
  trainer
      .on(Stage::step_start,
          [&](const StageContext& at) {
            EXPECT_EQ(at.train->steps_per_epoch(), 5);
            EXPECT_THAT(message_of([&] { at.train->next(); }), HasSubstr("inside of a step"));
            EXPECT_THAT(message_of([&] { at.train->seek({}); }), HasSubstr("inside of a step"));
            for (const Batch& batch : at.batches->micro) {
              found += fmt::format(" [{}]", fmt::join(batch.ids, " "));
            }
          })
      .on(Stage::epoch_end, note("epoch_end "))
      .on(Stage::checkpoint_saved, note("saved "));
  trainer.fit(task, train);
  return found;
}

TEST(Callbacks, MayReadFromTheLoaderOfTheTraining) {
  const auto read = [](const StageContext& at) {
    const LoaderPosition before = at.train->position();
    ASSERT_NE(at.train->next(), nullptr);
    at.train->seek(before);
  };
  const std::string plain = stages_of([](Trainer&, Task&, DataLoader&) {});
  EXPECT_THAT(plain, HasSubstr("epoch_end 5 saved 5"));
  for (const Stage stage : {Stage::step_end, Stage::epoch_end, Stage::epoch_start, Stage::report}) {
    EXPECT_EQ(stages_of([&](Trainer& trainer, Task&, DataLoader&) { trainer.on(stage, read); }), plain) << stage;
  }
  EXPECT_EQ(stages_of([&](Trainer& trainer, Task& task, DataLoader& train) {
              trainer.on(Stage::step_end, [&](const StageContext&) { trainer.validate(task, train); }, {.every = 2});
            }),
            plain);
}

// The training would go on where the validation failed.
TEST(Validation, ThatFailsOnTheLoaderOfTheTrainingIsNotSaved) {
  class Failing final : public TinyTask {
   public:
    explicit Failing(int fails_at) : fails_at_(fails_at) {}
    StepOutput validation_step(const Batch& batch) override {
      if (++calls_ == fails_at_) {
        throw Error("the scratch disk is full");
      }
      return TinyTask::validation_step(batch);
    }

   private:
    int fails_at_;
    int calls_ = 0;
  };
  const TempDir dir;
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 3, .run_dir = dir.path() / "run"});
  config.checkpoint.enabled = true;
  const auto steps_of_fit = [&](int fails_at) {
    const Plan plan = plan_of(world, config);
    Failing task(fails_at);
    DataLoader train(tiny_data(20), plan.loader, world);
    Trainer trainer(plan, world);
    std::int64_t steps = 0;
    trainer.on(Stage::step_end, [&](const StageContext&) { ++steps; });
    try {
      trainer.fit(task, train, &train);
    } catch (const Error&) {
      EXPECT_GT(fails_at, 0);
    }
    return steps;
  };
  const CapturedStderr silent;
  EXPECT_EQ(steps_of_fit(8), 10) << "in the second validation, of epoch 2";
  EXPECT_EQ(steps_of_fit(0), 10) << "from the end of epoch 1";
}

TEST(EvaluationStages, SeeTheBatchesOfAValidationInAFit) {
  for (const int ranks : {1, 2, 4}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(world, in_memory({.max_epochs = 2}));
      TinyTask task;
      DataLoader train(tiny_data(8), plan.loader, world);
      DataLoader validation(tiny_data(7), plan.eval_loader, world);
      auto samples = at::zeros({}, at::kLong);
      std::vector<std::int64_t> numbers;
      Trainer trainer(plan, world);
      std::int64_t starts = 0;
      trainer.on(Stage::validation_batch_start, [&](const StageContext& at) {
        ++starts;
        EXPECT_NE(at.strategy, nullptr);
      });
      trainer.on(Stage::validation_batch_end, [&](const StageContext& at) {
        samples += at.batch->samples;
        numbers.push_back(at.batch_number);
        EXPECT_NE(at.strategy, nullptr);
      });
      trainer.fit(task, train, &validation);
      EXPECT_EQ(starts, std::ssize(numbers));
      world.all_reduce(samples, Reduce::sum);
      EXPECT_EQ(samples.item<std::int64_t>(), 14);
      if (world.is_main()) {
        EXPECT_THAT(numbers, ElementsAre(1, 2, 1, 2));
      }
    });
  }
}

TEST(EvaluationStages, AddMetricsToWhatTheLoopReturns) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(world);
      TinyTask task;
      DataLoader data(tiny_data(7), plan.eval_loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::validation_end | Stage::test_end, [&](const StageContext& at) {
        const std::string prefix = at.stage == Stage::test_end ? "test_" : "val_";
        EXPECT_THAT(*at.metrics, Contains(Key(prefix + "loss")));
        at.log("twice", 2 * at.metrics->front().second);
      });
      trainer.on(Stage::validation_start | Stage::test_start, [](const StageContext& at) { at.log("began", 1); });
      for (const Metrics& metrics : {trainer.validate(task, data), trainer.test(task, data)}) {
        ASSERT_THAT(metrics, SizeIs(3));
        EXPECT_THAT(metrics, Contains(Key("loss")));
        EXPECT_THAT(metrics, Contains(Pair("twice", 2 * metrics.front().second)));
        EXPECT_THAT(metrics, Contains(Pair("began", 1)));
      }
    });
  }
}

TEST(EvaluationStages, AddMetricsToAValidationInAFit) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(world, in_memory({.max_epochs = 2, .early_stop = {.metric = "val_began"}}));
      TinyTask task;
      DataLoader train(tiny_data(8), plan.loader, world);
      DataLoader validation(tiny_data(7), plan.eval_loader, world);
      Trainer trainer(plan, world);
      std::vector<double> began;
      trainer.on(Stage::validation_start,
                 [](const StageContext& at) { at.log("began", static_cast<double>(at.state.epoch)); });
      trainer.on(Stage::validation_end, [&](const StageContext& at) {
        const auto found = std::ranges::find(*at.metrics, "val_began", &Metrics::value_type::first);
        ASSERT_NE(found, at.metrics->end());
        began.push_back(found->second);
      });
      trainer.on(Stage::report, [](const StageContext& at) { EXPECT_THAT(*at.metrics, Not(Contains(Key("began")))); });
      const FitResult result = trainer.fit(task, train, &validation);
      EXPECT_THAT(began, ElementsAre(1, 2)) << "early_stop.metric has found it too";
      EXPECT_THAT(result.metrics, Contains(Pair("val_began", 2)));
    });
  }
}

TEST(EvaluationStages, HaveNoReportInAPrediction) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(world);
  Predicting task;
  DataLoader data(tiny_data(4), plan.eval_loader, world);
  Trainer trainer(plan, world);
  trainer.on(Stage::predict_end, [](const StageContext& at) { at.log("x", 1); });
  EXPECT_THAT(message_of([&] { trainer.predict(task, data); }), HasSubstr("nothing can be logged at predict_end"));
}

TEST(EvaluationStages, DecideNothingOutsideOfAFit) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(world, in_memory({.max_epochs = 3}));
  const auto epochs_after = [&](int validations, bool in_fit) {
    TinyTask task(sgd({.lr = 0.0}));  // the loss never improves
    DataLoader train(tiny_data(8), plan.loader, world);
    DataLoader validation(tiny_data(4), plan.eval_loader, world);
    Trainer trainer(plan, world);
    trainer.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = in_fit ? 1 : 5}));
    trainer.add(std::make_shared<ReduceOnPlateau>());
    for (int i = 0; i < validations; ++i) {
      trainer.validate(task, validation);
    }
    return trainer.fit(task, train, &validation).state.epoch;
  };
  EXPECT_EQ(epochs_after(8, false), 3);
  EXPECT_LT(epochs_after(0, true), 3) << "control: it would have stopped the training";
}

TEST(EvaluationStages, MayRunInsideACallbackThatFreezes) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(world, in_memory({.max_epochs = 2}));
      TinyTask task;
      DataLoader train(tiny_data(8), plan.loader, world);
      DataLoader other(tiny_data(7), plan.eval_loader, world);
      Trainer trainer(plan, world);
      std::vector<double> losses;
      at::Tensor frozen_at;
      const at::Tensor bias = task.module().named_parameters()["bias"];
      trainer.on(Stage::validation_start, [](const StageContext&) {});
      trainer.on(Stage::epoch_end, [&](const StageContext& at) {
        if (at.state.epoch == 1) {
          bias.requires_grad_(false);
          frozen_at = bias.clone();
        }
        losses.push_back(trainer.validate(task, other).front().second);
      });
      trainer.fit(task, train);
      EXPECT_THAT(losses, SizeIs(2));
      EXPECT_TRUE(bias.equal(frozen_at)) << "the freezing before the validation is seen";
    });
  }
}

TEST(EvaluationStages, OfAnotherModuleHideNoFreezing) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(world, in_memory({.max_epochs = 3}));
      TinyTask task;
      TinyTask teacher;
      DataLoader train(tiny_data(8), plan.loader, world);
      DataLoader other(tiny_data(7), plan.eval_loader, world);
      at::Tensor bias = task.module().named_parameters()["bias"];
      bias.requires_grad_(false);
      at::Tensor before;
      Trainer trainer(plan, world);
      trainer.on(Stage::epoch_end, [&](const StageContext& at) {
        if (at.state.epoch == 1) {
          trainer.validate(teacher, other);
        } else if (at.state.epoch == 2) {
          before = bias.clone();
          bias.requires_grad_(true);
        }
      });
      trainer.fit(task, train);
      EXPECT_FALSE(bias.equal(before)) << "trained from the third epoch on";
    });
  }
}

TEST(EvaluationStages, DoNotCallACallbackInsideOfItself) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(world, in_memory({.max_epochs = 2}));
      TinyTask task;
      DataLoader train(tiny_data(8), plan.loader, world);
      DataLoader first(tiny_data(7), plan.eval_loader, world);
      DataLoader second(tiny_data(5), plan.eval_loader, world);
      int outer = 0;
      int all = 0;
      Trainer trainer(plan, world);
      trainer.on(Stage::validation_end, [&](const StageContext&) {
        ++outer;
        trainer.validate(task, second);
      });
      trainer.on(Stage::validation_end, [&](const StageContext&) { ++all; });
      trainer.fit(task, train, &first);
      EXPECT_EQ(outer, 2);
      EXPECT_EQ(all, 4) << "the other callback sees both validations of each epoch";
    });
  }
}

TEST(EvaluationStages, LogNothingAtTheStartAndTheEndOfABatch) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(world, in_memory({.max_epochs = 1}));
  TinyTask task;
  DataLoader train(tiny_data(8), plan.loader, world);
  DataLoader data(tiny_data(7), plan.eval_loader, world);
  for (const auto& [stage, name] : {std::pair{Stage::validation_batch_start, "validation_batch_start"},
                                    std::pair{Stage::validation_batch_end, "validation_batch_end"}}) {
    Trainer trainer(plan, world);
    trainer.on(stage, [](const StageContext& at) { at.log("x", 1); });
    for (const auto& run : {std::function<void()>([&] { trainer.validate(task, data); }),
                            std::function<void()>([&] { trainer.fit(task, train, &data); })}) {
      EXPECT_THAT(message_of(run), HasSubstr(std::string("nothing can be logged at ") + name));
    }
  }
}

/// Replaces a value, and puts back what it found.
class Replacing final : public Callback {
 public:
  Replacing(std::string name, int& value, int with) : name_(std::move(name)), value_(value), with_(with) {}
  std::string name() const override { return name_; }
  std::uint32_t stages() const override { return 0; }
  void on(const StageContext&) override {}
  std::shared_ptr<void> validation_scope() override {
    const int found = std::exchange(value_, with_);
    return std::shared_ptr<void>(&value_, [this, found](void*) { value_ = found; });
  }

 private:
  std::string name_;
  int& value_;
  int with_;
};

TEST(ValidationScopes, EndInReverseOrder) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(world, in_memory({.max_epochs = 1}));
  TinyTask task;
  DataLoader train(tiny_data(8), plan.loader, world);
  DataLoader data(tiny_data(7), plan.eval_loader, world);
  int value = 1;
  Trainer trainer(plan, world);
  trainer.add(std::make_shared<Replacing>("first", value, 2)).add(std::make_shared<Replacing>("second", value, 3));
  trainer.fit(task, train, &data);
  EXPECT_EQ(value, 1);
  trainer.validate(task, data);
  EXPECT_EQ(value, 1);
}

TEST(EpochStart, ComesOnceBeforeEachEpochAlsoWithStops) {
  for (const std::int64_t stop : {1, 3, 4, 5, 8, 9}) {
    const TempDir dir;
    World world = World::single(c10::kCPU);
    std::vector<std::int64_t> steps;
    std::vector<std::int64_t> second;
    for (const std::int64_t limit : {stop, std::int64_t{12}}) {
      const Plan plan = plan_of(
          world,
          {.compute_setup = ComputeSetup::cpu, .max_epochs = 0, .max_steps = limit, .run_dir = dir.path() / "run"});
      TinyTask task;
      DataLoader data(tiny_data(16), plan.loader, world);
      Trainer(plan, world)
          .on(Stage::epoch_start, [&](const StageContext& at) { steps.push_back(at.state.step); })
          .on(Stage::epoch_start, [&](const StageContext& at) { second.push_back(at.state.epoch); }, {.every = 2})
          .fit(task, data);
    }
    EXPECT_THAT(steps, ElementsAre(0, 4, 8)) << stop;
    EXPECT_THAT(second, ElementsAre(0, 2)) << stop;
  }
}

TEST(OnOptions, CanBeASpanOfTime) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(world, in_memory({.max_epochs = 0, .max_steps = 5}));
      const auto steps_with = [&](double seconds) {
        TinyTask task;
        DataLoader data(tiny_data(16), plan.loader, world);
        std::vector<std::int64_t> steps;
        Trainer(plan, world)
            .on(Stage::step_end, [&](const StageContext& at) { steps.push_back(at.state.step); }, {.every_s = seconds})
            .fit(task, data);
        return steps;
      };
      EXPECT_THAT(steps_with(1e-9), ElementsAre(1, 2, 3, 4, 5));
      EXPECT_THAT(steps_with(1e9), IsEmpty());
    });
  }
}

TEST(OnOptions, KeepATimeThatIsDueUntilTheConditionHolds) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(world, in_memory({.max_epochs = 0, .max_steps = 5}));
  TinyTask task;
  DataLoader data(tiny_data(16), plan.loader, world);
  std::vector<std::int64_t> steps;
  const auto begin = std::chrono::steady_clock::now();
  Trainer(plan, world)
      .on(Stage::step_start,
          [&](const StageContext& at) {
            while (at.state.step == 1 && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(50)) {
            }
          })
      .on(Stage::step_end, [&](const StageContext& at) { steps.push_back(at.state.step); },
          {.every_s = 0.04, .when = [](const StageContext& at) { return at.state.step == 4; }})
      .fit(task, data);
  EXPECT_THAT(steps, ElementsAre(4));
}

TEST(OnOptions, RefuseTimesThatDoNotCome) {
  World world = World::single(c10::kCPU);
  Trainer trainer(plan_of(world), world);
  const auto refuse = [&](std::uint32_t stages, const OnOptions& options) {
    return message_of([&] {
      trainer.on(
          stages, [](const StageContext&) {}, options);
    });
  };
  EXPECT_THAT(refuse(Stage::step_end, {.every_s = -1}), HasSubstr("every_s is -1, expected 0 or more"));
  EXPECT_THAT(refuse(Stage::step_end, {.every = 2, .every_s = 1}), HasSubstr("every_s together with every"));
  EXPECT_THAT(refuse(Stage::step_end, {.every_s = 1, .is_light = true}), HasSubstr("leave out is_light"));
  EXPECT_THAT(refuse(Stage::step_start, {.every_s = 1}), HasSubstr("inside a step or a loop"));
  EXPECT_THAT(refuse(Stage::predict_batch_start, {.every_s = 1}), HasSubstr("inside a step or a loop"));
  EXPECT_EQ(refuse(Stage::step_end, {.every_s = 1}), "no error");
  EXPECT_THAT(refuse(Stage::step_end | Stage::fit_end, {.every = 10}), HasSubstr("every at a stage that comes once"));
  EXPECT_EQ(refuse(Stage::checkpoint_saved, {.every = 10}), "no error");
}

TEST(OnOptions, CountBatchesAtTheirStartsAndEnds) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(world);
  TinyTask task;
  DataLoader data(tiny_data(20), plan.eval_loader, world);
  for (const Stage stage : {Stage::test_batch_start, Stage::test_batch_end}) {
    std::vector<std::int64_t> numbers;
    Trainer trainer(plan, world);
    trainer.on(stage, [&](const StageContext& at) { numbers.push_back(at.batch_number); }, {.every = 2});
    trainer.test(task, data);
    EXPECT_THAT(numbers, ElementsAre(2, 4));
  }
}

TEST(OnCommand, RefusesWordsThatCannotBeGiven) {
  World world = World::single(c10::kCPU);
  Trainer trainer(plan_of(world), world);
  const auto refuse = [&](const std::string& word) {
    return message_of([&] { trainer.on_command(word, [](const StageContext&) {}); });
  };
  for (const std::string wrong : {"", "a b", "../x", "Sample", "a.b"}) {
    EXPECT_THAT(refuse(wrong), HasSubstr("use the characters a-z, 0-9, - and _")) << wrong;
  }
  EXPECT_THAT(refuse("stop"), HasSubstr("the word stop is in use"));
  EXPECT_EQ(refuse("sample_2"), "no error");
  EXPECT_THAT(refuse("sample_2"), HasSubstr("the word sample_2 is in use"));
}

TEST(EvaluationStages, RefuseMetricsThatDifferBetweenRanks) {
  for (const bool differ : {false, true}) {
    const auto validate = [&] {
      thread_world(2, [&](World& world) {
        const Plan plan = plan_of(world);
        TinyTask task;
        DataLoader data(tiny_data(7), plan.eval_loader, world);
        Trainer trainer(plan, world);
        trainer.on(Stage::validation_end, [&](const StageContext& at) { at.log("mine", differ ? world.rank() : 1); });
        trainer.validate(task, data);
      });
    };
    if (differ) {
      EXPECT_THAT(message_of<CommError>(validate), HasSubstr("rank 1 logs other metrics than the others"));
    } else {
      EXPECT_NO_THROW(validate());
    }
  }
}

}  // namespace
}  // namespace lockstep
