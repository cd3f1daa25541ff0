#include "base/kept_memory.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/page_faults.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

/// Of a program with these variables.
long faults_of_a_program(const Process::Environment& environment) {
  const auto result = Process({KEPT_MEMORY_PROGRAM}, environment).wait();
  EXPECT_EQ(result.code, 0) << result.err;
  return std::stol(result.out);
}

TEST(KeptMemory, IsUsedAgainWithoutPageFaults) {
  LOCKSTEP_REQUIRE(Requirements().that(!kHasSanitizer, "a sanitizer has an allocator of its own"));
  long kept = 0;
  {
    const KeptMemory memory(true);
    kept = faults_of_steps();
  }
  EXPECT_LT(kept, 100);
  // Controls: without it, each step faults in its blocks of 32 and 64 MiB again.
  EXPECT_GT(faults_of_steps(), 10000);
  const KeptMemory unwanted(false);
  EXPECT_GT(faults_of_steps(), 10000);
}

// As the allocator of a program does that has used larger blocks before.
TEST(KeptMemory, LeavesAnAllocatorThatUsesSmallerBlocksAgain) {
  LOCKSTEP_REQUIRE(Requirements().that(!kHasSanitizer, "a sanitizer has an allocator of its own"));
  { const KeptMemory memory(true); }
  EXPECT_LT(faults_of_steps(1 << 20), 100);
}

TEST(KeptMemory, LeavesSettingsOfTheUserAndOtherAllocatorsAlone) {
  LOCKSTEP_REQUIRE(Requirements().that(!kHasSanitizer, "a sanitizer has an allocator of its own"));
  const std::vector<Process::Environment> left_alone{{{"MALLOC_TRIM_THRESHOLD_", "131072"}},
                                                     {{"MALLOC_MMAP_THRESHOLD_", "131072"}},
                                                     {{"MALLOC_MMAP_MAX_", "65536"}},
                                                     {{"MALLOC_TOP_PAD_", "131072"}},
                                                     {{"GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=131072"}},
                                                     {{"LD_PRELOAD", OTHER_MALLOC_SHIM}}};
  for (const auto& environment : left_alone) {
    EXPECT_GT(faults_of_a_program(environment), 10000) << environment.begin()->first;
  }
  // Controls: no variable, and some that are not about memory that is kept.
  const std::vector<Process::Environment> kept{
      {}, {{"MALLOC_ARENA_MAX", "2"}}, {{"GLIBC_TUNABLES", "glibc.rtld.nns=4"}}};
  for (const auto& environment : kept) {
    EXPECT_LT(faults_of_a_program(environment), 100);
  }
}

TEST(KeptMemory, LastsUntilTheLastScopeEnds) {
  LOCKSTEP_REQUIRE(Requirements().that(!kHasSanitizer, "a sanitizer has an allocator of its own"));
  auto first = std::make_unique<KeptMemory>(true);
  { const KeptMemory inner(true); }
  EXPECT_LT(faults_of_steps(), 100);
  const auto second = std::make_unique<KeptMemory>(true);
  first.reset();
  EXPECT_LT(faults_of_steps(), 100);
}

}  // namespace
}  // namespace lockstep
