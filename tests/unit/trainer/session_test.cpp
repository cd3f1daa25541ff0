// What a program meets that makes its Session itself, and the corners of a Task.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/variables.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/data/replay_buffer.h>
#include <lockstep/run.h>
#include <lockstep/trainer/trainer.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Session, SeedsTheGenerators) {
  const auto first_numbers = [](std::uint64_t seed) {
    const Session session = Session::single(in_memory({.seed = seed}));
    return at::rand({4});
  };
  const auto numbers = first_numbers(1);
  EXPECT_TRUE(at::equal(numbers, first_numbers(1)));
  EXPECT_FALSE(at::equal(numbers, first_numbers(2)));
}

TEST(Session, CallsSettingsByTheirFields) {
  const auto error = error_of<ConfigError>([&] { Session::single({.max_epochs = 0, .sampler = {.shuffle = false}}); });
  EXPECT_THAT(error.what(), HasSubstr("config.max_epochs 0 with config.max_steps 0: the run would never end"));
  EXPECT_THAT(error.hint(), HasSubstr("for example config.max_epochs 1"));
}

TEST(Session, LogsTheWarningsOfItsPlan) {
  CapturedStderr captured;
  Session::single(in_memory({.precision = Precision::fp16}));
  EXPECT_THAT(captured.text(), HasSubstr("config.precision fp16 on the CPU is slow; use config.precision bf16"));
}

TEST(Session, StartsOverWhereItIsAskedTo) {
  const TempDir dir;
  TrainConfig config{.compute_setup = ComputeSetup::cpu, .batch_size = 4, .run_dir = (dir.path() / "run").string()};
  const auto steps_of_a_run = [&config] {
    Session session = Session::single(config);
    TinyTask task;
    DataLoader data(tiny_data(8), session.plan.loader, session.world);
    std::int64_t steps = 0;
    for (int fit = 0; fit < 2; ++fit) {  // the second goes on where the first one ended
      session.plan.config.max_epochs = fit + 1;
      steps = Trainer(session).fit(task, data).state.step;
    }
    return steps;
  };
  EXPECT_EQ(steps_of_a_run(), 4);
  config.fresh = true;
  EXPECT_EQ(steps_of_a_run(), 4);
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "run.1")) << "the old run";
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run.2")) << "once per session";
}

TEST(Run, RefusesAnEmptyArgv) {
  CapturedStderr captured;
  EXPECT_EQ(run({}, 0, nullptr, [](Session&) { ADD_FAILURE() << "the worker was called"; }), 2);
  EXPECT_THAT(captured.text(), HasSubstr("lockstep::run: argv is empty"));
}

// What a program starts later would take them for a launcher's.
TEST(Session, SetsNoVariableOfALauncher) {
  Session session = Session::single(in_memory({.batch_size = 4}));
  TinyTask task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  const Variables environment = read_environment();
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_FALSE(environment.has(name)) << name;
  }
}

/// What fit() writes to standard error.
std::string printed_by(Trainer trainer, Session& session) {
  TinyTask task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  CapturedStderr captured;
  trainer.fit(task, data);
  return captured.text();
}

TEST(Trainer, PrintsOnlyWhereSomebodyReads) {
  Session session = Session::single(in_memory({.batch_size = 4, .report = {.every_steps = 1}}));
  EXPECT_THAT(printed_by(Trainer(session), session), HasSubstr("loss"));
  EXPECT_EQ(printed_by(Trainer(session.plan, session.world), session), "") << "embedded in another program";
  set_log_level(LogLevel::off);
  EXPECT_EQ(printed_by(Trainer(session), session), "");
  set_log_level(LogLevel::info);
}

TEST(Trainer, GivesItsReportsToTheLogOfTheProgram) {
  std::vector<std::string> lines;
  const LogScope scope([&](LogLevel, std::string_view message) { lines.emplace_back(message); });
  Session session = Session::single(in_memory({.batch_size = 4, .report = {.every_steps = 1}}));
  EXPECT_EQ(printed_by(Trainer(session), session), "");
  EXPECT_THAT(lines, testing::Contains(HasSubstr("step 1 |")));
  const std::size_t before = lines.size();
  session.print("two\nlines");
  EXPECT_EQ(lines.size(), before + 2);
}

