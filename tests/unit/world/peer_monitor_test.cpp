// What a rank learns of failures through the store; how its process ends is in tests/integration/guard_test.cpp and
// tests/faults/two_machines_test.cpp, and what can happen in which order in tests/simulation.
#include "failure/peer_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

constexpr std::chrono::seconds kPatience{20};
constexpr const char* kStore = "lockstep/failures";

class StoreMonitor : public PeerMonitor {
 public:
  explicit StoreMonitor(const World& world)
      : PeerMonitor({.rank = world.rank(),
                     .size = world.size(),
                     .head_start = std::chrono::minutes(2)}) {  // no test ends its process
    watch_peers(world.store(kStore), {});
  }
};

/// What all ranks agree on, when this one has heard of it.
std::string cause_heard_by(const World& world) {
  const auto store = world.store(kStore);
  store->get("heard/" + std::to_string(world.rank()), kPatience);
  return store->get("failed", kPatience);
}

TEST(PeerMonitor, TellsEveryRankWhoFailedFirst) {
  thread_world(3, [](World& world) {
    StoreMonitor monitor(world);
    if (world.rank() == 2) {
      EXPECT_FALSE(monitor.fail({.text = "no space left\n  hint: make some"}).is_stopped);
    }
    ASSERT_THAT(cause_heard_by(world), AllOf(HasSubstr("rank 2 (pid "), EndsWith(" failed: no space left")));
    world.barrier("all have heard");
  });
}

TEST(PeerMonitor, HearsOnlyTheFirstOfTwo) {
  thread_world(2, [](World& world) {
    StoreMonitor monitor(world);
    world.one_by_one("fail", [&] { monitor.fail({.text = world.is_main() ? "cause" : "consequence"}); });
    ASSERT_THAT(cause_heard_by(world), HasSubstr("failed: cause"));
    world.barrier("all have heard");
  });
}

TEST(PeerMonitor, SpeaksForOneThatEndedBeforeItSaidWhy) {
  thread_world(2, [](World& world) {
    if (world.is_main()) {
      world.store(kStore)->add("failures", 1);
    }
    world.barrier("somebody began to tell");
    StoreMonitor monitor(world);
    if (world.rank() == 1) {
      monitor.fail({.text = "seen from outside"});
    }
    ASSERT_THAT(cause_heard_by(world), HasSubstr("seen from outside"));
    world.barrier("all have heard");
  });
}

TEST(PeerMonitor, MissesANodeThatFallsSilent) {
  constexpr std::chrono::seconds kShort{2};
  thread_world(
      3,
      [&](World& world) {
        std::optional<StoreMonitor> monitor(std::in_place, world);
        monitor->watch_nodes({.count = 3, .mine = world.node(), .watches_next = true, .silence = kShort});
        if (world.rank() == 2) {
          ASSERT_THROW(world.store(kStore)->get("failed", 2 * kShort), CommError) << "all are heard of";
        }
        world.barrier("all were heard of");
        if (world.rank() == 1) {
          monitor.reset();
        } else {
          ASSERT_THAT(cause_heard_by(world), HasSubstr("node 1 has not been heard of for 2 s"));
        }
        world.barrier("all have heard");
      },
      std::chrono::seconds(30), /*nodes=*/3);
}

TEST(PeerMonitor, LeavesAtOnceWhenItIsNotNeededAnyMore) {
  thread_world(2, [](World& world) {
    for (int i = 0; i < 20; ++i) {
      const StoreMonitor monitor(world);
    }
    world.barrier("done");
    ASSERT_FALSE(world.store(kStore)->check("failed"));
  });
}

}  // namespace
}  // namespace lockstep
