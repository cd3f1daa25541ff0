#include "base/run_pattern.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(RunPattern, IsFoundInADirectory) {
  EXPECT_FALSE(parse_run_pattern("runs/first"));
  const auto pattern = parse_run_pattern("/data/runs/digits-{n}.d");
  ASSERT_TRUE(pattern);
  EXPECT_EQ(pattern->parent, "/data/runs/");
  EXPECT_EQ(pattern->path("12"), "/data/runs/digits-12.d");
  EXPECT_EQ(parse_run_pattern("{n}")->path("3"), "3");
  EXPECT_EQ(parse_run_pattern("/{time}")->path("x"), "/x");
}

TEST(RunPattern, KnowsItsDirectories) {
  const auto number = *parse_run_pattern("runs/a{n}b");
  EXPECT_EQ(number.value_in("a10b"), "10");
  for (const char* other :
       {"ab", "a0b", "a01b", "a-1b", "a1", "1b", "a1b.1", "a1bb", "runs/a1b", "", "a1234567890123456789b"}) {
    EXPECT_FALSE(number.value_in(other)) << other;
  }
  const auto time = *parse_run_pattern("runs/{time}");
  EXPECT_EQ(time.value_in("20261121-100000"), "20261121-100000");
  for (const char* other : {"20261121-10000", "20261121100000", "2026-1121-00000", "20261121-100000.1"}) {
    EXPECT_FALSE(time.value_in(other)) << other;
  }
}

TEST(RunPattern, OtherBracesAreAFault) {
  for (const char* good : {"runs/first", "{n}", "runs/{n}", "runs/{time}/", "a/b-{n}-c//", ""}) {
    EXPECT_FALSE(find_pattern_fault(good)) << good;
  }
  for (const char* bad : {"runs/{N}", "runs/{n", "runs/}", "{n}{n}", "{n}-{time}", "runs/{n}/{n}", "{date}"}) {
    EXPECT_EQ(find_pattern_fault(bad), "found another { or }, expected at most one {n} or {time}") << bad;
  }
  EXPECT_EQ(find_pattern_fault("runs/{n}/a"), "the placeholder is not in the last directory");
}

}  // namespace
}  // namespace lockstep
