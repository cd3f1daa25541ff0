// Requests to stop and to save: who gets them, when, and how often.
#include <functional>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>

#include "support/at_stage.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "trainer/agreed_stop.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using testing::Not;

Plan plan_of(int ranks, TrainConfig config) {
  config.batch_size = 4;
  return plan_for(ranks, config);
}

/// Three fits of one program at 1 and 2 ranks; `after_third_step` and `check` know which fit it is.
void three_fits(const std::function<void(int fold, TrainControl& control, bool last_rank)>& after_third_step,
                const std::function<void(int fold, const FitResult& result, const TrainControl& control)>& check) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(ranks, in_memory({.max_epochs = 0, .max_steps = 9}));
      TrainControl control;
      for (int fold = 0; fold < 3; ++fold) {
        TinyTask task;
        DataLoader data(tiny_data(64), plan.loader, world);
        Trainer trainer(plan, world, control);
        trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
          if (context.state.step == 3) {
            after_third_step(fold, context.control, world.rank() == ranks - 1);
          }
        }));
        check(fold, trainer.fit(task, data), control);
      }
    });
  }
}

TEST(SecondFit, IsNotStoppedByWhatTheProgramAskedOfTheFirst) {
  three_fits(
      [](int fold, TrainControl& control, bool last_rank) {
        if (fold == 0 && last_rank) {
          control.request_stop("good enough");
          control.request_checkpoint();
        }
      },
      [](int fold, const FitResult& result, const TrainControl& control) {
        ASSERT_EQ(result.stop, fold == 0 ? StopKind::program : StopKind::none);
        ASSERT_EQ(result.state.step, fold == 0 ? 4 : 9);
        ASSERT_EQ(control.agreed(), result.stop);
      });
}

TEST(SecondFit, DoesNotForgetASignal) {
  three_fits(
      [](int, TrainControl& control, bool last_rank) {
        control.request_stop("good enough");
        if (last_rank) {
          control.request_stop_from_signal(StopKind::terminate);
        }
      },
      [](int fold, const FitResult& result, const TrainControl&) {
        ASSERT_EQ(result.stop, StopKind::terminate);
        ASSERT_EQ(result.state.step, fold == 0 ? 4 : 0);
        ASSERT_THAT(result.why, HasSubstr("a signal requested a stop"));
      });
}

// An update in every fourth step only.
class Skipping : public TinyTask {
 public:
  void optimize(Step& step) override {
    if (step.number() % 4 == 3) {
      Task::optimize(step);
    }
  }
};

TEST(SaveRequest, IsHeldUntilAReductionAndActedOnOnce) {
  for (const int ranks : {1, 2, 3}) {
    for (const int asked_after : {1, 2, 3, 4, 5}) {
      const TempDir dir;
      thread_world(ranks, [&](World& world) {
        TrainConfig config{.compute_setup = ComputeSetup::cpu, .max_steps = 17, .run_dir = dir.path() / "run"};
        config.checkpoint.every_epochs = 0;
        config.checkpoint.async = false;
        const Plan plan = plan_of(ranks, config);
        Skipping task;
        DataLoader data(tiny_data(512), plan.loader, world);
        std::vector<std::int64_t> saved;
        Trainer trainer(plan, world);
        trainer.add(at_stage(Stage::step_end | Stage::checkpoint_saved, [&](const StageContext& context) {
          if (context.stage == Stage::checkpoint_saved) {
            saved.push_back(context.state.step);
          } else if (context.state.step == asked_after && world.rank() == ranks - 1) {
            context.control.request_checkpoint();
          }
        }));
        trainer.fit(task, data);
        ASSERT_THAT(saved, ElementsAre(asked_after < 4 ? 4 : 8, 17)) << ranks << " ranks, after " << asked_after;
      });
    }
  }
}

