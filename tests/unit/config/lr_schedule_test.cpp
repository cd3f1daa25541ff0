#include <cmath>
#include <type_traits>

#include <gmock/gmock.h>

#include <lockstep/config/lr_schedule.h>

namespace lockstep {
namespace {

using testing::HasSubstr;

// A loop over what a temporary has must not outlive it.
static_assert(!std::is_reference_v<decltype(LrSchedule("cosine").problems())>);
static_assert(!std::is_reference_v<decltype(LrSchedule("cosine").text())>);

constexpr ScheduleStep kRun{.total_steps = 100, .steps_per_epoch = 10};

double factor(const LrSchedule& schedule, std::int64_t step, ScheduleStep run = kRun) {
  EXPECT_TRUE(schedule.problems().empty()) << schedule.text() << ": " << schedule.problems().front().what;
  EXPECT_TRUE(schedule.problems_in(run).empty()) << schedule.text() << ": " << schedule.problems_in(run).front().what;
  run.step = step;
  return schedule.factor(run);
}

struct Golden {
  std::int64_t step;
  double factor;
};

void expect_factors(const LrSchedule& schedule, std::initializer_list<Golden> table, const ScheduleStep& run = kRun) {
  for (const Golden& row : table) {
    EXPECT_NEAR(factor(schedule, row.step, run), row.factor, 1e-12) << schedule.text() << " at step " << row.step;
  }
}

constexpr double kHalfRoot = 0.70710678118654752;

TEST(LrSchedule, IsOneWhereNothingIsSet) {
  EXPECT_FALSE(LrSchedule().is_set());
  EXPECT_FALSE(LrSchedule("  ").is_set());
  expect_factors({}, {{0, 1}, {1'000'000'000'000, 1}}, {});
}

TEST(LrSchedule, HasTheValuesOfItsFormulas) {
  expect_factors("constant:factor=0.5", {{0, 0.5}, {1000, 0.5}});
  expect_factors("warmup:4", {{0, 0.25}, {1, 0.5}, {2, 0.75}, {3, 1}, {4, 1}, {400, 1}});
  expect_factors("warmup:4,from=0.2", {{0, 0.4}, {3, 1}});
  expect_factors("linear:from=0.2,to=0.7,for=10", {{0, 0.2}, {5, 0.45}, {10, 0.7}, {99, 0.7}});
  expect_factors("cosine", {{0, 1}, {50, 0.5}, {75, 0.5 * (1 - kHalfRoot)}, {100, 0}, {200, 0}});
  expect_factors("polynomial:power=2,to=0.1", {{0, 1}, {50, 0.1 + 0.9 * 0.25}, {100, 0.1}});
  expect_factors("rex", {{0, 1}, {50, 0.5 / 0.75}, {100, 0}});
  expect_factors("rex:d=0.9", {{50, 0.5 / 0.55}});
  expect_factors("exponential:0.5,every=1ep", {{0, 1}, {10, 0.5}, {25, 0.25 * kHalfRoot}});
  expect_factors("step:3ep,factor=0.5", {{0, 1}, {29, 1}, {30, 0.5}, {60, 0.25}});
  expect_factors("multistep:at=3ep/50/80%", {{29, 1}, {30, 0.1}, {49, 0.1}, {50, 0.01}, {79, 0.01}, {80, 0.001}});
  expect_factors("inverse_sqrt:timescale=20", {{0, 1}, {20, kHalfRoot}, {60, 0.5}});
  expect_factors("restarts:20,to=0.2", {{0, 1}, {10, 0.6}, {20, 1}, {30, 0.6}, {40, 1}, {100, 0.2}});
  expect_factors("restarts:every=10,grow=2,decay=0.5",
                 {{0, 1}, {5, 0.5}, {10, 0.5}, {20, 0.25}, {30, 0.25}, {50, 0.125}});
  expect_factors("restarts:cycles=4", {{0, 1}, {25, 1}, {37, 0.5 * (1 + std::cos(M_PI * 12 / 25))}, {50, 1}, {100, 0}});
  const auto last_of = [](double steps) { return 0.5 * (1 + std::cos(M_PI * (steps - 1) / steps)); };
  expect_factors("restarts:cycles=3,grow=2,for=70", {{0, 1},
                                                     {5, 0.5},
                                                     {9, last_of(10)},
                                                     {10, 1},
                                                     {20, 0.5},
                                                     {29, last_of(20)},
                                                     {30, 1},
                                                     {50, 0.5},
                                                     {69, last_of(40)},
                                                     {70, 0}});
  expect_factors("restarts:cycles=2,grow=3", {{24, last_of(25)}, {25, 1}, {50, 0.75}, {99, last_of(75)}, {100, 0}});
  expect_factors("cyclic:up=10,down=30,low=0.2", {{0, 0.2}, {5, 0.6}, {10, 1}, {25, 0.6}, {40, 0.2}, {50, 1}});
  expect_factors("cyclic:10,low=0,cycle_factor=0.5", {{10, 1}, {30, 0.5}, {50, 0.25}});
  expect_factors("one_cycle:rise=0.21,div=10,final_div=10", {{0, 0.1}, {10, 0.55}, {20, 1}, {99, 0.01}, {200, 0.01}});
}

TEST(LrSchedule, JoinsPhases) {
  expect_factors("warmup:10+cosine:to=0.1,until=110",
                 {{9, 1}, {10, 1}, {35, 0.1 + 0.9 * 0.5 * (1 + kHalfRoot)}, {60, 0.55}, {110, 0.1}, {10'000, 0.1}});
  expect_factors("warmup:5%+constant:until=80%+linear", {{4, 1}, {5, 1}, {79, 1}, {80, 1}, {90, 0.5}, {99, 0.05}});
  expect_factors("constant:factor=0.5,for=2ep+constant:factor=0.25,for=2ep+constant",
                 {{0, 0.5}, {19, 0.5}, {20, 0.25}, {39, 0.25}, {40, 1}});
  expect_factors("constant:for=0+step:50", {{0, 1}, {49, 1}, {50, 0.1}});
}

TEST(LrSchedule, ChangesOncePerEpochWhenAsked) {
  expect_factors("linear:per=epoch", {{0, 1}, {9, 1}, {10, 0.9}, {19, 0.9}, {20, 0.8}});
  expect_factors("warmup:5+linear:for=50,per=epoch", {{5, 1}, {9, 1}, {10, 0.9}, {19, 0.9}, {20, 0.7}, {55, 0}});
}

TEST(LrSchedule, CountsInEpochsWhereItChangesOncePerEpoch) {
  expect_factors("warmup:3ep,per=epoch", {{0, 1. / 3}, {9, 1. / 3}, {10, 2. / 3}, {20, 1}, {29, 1}, {30, 1}});
  expect_factors("warmup:3ep,per=epoch", {{0, 1. / 3}, {1000, 2. / 3}}, {.total_steps = 9000, .steps_per_epoch = 1000});
  expect_factors("warmup:5,per=epoch", {{0, 1}, {20, 1}});
  expect_factors("exponential:0.5,per=epoch", {{0, 1}, {9, 1}, {10, 0.5}, {25, 0.25}});
  expect_factors("exponential:0.5,every=5,per=epoch", {{9, 1}, {10, 0.25}});
  expect_factors("cyclic:2ep,low=0,step_factor=0.5,per=epoch", {{9, 0}, {10, 0.25}, {20, 0.25}, {30, 0.0625}});
  expect_factors("one_cycle:rise=0.5,div=10,final_div=10,per=epoch",
                 {{0, 0.1}, {20, 0.55}, {40, 1}, {49, 1}, {90, 0.01}, {99, 0.01}});
}

// 2 epochs of 9 steps, then epochs of one step: at step 18 two epochs are done, and at step 22 six of them.
TEST(LrSchedule, CountsEpochsThatHadOtherLengths) {
  const ScheduleStep run{.total_steps = 24, .steps_per_epoch = 1, .epochs_from = 16};
  expect_factors("step:4ep", {{18, 1}, {19, 1}, {20, 0.1}, {23, 0.1}}, run);
  expect_factors("linear:per=epoch", {{18, 0.75}, {20, 0.5}}, run);
  expect_factors("constant:for=3ep+constant:factor=0.5", {{18, 1}, {19, 0.5}}, run);
  expect_factors("linear", {{12, 0.5}, {18, 0.25}}, run);  // no epochs: the part of the steps
  expect_factors("warmup:10+step:4ep", {{18, 1}, {19, 1}, {20, 0.1}}, run);
}

TEST(LrSchedule, TakesAFunction) {
  const LrSchedule own("halves", [](const ScheduleStep& at) { return at.step < 2 ? 1 : 0.5; });
  EXPECT_EQ(own.text(), "halves");
  EXPECT_TRUE(own.is_function());
  EXPECT_FALSE(LrSchedule("cosine").is_function());
  expect_factors(own, {{0, 1}, {1, 1}, {2, 0.5}});
  EXPECT_FALSE(LrSchedule("", [](const ScheduleStep&) { return 1.0; }).problems().empty());
  EXPECT_FALSE(LrSchedule("nothing", nullptr).problems().empty());
}

TEST(LrSchedule, ComparesWhatIsWritten) {
  EXPECT_EQ(LrSchedule(" Cosine "), LrSchedule("cosine"));
  EXPECT_FALSE(LrSchedule("cosine") == LrSchedule("linear"));
}

TEST(LrSchedule, ReportsEveryProblemOfAText) {
  struct Case {
    const char* text;
    const char* what;
    const char* hint;
  };
  for (const auto& [text, what, hint] : std::initializer_list<Case>{
           {"cosin", "unknown curve", "did you mean cosine?"},
           {"zzz", "unknown curve", "use one of constant, warmup, linear"},
           {"+cosine", "the name of the curve is missing", "use one of"},
           {"plateau", "unknown curve", "--plateau.metric"},
           {"StepLR:30", "unknown curve", "step:every=30ep"},
           {"wsd", "unknown curve", "constant:until=80%"},
           {"cosine:0.1", "found \"0.1\", expected setting=value", "the settings are from, to, for, until, per"},
           {"cosine:", "found \"\", expected setting=value", ""},
           {"cosine:floor=0.1", "unknown setting floor", "the settings of cosine are from, to"},
           {"cosine:to=low", "to=low, expected a number of 0 or more", ""},
           {"cosine:to=-1", "to=-1, expected a number of 0 or more", ""},
           {"cosine:to=nan", "to=nan, expected a number", ""},
           {"cosine:to=0.1,to=0.2", "to is set twice", ""},
           {"cosine:for=10,until=20", "found for and until, expected one of them", ""},
           {"cosine:per=batch", "per=batch, expected step or epoch", ""},
           {"exponential:0", "factor=0, expected a number above 0", ""},
           {"one_cycle:rise=2", "rise=2, expected a number from 0 to 1", ""},
           {"warmup", "its length is missing", "warmup:500"},
           {"warmup:-5", "for=-5, expected a length", "500"},
           {"warmup:1.5", "for=1.5, expected a length", "2ep"},
           {"warmup:120%", "for=120%, expected a length", "10%"},
           {"warmup:%", "for=%, expected a length", ""},
           {"step", "the setting every is missing", "lengths are"},
           {"step:0", "every is shorter than one step", "make it longer"},
           {"restarts:0", "every is shorter than one step", ""},
           {"exponential", "the setting factor is missing", ""},
           {"multistep:at=3/x", "at=x, expected a length", ""},
           {"restarts", "expected every or cycles", ""},
           {"restarts:10,cycles=2", "found every and cycles, expected one of them", ""},
           {"restarts:cycles=1000,grow=10", "its first cycle would have no length", ""},
           {"cosine+constant", "cosine: it has no end, so the next phase never begins", "for=10ep"},
       }) {
    const LrSchedule schedule(text);
    ASSERT_EQ(schedule.problems().size(), 1U) << text;
    EXPECT_THAT(schedule.problems().front().what, HasSubstr(what)) << text;
    EXPECT_THAT(schedule.problems().front().hint, HasSubstr(hint)) << text;
  }
  EXPECT_EQ(LrSchedule("warmup:x+cosine:to=y,z+step").problems().size(), 4U);
}

TEST(LrSchedule, ReportsWhatTheRunDoesNotHave) {
  const auto problem = [](const char* text, const ScheduleStep& run) {
    const LrSchedule schedule(text);
    EXPECT_TRUE(schedule.problems().empty()) << text;
    const auto problems = schedule.problems_in(run);
    return problems.empty() ? std::string() : problems.front().what;
  };
  const ScheduleStep endless{.steps_per_epoch = 10};
  const ScheduleStep stream{.total_steps = 100};
  EXPECT_THAT(problem("cosine", endless), HasSubstr("the length of the run is not known"));
  EXPECT_THAT(problem("step:10%", endless), HasSubstr("the length of the run is not known"));
  EXPECT_EQ(problem("cosine:for=5", endless), "");
  EXPECT_EQ(problem("inverse_sqrt", endless), "");
  EXPECT_THAT(problem("step:2ep", stream), HasSubstr("the number of steps per epoch is not known"));
  EXPECT_THAT(problem("linear:per=epoch", stream), HasSubstr("the number of steps per epoch is not known"));
  EXPECT_EQ(problem("step:20", stream), "");
  EXPECT_THAT(problem("step:0.01ep", kRun), HasSubstr("shorter than one step"));
  EXPECT_THAT(problem("warmup:20+linear:until=10", kRun), HasSubstr("linear:until=10: it would end before it begins"));
  EXPECT_EQ(problem("warmup:2000+constant:until=80%+linear", kRun), "");  // a short trial of a long run
}

TEST(LrSchedule, KnowsWhetherALongerRunChangesIt) {
  for (const char* text :
       {"cosine", "warmup:10%+constant", "step:10%", "constant:until=50%+constant", "restarts:cycles=2"}) {
    EXPECT_TRUE(LrSchedule(text).depends_on_total_steps()) << text;
  }
  for (const char* text : {"", "constant", "cosine:for=5", "warmup:10+step:2ep", "restarts:10", "warmup:5"}) {
    EXPECT_FALSE(LrSchedule(text).depends_on_total_steps()) << text;
  }
}

}  // namespace
}  // namespace lockstep
