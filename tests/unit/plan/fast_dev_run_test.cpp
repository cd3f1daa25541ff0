// A trial: few steps, and nothing is written.
#include <gtest/gtest.h>

#include <lockstep/plan/plan.h>

namespace lockstep {
namespace {

TEST(FastDevRun, LimitsTrainingAndValidationAndTurnsFilesOff) {
  const TrainConfig asked{.compute_setup = ComputeSetup::cpu,
                          .max_epochs = 90,
                          .max_steps = 7,
                          .min_epochs = 5,
                          .fast_dev_run = 4,
                          .fresh = true,
                          .validate = {.every_epochs = 2, .at_start = true},
                          .report = {.tensorboard = true, .record = 5}};
  const Plan plan = resolve(asked, {.cores = 4}, std::nullopt);
  const TrainConfig& config = plan.config;
  EXPECT_EQ(config.max_epochs, 0);
  EXPECT_EQ(config.max_steps, 4);
  EXPECT_EQ(config.min_epochs, 0);
  EXPECT_EQ(config.validate.every_steps, 4);
  EXPECT_EQ(config.validate.max_batches, 4);
  EXPECT_FALSE(config.validate.at_start);
  EXPECT_FALSE(config.checkpoint.enabled || config.report.jsonl || config.report.csv || config.report.tensorboard);
  EXPECT_EQ(config.report.record, 0);
  EXPECT_FALSE(config.fresh) << "an old run would be renamed";
  EXPECT_EQ(plan.asked->max_steps, 7);
}

TEST(FastDevRun, IsOffByDefault) {
  const Plan plan = resolve({.compute_setup = ComputeSetup::cpu, .max_epochs = 3}, {.cores = 4}, std::nullopt);
  EXPECT_EQ(plan.config.max_epochs, 3);
  EXPECT_TRUE(plan.config.checkpoint.enabled);
}

}  // namespace
}  // namespace lockstep
