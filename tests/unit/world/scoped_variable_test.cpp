#include <cstdlib>

#include <gtest/gtest.h>

#include <lockstep/base/variables.h>

#include "world/process_group.h"

namespace lockstep {
namespace {

constexpr const char* kName = "LOCKSTEP_TEST_SCOPED_VARIABLE";

TEST(ScopedVariable, IsGoneAfterItsScope) {
  {
    const ScopedVariable variable(kName, "ours");
    EXPECT_EQ(read_environment().get(kName), "ours");
  }
  EXPECT_FALSE(read_environment().has(kName));
}

TEST(ScopedVariable, LeavesTheUsersValueAlone) {
  setenv(kName, "theirs", 1);
  {
    const ScopedVariable variable(kName, "ours");
    EXPECT_EQ(read_environment().get(kName), "theirs");
  }
  EXPECT_EQ(read_environment().get(kName), "theirs");
  unsetenv(kName);
}

}  // namespace
}  // namespace lockstep
