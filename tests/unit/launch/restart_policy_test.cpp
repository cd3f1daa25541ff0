#include "launch/restart_policy.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "launch/goodput.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

LaunchReport failure(const std::string& text, std::int64_t step, int exit_code = 137) {
  return {.exit_code = exit_code, .failed_rank = 1, .failure = text, .step = step};
}

TEST(RestartPolicy, RestartsSoOftenWithoutProgressAndWaitsLonger) {
  RestartPolicy policy(8);
  std::vector<std::int64_t> waits;
  for (int i = 0; i < 8; ++i) {
    // The failures differ, so that none is deterministic.
    const RestartDecision decision = policy.after(failure(std::string(static_cast<std::size_t>(i), 'x'), 7));
    EXPECT_TRUE(decision.restart);
    waits.push_back(decision.wait.count());
  }
  EXPECT_EQ(waits, (std::vector<std::int64_t>{0, 1, 2, 4, 8, 16, 30, 30}));
  const RestartDecision last = policy.after(failure("another", 7));
  EXPECT_FALSE(last.restart);
  EXPECT_EQ(last.reason, "no progress in 8 restarts");
}

TEST(RestartPolicy, RestartsRanksThatFoundASmallerBatchWithoutWaiting) {
  LaunchReport report = failure("rank 1 failed: out of memory", 0, static_cast<int>(ExitCode::out_of_memory));
  report.explained = true;
  RestartPolicy policy(0);
  for (int i = 1; i <= 30; ++i) {
    const RestartDecision decision = policy.after(report);
    EXPECT_TRUE(decision.restart && decision.halves);
    EXPECT_EQ(decision.wait.count(), 0);
    EXPECT_EQ(policy.halvings(), i);
  }
  EXPECT_FALSE(policy.after(report).restart) << "no batch is that large";
  EXPECT_FALSE(RestartPolicy(0, /*is_on_one_machine=*/false).after(report).restart);
  EXPECT_FALSE(policy.after(failure("rank 1 failed", 0, 1)).restart) << "no other failure";
  report.explained = false;
  EXPECT_FALSE(RestartPolicy(0).after(report).restart) << "the code of another program";
}

TEST(RestartPolicy, RefillsByProgress) {
  RestartPolicy policy(1);
  for (std::int64_t step = 10; step < 100; step += 10) {
    const RestartDecision decision = policy.after(failure("rank 1 died of signal 9 (Killed)", step));
    EXPECT_TRUE(decision.restart) << step;
    EXPECT_EQ(decision.wait.count(), 0);
  }
  EXPECT_TRUE(policy.after(failure("x", 200)).restart);
  EXPECT_FALSE(policy.after(failure("y", 199)).restart) << "not beyond the best";
}

// Another program tells no steps: its second failure in a row already waits.
TEST(RestartPolicy, RestartsAtOnceFirstAndAfterProgress) {
  const auto wait = [](RestartPolicy& policy, const char* text, std::int64_t step) {
    return policy.after(failure(text, step)).wait.count();
  };
  RestartPolicy trains(5);
  EXPECT_EQ(wait(trains, "killed", 7), 0);
  EXPECT_EQ(wait(trains, "aborted", 7), 1);
  EXPECT_EQ(wait(trains, "killed", 6), 2);
  EXPECT_EQ(wait(trains, "killed", 8), 0);
  EXPECT_EQ(wait(trains, "aborted", 8), 1);
  RestartPolicy tells_nothing(5);
  EXPECT_EQ(wait(tells_nothing, "killed", -1), 0);
  EXPECT_EQ(wait(tells_nothing, "killed", -1), 1);
}

TEST(RestartPolicy, CountsTheStepsOfAllFits) {
  RestartPolicy policy(1);
  EXPECT_TRUE(policy.after(failure("rank 1 died of signal 9 (Killed)", 7)).restart);
  LaunchReport later = failure("rank 1 died of signal 9 (Killed)", 7);
  later.earlier_steps = 8;
  EXPECT_TRUE(policy.after(later).restart) << "the same step, of the next fit";
  later.step = 3;
  EXPECT_FALSE(policy.after(later).restart);
}

