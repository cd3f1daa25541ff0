#include "environment/build_info.h"

#include <cstdio>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(BuildId, DiffersBetweenProgramAndLibrary) {
  const std::string program = program_build_id();
  EXPECT_THAT(program, testing::MatchesRegex("[0-9a-f]{8,}|[0-9]+ bytes"));
  EXPECT_EQ(build_id_of(reinterpret_cast<const void*>(&program_build_id)), program) << "linked into this program";
  EXPECT_EQ(program_build_id(), program);
  const std::string library = build_id_of(stdout);
  EXPECT_NE(library, program);
  EXPECT_NE(library, "unknown");
}

TEST(BuildText, NamesLibraryLibTorchAndCompiler) {
  EXPECT_THAT(build_text(),
              testing::MatchesRegex("lockstep [0-9.]+(, LibTorch [0-9.]+)?(, CUDA [0-9.]+)?, .+ [0-9.]+"));
}

TEST(BuildId, OfAnAddressOutsideEveryFileIsUnknown) {
  const int local = 0;
  EXPECT_EQ(build_id_of(&local), "unknown");
}

}  // namespace
}  // namespace lockstep
