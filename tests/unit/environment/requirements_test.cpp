#include "support/requirements.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Requirements, MayBeMissingUnderForbiddenSkipsIfTheyAreOfTheMachine) {
  const std::string before = read_environment().get("LOCKSTEP_FORBID_SKIPS").value_or("0");
  setenv("LOCKSTEP_FORBID_SKIPS", "1", /*overwrite=*/1);
  EXPECT_TRUE(Requirements().of_the_machine(false, "one GPU").may_skip());
  EXPECT_FALSE(Requirements().that(false, "no NCCL").may_skip());
  EXPECT_FALSE(Requirements().that(false, "no NCCL").of_the_machine(false, "one GPU").may_skip());
  setenv("LOCKSTEP_FORBID_SKIPS", "0", /*overwrite=*/1);
  EXPECT_TRUE(Requirements().that(false, "no NCCL").may_skip());
  setenv("LOCKSTEP_FORBID_SKIPS", before.c_str(), /*overwrite=*/1);
  EXPECT_EQ(Requirements().that(false, "no NCCL").of_the_machine(false, "one GPU").missing(), "no NCCL; one GPU");
  EXPECT_EQ(Requirements().that(true, "").of_the_machine(true, "").missing(), "");
}

}  // namespace
}  // namespace lockstep
