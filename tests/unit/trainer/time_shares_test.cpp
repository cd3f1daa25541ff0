#include "trainer/output/time_shares.h"

#include <chrono>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::seconds;

using testing::EndsWith;
using testing::HasSubstr;
using testing::Optional;

/// After `total` seconds, so many of them in phases.
TimeShares after(int total, const std::map<Phase, int>& in_phases, int waited = 0) {
  PhaseTimes end{.waited = seconds(waited), .now = std::chrono::steady_clock::time_point(seconds(total))};
  for (const auto& [phase, time] : in_phases) {
    end.own[static_cast<std::size_t>(phase)] = seconds(time);
  }
  return {PhaseTimes{}, end};
}

TEST(TimeShares, AdviseWhereMuchOfALongRunWasNotTraining) {
  EXPECT_THAT(after(100, {{Phase::data, 31}}).advice_on_data(2, /*one_reader=*/false),
              Optional(HasSubstr("waiting for data took 31 % of the time: raise --data.workers (now 2)")));
  EXPECT_THAT(after(100, {{Phase::data, 31}}).advice_on_data(0, /*one_reader=*/true),
              Optional(EndsWith("of the time: use --data.workers 1, so that the stream is read beside the steps")));
  EXPECT_THAT(after(100, {{Phase::data, 31}}).advice_on_data(2, /*one_reader=*/true),
              Optional(EndsWith("so let the stream read ahead in threads of its own")));
  const TimeShares copies = after(100, {{Phase::copy, 24}});
  EXPECT_THAT(copies.advice_on_copies({.workers = 2, .prefetch = 3}),
              Optional(HasSubstr(
                  "waiting for copies of batches to the GPU took 24 % of the time: raise --data.prefetch (now 3)")));
  EXPECT_THAT(copies.advice_on_copies({.workers = 0}), Optional(HasSubstr("use --data.workers 1 or more")));
  EXPECT_THAT(copies.advice_on_copies({.pin_memory = false}), Optional(HasSubstr("use --data.pin_memory true")));
  EXPECT_EQ(copies.advice_on_data(2, /*one_reader=*/false), std::nullopt);
  EXPECT_THAT(after(100, {{Phase::save, 25}}).advice_on_saves(), Optional(HasSubstr("saving took 25 % of the time")));
  const TimeShares good =
      after(100, {{Phase::data, 15}, {Phase::copy, 10}, {Phase::validation, 60}, {Phase::save, 15}});
  EXPECT_EQ(good.advice_on_data(2, /*one_reader=*/false), std::nullopt);
  EXPECT_EQ(good.advice_on_copies({}), std::nullopt);
  EXPECT_EQ(good.advice_on_saves(), std::nullopt);
}

TEST(TimeShares, NameTheLargestParts) {
  EXPECT_EQ(after(1000, {{Phase::forward, 300}, {Phase::backward, 450}, {Phase::data, 9}}, /*waited=*/120).text(),
            "backward 45 %, forward 30 %, communication 12 %");
}

TEST(TimeShares, AreThoseBetweenTwoMoments) {
  ProgressRecord record;
  record.set_phase(Phase::data);
  const PhaseTimes begin = record.times();
  record.set_phase(Phase::copy);
  record.set_phase(Phase::backward);
  record.begin(Operation::all_reduce, 0);
  record.end();
  record.set_phase(Phase::optimizer);
  const PhaseTimes end = record.times();
  const TimeShares shares(begin, end);
  double sum = 0;
  for (const auto& [name, part] : shares.parts()) {
    EXPECT_GE(part, 0) << name;
    sum += part;
  }
  EXPECT_GT(shares.of(Phase::backward), 0);
  EXPECT_NEAR(sum, shares.total(), 1e-9) << "each moment belongs to one part";
}

}  // namespace
}  // namespace lockstep
