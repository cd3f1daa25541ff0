#include <gtest/gtest.h>

#include <lockstep/optim/lr_schedule.h>

namespace lockstep {
namespace {

struct Golden {
  std::int64_t step;
  double factor;
};

void expect_factors(const OptimConfig& config, std::int64_t total, std::initializer_list<Golden> table) {
  for (const Golden& row : table) {
    EXPECT_NEAR(lr_factor(config, total, row.step), row.factor, 1e-12) << "step " << row.step;
  }
}

TEST(LrFactor, IsOneWithoutSettings) { expect_factors({}, 0, {{0, 1}, {1, 1}, {1'000'000'000'000, 1}}); }

TEST(LrFactor, WarmsUpInALine) {
  OptimConfig config;
  config.warmup_steps = 4;
  expect_factors(config, 0, {{0, 0.25}, {1, 0.5}, {2, 0.75}, {3, 1}, {4, 1}, {400, 1}});
}

TEST(LrFactor, FallsAlongTheCosine) {
  OptimConfig config;
  config.schedule = ScheduleKind::cosine;
  config.warmup_steps = 10;
  config.decay_steps = 110;
  config.min_lr_ratio = 0.1;
  expect_factors(config, 5,
                 {{9, 1},
                  {10, 1},
                  {35, 0.1 + 0.9 * 0.5 * (1 + 0.70710678118654752)},
                  {60, 0.55},
                  {110, 0.1},
                  {111, 0.1},
                  {10'000, 0.1}});
}

TEST(LrFactor, EndsWithTheRunByDefault) {
  OptimConfig config;
  config.schedule = ScheduleKind::cosine;
  expect_factors(config, 100, {{0, 1}, {50, 0.5}, {75, 0.5 * (1 - 0.70710678118654752)}, {100, 0}});
}

TEST(LrFactor, IsAtTheMinimumWhenTheWarmUpOutlastsTheDecay) {
  OptimConfig config;
  config.schedule = ScheduleKind::cosine;
  config.warmup_steps = 10;
  config.decay_steps = 10;
  config.min_lr_ratio = 0.2;
  expect_factors(config, 0, {{9, 1}, {10, 0.2}, {11, 0.2}});
}

}  // namespace
}  // namespace lockstep
