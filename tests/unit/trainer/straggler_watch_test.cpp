#include "trainer/watch/straggler_watch.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

using testing::HasSubstr;

StepCost cost(double forward, double data = 0) {
  StepCost cost;
  cost.by_phase[static_cast<std::size_t>(Phase::forward)] = forward;
  cost.by_phase[static_cast<std::size_t>(Phase::data)] = data;
  return cost;
}

TEST(Lag, IsMeasuredAgainstTheMedianOfTheOthers) {
  const std::vector<StepCost> costs{cost(1), cost(6, 3), cost(1, 1), cost(3)};
  const Lag lag = largest_lag(costs);
  EXPECT_EQ(lag.rank, 1);
  EXPECT_DOUBLE_EQ(lag.factor, 4.5);
  EXPECT_DOUBLE_EQ(lag.mine.of(Phase::data), 3);
  EXPECT_DOUBLE_EQ(lag.others_step, 2);
  EXPECT_DOUBLE_EQ(lag.others.of(Phase::data), 0);
  EXPECT_DOUBLE_EQ(lag.longer(), 7);
  EXPECT_EQ(lag.phase(), Phase::forward);
  EXPECT_EQ(largest_lag(std::vector<StepCost>{cost(2, 4), cost(1)}).phase(), Phase::data);
  EXPECT_DOUBLE_EQ(lag_of(0, costs).factor, 1.0 / 3);
}

TEST(Lag, OfTwoRanksIsTheRatio) { EXPECT_DOUBLE_EQ(largest_lag(std::vector<StepCost>{cost(3), cost(2)}).factor, 1.5); }

/// What rank 0 hears in as many steps. `work`: of a rank in a step.
std::vector<StragglerNews> news_of(int ranks, std::int64_t steps,
                                   const std::function<void(World&, std::int64_t step)>& work) {
  std::vector<StragglerNews> heard;
  thread_world(ranks, [&](World& world) {
    StragglerWatch watch(world, "host-" + std::to_string(world.rank()));
    for (std::int64_t step = 0; step < steps; ++step) {
      WorldAccess::progress(world).set_phase(Phase::forward);
      watch.begin_step();
      work(world, step);
      world.barrier("the end of a step");
      if (auto news = watch.end_step(step + 1); news && world.is_main()) {
        heard.push_back(*news);
      }
    }
  });
  return heard;
}

void wait(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

TEST(StragglerWatch, NamesWhoIsSlowAndSaysWhenThatIsOver) {
  // Windows: 20 steps of 60 ms, then 2 s of them, 34 steps; steps of 10 ms follow until one has lasted for 1 s.
  const auto heard =
      news_of(3, 254, [](World& world, std::int64_t step) { wait(10 + (world.rank() == 2 && step < 20 ? 50 : 0)); });
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_THAT(heard[0].text, HasSubstr("rank 2 (host-2) takes "));
  EXPECT_THAT(heard[0].text, HasSubstr("most of the difference is in phase 'forward'"));
  EXPECT_EQ(heard[0].event, "straggler");
  EXPECT_EQ(heard[1].text, "rank 2 (host-2) keeps up with the others again");
  EXPECT_EQ(heard[1].event, "straggler_ended");
}

TEST(StragglerWatch, LetsOneHiccupPass) {
  EXPECT_TRUE(news_of(2, 20, [](World& world, std::int64_t step) {
                wait(10 + (world.rank() == 1 && step == 7 ? 1500 : 0));
              }).empty());
}

TEST(StragglerWatch, IsSilentWhenAllAreSlow) {
  EXPECT_TRUE(news_of(2, 20, [](World&, std::int64_t) { wait(60); }).empty());
}

// As with many ranks on few cores: a step is mostly waiting for the collective, and the rest of it is nothing.
TEST(StragglerWatch, LetsPassWhatCostsTheRunLittle) {
  const auto collective = [](World& world, int ms) {
    ProgressRecord& record = WorldAccess::progress(world);
    record.begin(Operation::all_reduce, 0);
    wait(ms);
    record.end();
  };
  const auto heard = [&](int ms) {
    return news_of(2, 20, [&](World& world, std::int64_t) {
      wait(world.rank() == 1 ? 25 : 10);
      collective(world, ms);
    });
  };
  EXPECT_TRUE(heard(200).empty());
  bool is_heard = false;
  for (int attempt = 0; attempt < 5 && !is_heard; ++attempt) {  // on a busy machine the other rank may be as slow
    is_heard = heard(40).size() == 1;
  }
  EXPECT_TRUE(is_heard);
}

}  // namespace
}  // namespace lockstep
