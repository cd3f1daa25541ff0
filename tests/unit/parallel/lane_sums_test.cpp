#include "parallel/lane_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

using testing::ElementsAre;

at::Tensor lane(float first, float second) { return at::tensor({first, second}); }

TEST(LaneSums, AreReadInTheStepOfTheReduction) {
  LaneSums sums(2, c10::Device(c10::kCPU), /*late=*/false);
  sums.begin_step();
  sums.add(lane(1, 0));
  sums.add(lane(0, 2));
  EXPECT_THAT(sums.read(), ElementsAre(1, 2));
  EXPECT_THAT(sums.read(), ElementsAre(1, 2)) << "asking again changes nothing";
  sums.begin_step();
  EXPECT_THAT(sums.read(), ElementsAre(0, 0)) << "a step without a reduction";
}

// As on a GPU: the order of reductions and copies must neither lose a number nor show it twice.
TEST(LaneSums, AreReadOnceInTheNextStepWhenTheyAreLate) {
  LaneSums sums(2, c10::Device(c10::kCPU), /*late=*/true);
  sums.begin_step();
  sums.add(lane(1, 0));  // one optimizer
  sums.add(lane(0, 0));  // another one, later: its older numbers must not replace the request
  EXPECT_THAT(sums.read(), ElementsAre(0, 0));
  sums.begin_step();
  sums.add(lane(0, 3));
  EXPECT_THAT(sums.read(), ElementsAre(1, 0));
  sums.begin_step();  // no reduction in this step
  EXPECT_THAT(sums.read(), ElementsAre(0, 3));
  sums.begin_step();
  EXPECT_THAT(sums.read(), ElementsAre(0, 0)) << "not twice";
  sums.add(lane(5, 0));
  sums.begin_step();
  EXPECT_THAT(sums.read(), ElementsAre(5, 0)) << "and not with what was added before";
}

}  // namespace
}  // namespace lockstep
