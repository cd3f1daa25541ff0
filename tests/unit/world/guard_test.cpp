// What a guard knows; how it ends a process is in tests/integration/guard_test.cpp and
// tests/faults/two_machines_test.cpp.
#include "world/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Optional;

constexpr std::chrono::seconds kPatience{20};
const Guard::Options kOptions{.head_start = std::chrono::minutes(2)};  // no test ends its process

TEST(Guard, TellsEveryRankWhoFailedFirst) {
  thread_world(3, [](World& world) {
    Guard guard(world, kOptions);
    if (world.rank() == 2) {
      guard.report("no space left\n  hint: make some", 1);
      ASSERT_THAT(guard.first_failure(kPatience), Optional(HasSubstr("rank 2 (pid ")));
    } else {
      ASSERT_THAT(guard.first_failure(kPatience), Optional(testing::EndsWith(" failed: no space left")));
    }
    world.barrier("all have heard");
  });
}

TEST(Guard, HearsOnlyTheFirstOfTwo) {
  thread_world(2, [](World& world) {
    Guard guard(world, kOptions);
    world.one_by_one("fail", [&] { guard.report(world.is_main() ? "cause" : "consequence", 1); });
    ASSERT_THAT(guard.first_failure(kPatience), Optional(HasSubstr("failed: cause")));
    world.barrier("all have heard");
  });
}

TEST(Guard, SpeaksForOneThatEndedBeforeItSaidWhy) {
  thread_world(2, [](World& world) {
    if (world.is_main()) {
      world.store("lockstep/guard")->add("failures", 1);
    }
    world.barrier("somebody began to tell");
    Guard guard(world, kOptions);
    if (world.rank() == 1) {
      guard.report("seen from outside", 1);
    }
    ASSERT_THAT(guard.first_failure(kPatience), Optional(HasSubstr("seen from outside")));
    world.barrier("all have heard");
  });
}

TEST(Guard, MissesANodeThatFallsSilent) {
  constexpr std::chrono::seconds kShort{2};
  thread_world(
      3,
      [&](World& world) {
        Guard::Options options = kOptions;
        options.heartbeat_timeout = kShort;
        std::optional<Guard> guard(std::in_place, world, options);
        guard->watch_nodes(world);
        if (world.rank() == 2) {
          ASSERT_EQ(guard->first_failure(2 * kShort), std::nullopt) << "all are heard of";
        }
        world.barrier("all were heard of");
        if (world.rank() == 1) {
          guard.reset();
        } else {
          ASSERT_THAT(guard->first_failure(kPatience), Optional(HasSubstr("node 1 has not been heard of for 2 s")));
        }
        world.barrier("all have heard");
      },
      std::chrono::seconds(30), /*nodes=*/3);
}

TEST(Guard, KnowsOfNothingInAHealthyWorld) {
  thread_world(2, [](World& world) {
    Guard guard(world, kOptions);
    ASSERT_EQ(guard.first_failure(std::chrono::milliseconds(300)), std::nullopt);
    world.barrier("done");
  });
}

TEST(Guard, LeavesAtOnceWhenItIsNotNeededAnyMore) {
  thread_world(2, [](World& world) {
    for (int i = 0; i < 20; ++i) {
      const Guard guard(world, kOptions);
    }
    world.barrier("done");
  });
}

}  // namespace
}  // namespace lockstep
