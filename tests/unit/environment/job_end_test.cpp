#include "environment/job_end.h"

#include <chrono>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using std::chrono::seconds;

std::optional<std::chrono::steady_clock::time_point> end_of(const std::string& text) {
  return job_end(Variables(std::map<std::string, std::string, std::less<>>{{"SLURM_JOB_END_TIME", text}}));
}

TEST(JobEnd, IsKnownFromSlurm) {
  const auto now = std::chrono::duration_cast<seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto end = end_of(std::to_string(now + 3600));
  ASSERT_TRUE(end.has_value());
  const auto left = *end - std::chrono::steady_clock::now();
  EXPECT_LE(left, seconds(3600));
  EXPECT_GT(left, seconds(3500));
}

TEST(JobEnd, IsUnknownElsewhereAndWhenItHasPassed) {
  EXPECT_EQ(job_end(Variables{}), std::nullopt);
  for (const char* text : {"0", "1", "1700000000", "9223372036854775807"}) {
    EXPECT_EQ(end_of(text), std::nullopt) << text;
  }
}

TEST(JobEnd, IsReadStrictly) {
  for (const char* text : {"", "soon", "1e9", "-1", "12 "}) {
    EXPECT_THROW(end_of(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace lockstep
