// Thousands of ways in which the ranks of a run fail, each in milliseconds: whatever happens in whatever order, every
// rank ends in time, with the right exit code, and blames a rank that failed by itself. LOCKSTEP_TEST_SEED repeats one
// schedule.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulation/simulated_run.h"
#include "support/sweep.h"

namespace lockstep::simulation {
namespace {

constexpr int kSchedules = 2000;

std::uint64_t given_seed() {
  const char* given = std::getenv("LOCKSTEP_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 0;
}

TEST(FailureSimulation, EveryInvariantHoldsInEverySchedule) {
  if (const std::uint64_t seed = given_seed()) {
    const Schedule schedule = draw_schedule(seed);
    EXPECT_EQ(simulate(schedule).problems, "") << to_string(schedule);
    return;
  }
  const int schedules = kSchedules * rounds(1, 50);
  std::int64_t events = 0;
  for (int seed = 1; seed <= schedules; ++seed) {
    const Schedule schedule = draw_schedule(static_cast<std::uint64_t>(seed));
    const Outcome outcome = simulate(schedule);
    events += outcome.events;
    EXPECT_EQ(outcome.problems, "") << "LOCKSTEP_TEST_SEED=" << seed << ": " << to_string(schedule);
  }
  std::printf("%d schedules, %lld events\n", schedules, static_cast<long long>(events));
}

TEST(FailureSimulation, ASeedRepeatsARun) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Schedule schedule = draw_schedule(seed);
    EXPECT_EQ(simulate(schedule).trace, simulate(schedule).trace) << to_string(schedule);
  }
}

struct Control {
  Defect defect;
  const char* name;
};

class PlantedDefect : public testing::TestWithParam<Control> {};

TEST_P(PlantedDefect, IsFound) {
  constexpr std::uint64_t kEnough = 5000;
  for (std::uint64_t seed = 1; seed <= kEnough; ++seed) {
    const Schedule schedule = draw_schedule(seed);
    if (schedule.shape.ranks() <= 64 && !simulate(schedule, GetParam().defect).problems.empty()) {
      EXPECT_EQ(simulate(schedule).problems, "") << "found by itself, without the defect";
      std::printf("found by schedule %d\n", static_cast<int>(seed));
      return;
    }
  }
  FAIL() << "no schedule found it";
}

INSTANTIATE_TEST_SUITE_P(Controls, PlantedDefect,
                         testing::Values(Control{Defect::lost_message_is_not_sent_again, "LostMessageIsNotSentAgain"},
                                         Control{Defect::rank_0_does_not_linger, "Rank0DoesNotLinger"},
                                         Control{Defect::consequences_end_first, "ConsequencesEndFirst"},
                                         Control{Defect::suspended_time_counts, "SuspendedTimeCounts"},
                                         Control{Defect::consequences_are_blamed_at_once,
                                                 "ConsequencesAreBlamedAtOnce"},
                                         Control{Defect::heartbeats_stop, "HeartbeatsStop"}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lockstep::simulation