// Each rank has a log of its own. A worker of the loader says that a sample is bad.
TEST(Trainer, GivesTheLinesOfItsThreadsToTheLogOfItsRank) {
  for (const int ranks : {1, 2}) {
    std::vector<std::vector<std::string>> lines(static_cast<std::size_t>(ranks));
    CapturedStderr captured;
    thread_world(ranks, [&](World& world) {
      std::mutex mutex;
      std::vector<std::string>& mine = lines[static_cast<std::size_t>(world.rank())];
      const LogScope scope([&](LogLevel level, std::string_view message) {
        const std::lock_guard lock(mutex);
        mine.push_back((level == LogLevel::warning ? "warning: " : "") + std::string(message));
      });
      const Plan plan = plan_for(ranks, in_memory({.global_batch_size = 4,
                                                   .data = {.workers = 1, .max_bad_samples = 1},
                                                   .sampler = {.shuffle = false}}));
      const auto samples = sample_dataset(8, [](std::int64_t id, std::uint64_t) -> Batch {
        if (id == 3) {
          throw std::runtime_error("torn file");
        }
        return {.input = at::full({4}, static_cast<double>(id)), .target = at::ones({1})};
      });
      DataLoader data(samples, plan.loader, world);
      TinyTask task;
      Trainer(plan, world).fit(task, data);
      log_warning("the end");
    });
    EXPECT_THAT(captured.text(), testing::Not(HasSubstr("torn file"))) << ranks;
    for (const auto& of_rank : lines) {  // the last rank has samples 2 and 3 of the first step
      EXPECT_THAT(of_rank, testing::Contains("warning: the end"));
      const auto bad = testing::Contains(AllOf(StartsWith("warning: bad sample 3"), HasSubstr("torn file")));
      EXPECT_THAT(of_rank, testing::Conditional(&of_rank == &lines.back(), bad, testing::Not(bad)));
    }
  }
}

TEST(Trainer, SaysWhereNothingMayBeSavedBeforeTheEnd) {
  for (const double every_s : {0.0, 600.0}) {
    const TempDir dir;
    Session session = Session::single({.compute_setup = ComputeSetup::cpu,
                                       .max_epochs = 0,
                                       .max_steps = 2,
                                       .global_batch_size = 4,
                                       .run_dir = (dir.path() / "run").string(),
                                       .checkpoint = {.every_s = every_s}});
    TinyTask task;
    ReplayBuffer buffer(/*capacity=*/8, session.plan.loader, session.world);
    buffer.add({.input = at::ones({4, 4}), .target = at::ones({4, 1})});
    CapturedStderr captured;
    Trainer(session).fit(task, buffer);
    EXPECT_EQ(captured.text().find("no checkpoint is saved before the first end of an epoch") == std::string::npos,
              every_s > 0);
  }
}

/// Notes the numbers of its samples.
class Noting final : public TinyTask {
 public:
  StepOutput training_step(const Batch& batch) override {
    for (std::int64_t row = 0; row < batch.samples; ++row) {
      numbers.push_back(batch["number"][row].item<std::int64_t>());
    }
    return TinyTask::training_step(batch);
  }
  std::vector<std::int64_t> numbers{};
};

Batch numbered(std::int64_t number) {
  return {
      .input = at::ones({4}), .target = at::ones({1}), .fields = {{"number", at::scalar_tensor(number, at::kLong)}}};
}

std::unique_ptr<Stream> numbered_stream() {
  return sample_stream([](std::int64_t, int, int) -> SampleSource {
    return [i = std::int64_t{0}]() mutable { return i < 8 ? std::optional(numbered(i++)) : std::nullopt; };
  });
}

TEST(Trainer, SaysWhereItBeginsInAStreamOfUnknownLength) {
  for (const std::int64_t steps_per_epoch : {0, 2}) {
    Session session = Session::single(in_memory({.batch_size = 4, .data = {.steps_per_epoch = steps_per_epoch}}));
    Noting task;
    DataLoader data(numbered_stream(), session.plan.loader, session.world);
    data.next();
    CapturedStderr captured;
    Trainer(session).fit(task, data);
    const bool goes_on = steps_per_epoch == 0;
    EXPECT_EQ(task.numbers.front(), goes_on ? 4 : 0);
    EXPECT_EQ(captured.text().find("the training begins after 4 samples of the epoch, taken before this fit") !=
                  std::string::npos,
              goes_on);
  }
}