TEST(RestartPolicy, StopsWhenTheSameHappensAgainAtTheSameStep) {
  RestartPolicy policy(100);
  EXPECT_TRUE(policy.after(failure("rank 1 (pid 71) failed: loss is nan at 0x7f01", 12)).restart);
  const RestartDecision again = policy.after(failure("rank 1 (pid 4711) failed: loss is nan at 0xdead", 12));
  EXPECT_FALSE(again.restart);
  EXPECT_EQ(again.reason, "deterministic failure: the same twice in a row at step 12");
}

TEST(RestartPolicy, IsNotFooledByWhatOnlyLooksTheSame) {
  struct Case {
    const char* what;
    LaunchReport first;
    LaunchReport second;
    bool restarts;
  };
  LaunchReport explained = failure("rank 1 failed: no such file", -1, 1);
  explained.explained = true;
  const Case cases[] = {
      {"another step", failure("killed", 12), failure("killed", 11), true},
      {"another text", failure("killed", 12), failure("aborted", 12), true},
      {"no step and no reason", failure("killed", -1), failure("killed", -1), true},
      {"a reason, before the first step", explained, explained, false},
  };
  for (const Case& c : cases) {
    RestartPolicy policy(100);
    EXPECT_TRUE(policy.after(c.first).restart) << c.what;
    EXPECT_EQ(policy.after(c.second).restart, c.restarts) << c.what;
  }
}

TEST(RestartPolicy, NeverRestartsWhatCannotGetBetter) {
  for (const int code : {2, 65, 78, 126, 127}) {
    RestartPolicy policy(3);
    const RestartDecision decision = policy.after(failure("rank 1 failed", 5, code));
    EXPECT_FALSE(decision.restart) << code;
    EXPECT_THAT(decision.reason, HasSubstr("would be the same again"));
  }
  LaunchReport stopped = failure("died of signal 15", 5, 143);
  stopped.stop_requested = true;
  EXPECT_FALSE(RestartPolicy(3).after(stopped).restart);
  EXPECT_FALSE(RestartPolicy(3).after({}).restart) << "nothing failed";
  EXPECT_FALSE(RestartPolicy(0).after(failure("killed", 5)).restart);
}

TEST(Goodput, CountsWhatWasDoneTwice) {
  Goodput goodput;
  goodput.add({.first_step = 0, .step = 100, .training_s = 50});
  goodput.add({.first_step = 60, .step = 160, .training_s = 50});  // 40 of its 100 steps again: 30 s are new
  goodput.add({.first_step = -1, .step = -1});                     // did not come so far
  goodput.add({.first_step = 160, .step = 200, .training_s = 20});
  EXPECT_EQ(goodput.restarts(), 3);
  EXPECT_EQ(goodput.steps_repeated(), 40);
  EXPECT_DOUBLE_EQ(goodput.productive_s(), 100);
  EXPECT_EQ(goodput.text(125), "3 restarts, 40 steps repeated, 80.0 % of the time was productive");
}

// The second attempt ends the first fit, of 20 steps, and begins another one.
TEST(Goodput, CountsTheStepsOfAllFits) {
  Goodput goodput;
  goodput.add({.first_step = 0, .step = 10, .training_s = 10});
  goodput.add({.first_step = 6, .step = 5, .earlier_steps = 20, .training_s = 19});
  goodput.add({.first_step = 24, .step = 20, .earlier_steps = 20, .training_s = 16});
  EXPECT_EQ(goodput.steps_repeated(), 4 + 1);
  EXPECT_DOUBLE_EQ(goodput.productive_s(), 40);
}

TEST(Goodput, ClaimsNothingAboutUnknownSteps) {
  Goodput goodput;
  goodput.add({});
  goodput.add({});
  EXPECT_EQ(goodput.text(10), "1 restart");
}

}  // namespace
}  // namespace lockstep
