// What the Trainer adds to a step beside its time: see docs/performance.md.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/process.h"
#include "support/requirements.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

TEST(SteadyStep, HasNoAllocationAndNoPageFaultMoreThanALoopByHand) {
  LOCKSTEP_REQUIRE(Requirements().that(!kHasSanitizer, "a sanitizer has an allocator of its own"));
  const auto result = Process({STEADY_STEP_PROGRAM}, {{"OMP_NUM_THREADS", "1"}}).wait();
  ASSERT_EQ(result.code, 0) << result.err;
  const auto costs = nlohmann::json::parse(result.out);
  const auto allocations = [&](const char* of) { return costs.at(of).at("allocations").get<double>(); };
  EXPECT_GT(allocations("by_hand"), 10) << "each tensor is at least one";
  EXPECT_LE(allocations("trainer"), allocations("by_hand"));
  EXPECT_NEAR(allocations("callbacks_of_other_stages"), allocations("trainer"), 0.1);
  EXPECT_EQ(costs.at("calls"), 1) << "the start of the fit";
  EXPECT_NEAR(allocations("allocating_callback"), allocations("trainer") + 1, 0.1) << "the control";
  const auto page_faults = [&](const char* of) { return costs.at(of).at("page_faults").get<double>(); };
  EXPECT_LT(page_faults("trainer"), page_faults("by_hand") + 0.1);  // the system may take pages away meanwhile
}

}  // namespace
}  // namespace lockstep