// As a loop that collects transitions and trains in turns.
TEST(Trainer, GoesOnInAReplayBufferInEachFit) {
  Session session = Session::single(in_memory({.max_steps = 2, .batch_size = 4}));
  ReplayBuffer buffer(64, session.plan.loader, session.world);
  for (std::int64_t i = 0; i < 64; ++i) {
    buffer.add(
        {.input = at::ones({1, 4}), .target = at::ones({1, 1}), .fields = {{"number", at::full({1}, i, at::kLong)}}});
  }
  std::vector<std::int64_t> numbers;
  CapturedStderr captured;
  Trainer trainer(session);
  for (int round = 0; round < 3; ++round) {
    Noting task;
    trainer.fit(task, buffer);
    EXPECT_NE(task.numbers, numbers) << round;
    numbers = task.numbers;
  }
  EXPECT_EQ(captured.text().find("the training begins after"), std::string::npos);
}

class WithoutData final : public TinyTask {
 public:
  StepOutput training_step(const Batch&) override { return net_(at::ones({1, 4})).square().mean(); }
};

TEST(Trainer, SaysThatTheDataDecideTheStepsOfAnEpoch) {
  for (const std::int64_t steps : {5, 3}) {
    Session session = Session::single(in_memory({.batch_size = 4, .data = {.steps_per_epoch = 5}}));
    WithoutData task;
    DataLoader data = DataLoader::none(steps, session.world);
    CapturedStderr captured;
    Trainer(session).fit(task, data);
    EXPECT_EQ(captured.text().find("data.steps_per_epoch 5 does not apply: the training data say that an epoch has 3 "
                                   "steps") != std::string::npos,
              steps == 3);
  }
}

TEST(Trainer, OfAPlanHasTheRequestsOfItsRun) {
  for (const bool is_of_run : {false, true}) {
    Session session = Session::single(in_memory({.max_epochs = 2, .batch_size = 4}));
    if (is_of_run) {
      WorldAccess::control_of_run(session.world) = session.control;
    }
    TinyTask task;
    DataLoader data(tiny_data(8), session.plan.loader, session.world);
    const FitResult result = Trainer(session.plan, session.world)
                                 .on(Stage::step_end,
                                     [&](const StageContext& at) {
                                       if (at.state.step == 1) {
                                         session.control.request_stop("a signal", StopKind::terminate);
                                       }
                                     })
                                 .fit(task, data);
    EXPECT_EQ(result.state.step, is_of_run ? 2 : 4) << result.why;  // the request travels with a step
  }
}

/// Optimizes by hand: no training_step.
class ByHand final : public Task {
 public:
  torch::nn::Module& module() override { return task_.module(); }
  std::vector<OptimizerSpec> optimizers() override { return task_.optimizers(); }
  void optimize(Step& step) override {
    OptimizerStep& optimizer = step.optimizer();
    for (const Batch& batch : step.batches()) {
      optimizer.zero_grad();
      const StepOutput out = optimizer.forward(batch, [this](const Batch& b) { return task_.training_step(b); });
      optimizer.backward(out);
      step.add(out);
      optimizer.update();
    }
  }

 private:
  TinyTask task_;
};

TEST(Task, NeedsNoTrainingStepWhereItOptimizesByHand) {
  Session session = Session::single(in_memory({.batch_size = 4}));
  ByHand task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_EQ(Trainer(session).fit(task, data).state.step, 2);
}

class Unfinished final : public Task {
 public:
  torch::nn::Module& module() override { return task_.module(); }
  std::vector<OptimizerSpec> optimizers() override { return task_.optimizers(); }

 private:
  TinyTask task_;
};

TEST(Task, SaysThatTheTrainingStepIsMissing) {
  Session session = Session::single(in_memory({.batch_size = 4}));
  Unfinished task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  const auto error = error_of<ConfigError>([&] { Trainer(session).fit(task, data); });
  EXPECT_STREQ(error.what(), "the task has no training_step()");
  EXPECT_THAT(error.hint(), HasSubstr("override it, or override optimize()"));
}

class AtTheEnd final : public Callback {
 public:
  std::string name() const override { return "at_the_end"; }
  std::uint32_t stages() const override { return Stage::fit_end; }
  void on(const StageContext& context) override { stage = context.stage; }
  std::uint32_t stage = 0;
};

TEST(Callback, TakesAStageForAMask) {
  Session session = Session::single(in_memory({.batch_size = 4}));
  TinyTask task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  const auto callback = std::make_shared<AtTheEnd>();
  Trainer(session).add(callback).fit(task, data);
  EXPECT_EQ(callback->stage, Stage::fit_end);
}

}  // namespace
}  // namespace lockstep
