#include "trainer/run_limits.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// Such as a run that goes on with larger batches.
TEST(RunLimits, CountTheStepsOfEpochsOfDifferentLengths) {
  const TrainConfig config{.max_epochs = 8};
  RunLimits limits(config);
  limits.begin_epoch(/*epoch=*/2, /*first_step=*/18, /*steps=*/1);
  EXPECT_EQ(limits.steps(), 18 + 6);
  EXPECT_EQ(limits.epochs_from(), 16) << "the epochs 0 and 1, of one step each, would have begun there";
  limits.begin_epoch(/*epoch=*/3, /*first_step=*/19, /*steps=*/10);
  EXPECT_EQ(limits.steps(), 19 + 50);
  EXPECT_EQ(limits.epochs_from(), -11);
  const TrainConfig without_end{.max_epochs = 0};
  RunLimits endless(without_end);
  endless.begin_epoch(2, 18, 1);
  EXPECT_EQ(endless.steps(), 0);
}

TEST(RunLimits, EndARunAtTheFirstOfSeveral) {
  struct Case {
    const char* name;
    std::int64_t max_steps;
    std::int64_t max_epochs;
    std::int64_t steps_per_epoch;
    std::int64_t steps;
  };
  for (const Case& c : {Case{"none", 0, 0, 10, 0},
                        {"steps", 25, 0, 10, 25},
                        {"epochs", 0, 2, 10, 20},
                        {"epochs end first", 25, 2, 10, 20},
                        {"steps end first", 15, 2, 10, 15},
                        {"epochs of unknown length", 0, 2, 0, 0},
                        {"steps, and epochs of unknown length", 15, 2, 0, 15},
                        {"steps, and epochs that never end", 15, std::int64_t{1} << 62, 10, 15}}) {
    const TrainConfig config{.max_epochs = c.max_epochs, .max_steps = c.max_steps};
    RunLimits limits(config);
    limits.begin_epoch(/*epoch=*/0, /*first_step=*/0, c.steps_per_epoch);
    EXPECT_EQ(limits.steps(), c.steps) << c.name;
  }
}

TEST(RunLimits, AreReachedByStepsOrEpochs) {
  const TrainConfig config{.max_epochs = 2, .max_steps = 15};
  const RunLimits limits(config);
  EXPECT_FALSE(limits.are_reached({.step = 14, .epoch = 1}));
  EXPECT_TRUE(limits.are_reached({.step = 15, .epoch = 1}));
  EXPECT_TRUE(limits.are_reached({.step = 14, .epoch = 2}));
  EXPECT_TRUE(limits.are_reached({.step = 30, .epoch = 3})) << "a resumed run can be longer than asked for";
  EXPECT_EQ(limits.reached({.step = 14, .epoch = 1}), "");
  EXPECT_EQ(limits.reached({.step = 15, .epoch = 1}), "--max_steps 15");
  EXPECT_EQ(limits.reached({.step = 14, .epoch = 2}), "--max_epochs 2");
  const TrainConfig endless{.max_epochs = 0, .max_steps = 0};
  EXPECT_FALSE(RunLimits(endless).are_reached({.step = 1000, .epoch = 100}));
}

TEST(RunLimits, CountTheTimeOfEarlierStarts) {
  const TrainConfig an_hour{.max_time_s = 3600};
  RunLimits limits(an_hour);
  EXPECT_FALSE(limits.is_time_over());
  limits.set_earlier_time(1800);
  EXPECT_FALSE(limits.is_time_over());
  EXPECT_GE(limits.training_time(), 1800);
  limits.set_earlier_time(3600);
  EXPECT_TRUE(limits.is_time_over());
  const TrainConfig no_limit{};
  RunLimits endless(no_limit);
  endless.set_earlier_time(1e9);
  EXPECT_FALSE(endless.is_time_over());
}

TEST(RunLimits, HoldBackOnlyTheStopOfTheProgram) {
  const TrainConfig config{.max_epochs = 9, .min_epochs = 2, .min_steps = 4};
  const RunLimits limits(config);
  const TrainState early_step{.step = 3, .epoch = 2};
  const TrainState early_epoch{.step = 5, .epoch = 1};
  const TrainState late{.step = 6, .epoch = 2};
  EXPECT_TRUE(limits.is_below_minimum(early_step));
  EXPECT_TRUE(limits.is_below_minimum(early_epoch));
  EXPECT_FALSE(limits.is_below_minimum(late));
  EXPECT_FALSE(limits.must_stop(StopKind::program, early_step));
  EXPECT_FALSE(limits.must_stop(StopKind::program, early_epoch));
  EXPECT_TRUE(limits.must_stop(StopKind::program, late));
  EXPECT_TRUE(limits.must_stop(StopKind::terminate, early_step));
  EXPECT_TRUE(limits.must_stop(StopKind::interrupt, early_step));
  EXPECT_FALSE(limits.must_stop(StopKind::none, late));
}

}  // namespace
}  // namespace lockstep
