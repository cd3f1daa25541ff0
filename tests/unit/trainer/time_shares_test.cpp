#include "trainer/time_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Optional;

TEST(TimeShares, AdviseWhereMuchOfALongRunWasNotTraining) {
  EXPECT_THAT((TimeShares{.total = 100, .data = 31}).advice(2),
              Optional(HasSubstr("waiting for data took 31 % of the time: raise --data.workers (now 2)")));
  EXPECT_THAT((TimeShares{.total = 100, .saves = 25}).advice(2), Optional(HasSubstr("saving took 25 % of the time")));
  EXPECT_EQ((TimeShares{.total = 100, .data = 15, .validation = 60, .saves = 15}).advice(2), std::nullopt);
  EXPECT_EQ((TimeShares{.total = 5, .data = 4}).advice(2), std::nullopt) << "too short";
}

TEST(TimeShares, AreSums) {
  double seconds = 1;
  { const Timed timed(seconds); }
  EXPECT_GE(seconds, 1);
  EXPECT_LT(seconds, 1.5);
}

}  // namespace
}  // namespace lockstep