// 40 samples of each rank; from `pause` on they come when the gate is open.
std::unique_ptr<Stream> pausing_stream(std::int64_t pause, std::promise<void>& gate) {
  return sample_stream(
      [pause, open = gate.get_future().share()](std::int64_t, int rank, int) -> SampleSource {
        return [pause, open, rank, i = 0]() mutable -> std::optional<Batch> {
          if (i == pause) {
            open.wait();
          }
          const auto x = at::sin(at::arange(4, at::kFloat) + 0.37 * (100 * rank + i));
          return i++ < 40 ? std::optional<Batch>(Batch{.input = x, .target = x.sum(0, true)}) : std::nullopt;
        };
      },
      {}, [&gate] { gate.set_value(); });
}

// The last rank is asked after its third step, while the first rank has no data for the fifth.
TEST(StopRequest, EndsTheWaitForAStreamAndIsResumedExactly) {
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    std::vector<at::Tensor> straight;
    for (const std::string run : {"straight", "stopped", "resumed"}) {
      thread_world(ranks, [&](World& world) {
        TrainConfig config{.compute_setup = ComputeSetup::cpu,
                           .max_steps = 8,
                           .global_batch_size = 4 * ranks,
                           .run_dir = dir.path() / (run == "straight" ? "a" : "b")};
        config.batch_size = 2;
        config.checkpoint.async = false;
        const Plan plan = plan_for(ranks, config);
        const bool stops = run == "stopped";
        std::promise<void> gate;
        TinyTask task;
        DataLoader data(pausing_stream(stops && world.rank() == 0 ? 18 : -1, gate), plan.loader, world);
        Trainer trainer(plan, world);
        trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
          if (stops && context.state.step == 3 && world.rank() == ranks - 1) {
            context.control.request_stop("the test", StopKind::terminate);
          }
        }));
        const FitResult result = trainer.fit(task, data);
        ASSERT_EQ(result.stop, stops ? StopKind::terminate : StopKind::none);
        ASSERT_EQ(result.state.step, stops ? 3 : 8);
        if (world.is_main() && run == "straight") {
          straight = weights_of(task);
        } else if (world.is_main() && !stops) {
          for (std::size_t i = 0; i < straight.size(); ++i) {
            ASSERT_TRUE(weights_of(task)[i].equal(straight[i])) << ranks << " ranks";
          }
        }
      });
    }
  }
}

TEST(SaveByTime, ComesWithATaskThatSkipsReductions) {
  const TempDir dir;
  TrainConfig config{.compute_setup = ComputeSetup::cpu,
                     .max_epochs = 0,
                     .max_steps = 1'000'000,
                     .batch_size = 4,
                     .run_dir = dir.path() / "run"};
  config.checkpoint.every_epochs = 0;
  config.checkpoint.every_s = 0.05;
  Session session = Session::single(config);
  Skipping task;
  DataLoader data(tiny_data(512), session.plan.loader, session.world);
  int saves = 0;
  Trainer trainer(session);
  trainer.add(at_stage(Stage::checkpoint_saved, [&](const StageContext& context) {
    if (++saves == 3) {
      context.control.request_stop("enough");
    }
  }));
  const auto began = std::chrono::steady_clock::now();
  trainer.fit(task, data);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(150)) << "one by one";
}

// Notes its batches, and asks for a stop in one.
class Validated : public TinyTask {
 public:
  Validated(World& world, TrainControl control, StopKind kind) : world_(world), control_(control), kind_(kind) {}
  StepOutput validation_step(const Batch& batch) override {
    if (++seen == 3 && world_.rank() == world_.size() - 1) {
      control_.request_stop("enough", kind_);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(40));  // the ranks look for it every second
    return training_step(batch);
  }
  int seen = 0;

 private:
  World& world_;
  TrainControl control_;
  StopKind kind_;
};

