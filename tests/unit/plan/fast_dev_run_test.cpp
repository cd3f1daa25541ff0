// Runs that leave nothing behind: a trial of few steps, and a measurement of the steps alone.
#include <gtest/gtest.h>

#include <lockstep/plan/plan.h>

namespace lockstep {
namespace {

TEST(FastDevRun, LimitsEveryLoopAndTurnsFilesOff) {
  const TrainConfig asked{.compute_setup = ComputeSetup::cpu,
                          .max_epochs = 90,
                          .max_steps = 7,
                          .min_epochs = 5,
                          .fast_dev_run = 4,
                          .fresh = true,
                          .validate = {.every_epochs = 2, .at_start = true},
                          .predict = {.max_batches = 99},
                          .report = {.tensorboard = true, .record = 5, .log_dir = "logs"}};
  const Plan plan = resolve(asked, {.cores = 4}, std::nullopt);
  const TrainConfig& config = plan.config;
  EXPECT_EQ(config.max_epochs, 0);
  EXPECT_EQ(config.max_steps, 4);
  EXPECT_EQ(config.min_epochs, 0);
  EXPECT_EQ(config.validate.every_steps, 4);
  EXPECT_EQ(config.validate.max_batches, 4);
  EXPECT_EQ(config.test.max_batches, 4);
  EXPECT_EQ(config.predict.max_batches, 4);
  EXPECT_FALSE(config.validate.at_start);
  EXPECT_FALSE(config.checkpoint.enabled || config.report.jsonl || config.report.csv || config.report.tensorboard);
  EXPECT_EQ(config.report.record, 0);
  EXPECT_EQ(config.report.log_dir, "");
  EXPECT_FALSE(config.fresh) << "an old run would be renamed";
  EXPECT_EQ(plan.asked->max_steps, 7);
}

TEST(FastDevRun, IsOffByDefault) {
  const Plan plan = resolve({.compute_setup = ComputeSetup::cpu, .max_epochs = 3}, {.cores = 4}, std::nullopt);
  EXPECT_EQ(plan.config.max_epochs, 3);
  EXPECT_TRUE(plan.config.checkpoint.enabled);
}

TEST(Barebones, LeavesTheStepsAlone) {
  const TrainConfig asked{.compute_setup = ComputeSetup::cpu,
                          .max_steps = 7,
                          .barebones = true,
                          .fresh = true,
                          .validate = {.every_steps = 2, .at_start = true, .sanity_steps = 2},
                          .dist = {.check_replicas = true},
                          .report = {.tensorboard = true, .prometheus = true, .command = "cat", .step_times = true}};
  const Plan plan = resolve(asked, {.cores = 4}, std::nullopt);
  const TrainConfig& config = plan.config;
  EXPECT_EQ(config.max_steps, 7);
  EXPECT_EQ(config.report.every_steps, 0);
  EXPECT_EQ(config.validate.every_epochs, 0);
  EXPECT_EQ(config.validate.every_steps, 0);
  EXPECT_EQ(config.validate.sanity_steps, 0);
  EXPECT_FALSE(config.validate.at_start || config.checkpoint.enabled || config.report.progress || config.report.jsonl ||
               config.report.csv || config.report.tensorboard || config.report.prometheus || config.report.step_times ||
               config.dist.check_replicas || config.fresh);
  EXPECT_EQ(config.report.command, "");
  EXPECT_EQ(config.resume, "never");
}

}  // namespace
}  // namespace lockstep
