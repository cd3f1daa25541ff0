#include "base/kept_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "support/requirements.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

constexpr std::size_t kBytes = 8 << 20;

/// Allocates, writes and frees blocks as a training step does, of `smallest` bytes and up to 8 times as much. Returns
/// the page faults of its later rounds.
long faults_of_steps(std::size_t smallest = kBytes) {
  constexpr std::size_t kBlocks = 8;
  long begin = 0;
  for (int step = 0; step < 10; ++step) {
    if (step == 5) {
      begin = page_faults();
    }
    std::vector<std::unique_ptr<char[]>> blocks;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique_for_overwrite<char[]>(smallest << (i % 4)));
      std::fill_n(blocks.back().get(), smallest << (i % 4), static_cast<char>(step));
    }
  }
  return page_faults() - begin;
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