TEST(Validation, LooksForAStopAndIsNotReportedWhenItWasCut) {
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    thread_world(ranks, [&](World& world) {
      TrainConfig config{.compute_setup = ComputeSetup::cpu, .max_epochs = 2, .run_dir = dir.path() / "run"};
      config.checkpoint.monitor = "val_loss";
      const Plan plan = plan_of(ranks, config);
      TrainControl control;
      Validated task(world, control, StopKind::terminate);
      DataLoader data(tiny_data(16), plan.loader, world);
      DataLoader validation(tiny_data(4 * ranks * 200), plan.eval_loader, world);
      int reported = 0;
      Trainer trainer(plan, world, control);
      trainer.add(at_stage(Stage::validation_end, [&](const StageContext&) { ++reported; }));
      const FitResult result = trainer.fit(task, data, &validation);
      ASSERT_EQ(result.stop, StopKind::terminate);
      ASSERT_EQ(result.state.epoch, 1) << "no further step";
      ASSERT_EQ(result.state.step, 4 / ranks);
      ASSERT_LT(task.seen, 150);
      ASSERT_EQ(reported, 0);
      ASSERT_EQ(validation.position().consumed, 0);
      const int before = task.seen;
      ASSERT_THROW(trainer.validate(task, validation), Stopped) << "the signal still holds";
      ASSERT_LT(task.seen - before, 3);
    });
    EXPECT_THAT(read_text(dir.path() / "run" / "metrics.jsonl"), Not(HasSubstr("val_loss")));
  }
}

// The loop is over when its last callbacks are called.
TEST(Validation, OutsideAFitLeavesNoStopForTheNextFit) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(1, in_memory({.max_epochs = 1}));
  TinyTask task;
  DataLoader data(tiny_data(16), plan.loader, world);
  TrainControl control;
  Trainer trainer(plan, world, control);
  trainer.on(Stage::validation_end | Stage::test_end,
             [](const StageContext& at) { at.control.request_stop("good enough"); });
  trainer.validate(task, data);
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  trainer.test(task, data);
  EXPECT_EQ(trainer.fit(task, data).state.step, 4);
  control.request_stop("of the program");
  EXPECT_THROW(trainer.validate(task, data), Stopped);
}

TEST(Validation, StoppedInItsLastBatchIsReportedAndEndsTheRun) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(ranks, in_memory({.max_epochs = 3}));
      TrainControl control;
      Validated task(world, control, StopKind::program);
      DataLoader data(tiny_data(16), plan.loader, world);
      DataLoader validation(tiny_data(4 * ranks * 3), plan.eval_loader, world);
      int reported = 0;
      Trainer trainer(plan, world, control);
      trainer.add(at_stage(Stage::validation_end, [&](const StageContext&) { ++reported; }));
      ASSERT_EQ(trainer.fit(task, data, &validation).state.epoch, 1);
      ASSERT_EQ(reported, 1);
    });
  }
}

TEST(AgreedStop, IsSeenByAllRanksAfterTheSameBatch) {
  thread_world(3, [](World& world) {
    TrainControl control;
    AgreedStop stop(world, control);
    int batch = 0;
    for (bool found = false; !found; found = stop.look()) {
      if (++batch == 20 && world.rank() == 1) {
        control.request_stop_from_signal(StopKind::terminate);
      }
    }
    const auto all = world.gather(std::to_string(batch));
    ASSERT_EQ(all[0], all[1]);
    ASSERT_EQ(all[0], all[2]);
    ASSERT_GE(batch, 20);
  });
}

// Later batches may be much slower.
TEST(AgreedStop, IsSeenAfterFewBatchesHoweverFastTheyWere) {
  thread_world(2, [](World& world) {
    TrainControl control;
    AgreedStop stop(world, control);
    for (int batch = 0; batch < 5000; ++batch) {
      ASSERT_FALSE(stop.look());
    }
    control.request_stop_from_signal(StopKind::terminate);
    int more = 1;
    while (!stop.look()) {
      ++more;
    }
    ASSERT_LE(more, 16);
  });
}

}  // namespace
}  // namespace lockstep
