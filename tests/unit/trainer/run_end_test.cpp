#include "trainer/output/run_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::EndsWith;

TEST(RunEnd, SaysWhichCommandContinuesTheRun) {
  const auto text = [](const TrainConfig& config, bool saved = true) {
    return describe_end({.plan = {.config = config, .asked = config},
                         .step = 20,
                         .epoch = 2,
                         .stop = {.kind = StopKind::terminate, .text = "SIGTERM"},
                         .saved = saved && config.checkpoint.enabled});
  };
  TrainConfig config{.run_dir = "runs/a"};
  EXPECT_EQ(text(config),
            "stopped at step 20, epoch 2: SIGTERM, saved in runs/a; run the same command again to continue");
  config.resume = "runs/b";
  EXPECT_EQ(text(config, /*saved=*/false),
            "stopped at step 20, epoch 2: SIGTERM; run the same command again to continue");
  config.resume = "auto";
  config.fresh = true;
  EXPECT_THAT(text(config), EndsWith("; run the same command without --fresh to continue"));
  config.dist.requeue = true;
  EXPECT_THAT(text(config), EndsWith("; run the same command again to continue"));
  config.fresh = config.dist.requeue = false;
  for (const char* resume : {"never", "best", "runs/b"}) {
    config.resume = resume;
    EXPECT_THAT(text(config), EndsWith("; run the same command with --resume auto to continue")) << resume;
  }
  config.resume = "auto";
  config.run_dir = "runs/{n}";
  const Plan plan{.config = TrainConfig{.run_dir = "runs/3"}, .asked = config};
  EXPECT_EQ(change_of_command(plan, "runs/3", /*saved=*/true), " with --run_dir runs/3");
  config.run_dir = "runs/a";
  config.checkpoint.weights_only = true;
  EXPECT_THAT(text(config), EndsWith("(only the weights: the run cannot be continued)"));
  config.checkpoint.enabled = false;
  config.checkpoint.weights_only = false;
  EXPECT_EQ(text(config), "stopped at step 20, epoch 2: SIGTERM; nothing is saved");
}

TEST(RunEnd, AdvisesGraphsIfTheGpuMostlyWaitedForTheHost) {
  EXPECT_THAT(advice_on_calls(0.934),
              testing::Optional(testing::StartsWith("the GPU waited for the calls of the host in 93 % of the steps: "
                                                    "with --cuda_graphs true")));
  EXPECT_EQ(advice_on_calls(0.5), std::nullopt);
  EXPECT_EQ(advice_on_calls(0), std::nullopt);
}

TEST(RunEnd, NamesTheLimitThatEndedTheRun) {
  const TrainConfig config{.run_dir = "runs/a"};
  const Plan plan{.config = config, .asked = config};
  EXPECT_EQ(describe_end({.plan = plan, .step = 157, .epoch = 1, .limit = "--max_epochs 1", .saved = true}),
            "finished at step 157, epoch 1 (--max_epochs 1), saved in runs/a");
  EXPECT_EQ(describe_end({.plan = plan, .step = 157, .epoch = 1}), "finished at step 157, epoch 1") << "the data ended";
  TrainConfig weights = config;
  weights.checkpoint.weights_only = true;
  EXPECT_EQ(
      describe_end({.plan = {.config = weights, .asked = weights}, .step = 157, .epoch = 1, .was_finished = true}),
      "nothing to do: this run is finished (step 157, epoch 1); start over with --fresh");
  Plan numbered{.config = {.run_dir = "runs/3"}, .asked = TrainConfig{.run_dir = "runs/{n}"}};
  const auto end_of_numbered = [&] { return describe_end({.plan = numbered, .was_finished = true}); };
  EXPECT_THAT(end_of_numbered(), EndsWith("or --max_steps, or start a new launch for a new run")) << "a requeued job";
  numbered.config.resume = "last";
  EXPECT_THAT(end_of_numbered(), EndsWith("or --max_steps, or leave out --resume for a new run"));
}

}  // namespace
}  // namespace lockstep
