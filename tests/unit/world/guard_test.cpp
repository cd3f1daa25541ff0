// What a guard knows; how it ends a process is in tests/integration/torchrun_test.cpp.
#include "world/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Optional;

constexpr std::chrono::seconds kPatience{20};
constexpr std::chrono::minutes kHeadStart{2};  // no test ends its process

TEST(Guard, TellsEveryRankWhoFailedFirst) {
  thread_world(3, [](World& world) {
    Guard guard(world, kHeadStart);
    if (world.rank() == 2) {
      guard.report("no space left\n  hint: make some");
      ASSERT_THAT(guard.first_failure(kPatience), Optional(HasSubstr("rank 2 (pid ")));
    } else {
      ASSERT_THAT(guard.first_failure(kPatience), Optional(testing::EndsWith(" failed: no space left")));
    }
    world.barrier("all have heard");
  });
}

TEST(Guard, HearsOnlyTheFirstOfTwo) {
  thread_world(2, [](World& world) {
    Guard guard(world, kHeadStart);
    world.one_by_one("fail", [&] { guard.report(world.is_main() ? "cause" : "consequence"); });
    ASSERT_THAT(guard.first_failure(kPatience), Optional(HasSubstr("failed: cause")));
    world.barrier("all have heard");
  });
}

TEST(Guard, KnowsOfNothingInAHealthyWorld) {
  thread_world(2, [](World& world) {
    Guard guard(world, kHeadStart);
    ASSERT_EQ(guard.first_failure(std::chrono::milliseconds(300)), std::nullopt);
    world.barrier("done");
  });
}

TEST(Guard, LeavesAtOnceWhenItIsNotNeededAnyMore) {
  thread_world(2, [](World& world) {
    for (int i = 0; i < 20; ++i) {
      const Guard guard(world, kHeadStart);
    }
    world.barrier("done");
  });
}

}  // namespace
}  // namespace lockstep
