// What a rank does is in its record, before, in and after a collective.
#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/plan/plan.h>

#include "support/thread_world.h"

namespace lockstep {
namespace {

TEST(Progress, CountsCollectivesAndNamesTheLast) {
  thread_world(2, [](World& world) {
    const ProgressRecord& record = WorldAccess::progress(world);
    world.barrier("one");
    world.any(false);
    world.all_reduce(at::ones({4}), Reduce::sum);
    const ProgressView now = view(record);
    ASSERT_EQ(now.collectives, 3U);
    ASSERT_EQ(now.operation, Operation::none);
    ASSERT_EQ(now.bytes, 16);
    const auto beats = now.beats;
    static_cast<void>(world.broadcast_bytes("x"));
    ASSERT_GT(view(record).beats, beats);
  });
}

TEST(Progress, ShowsWhoTakesATurnAndWhoWaits) {
  std::atomic<const ProgressRecord*> waiting{nullptr};
  std::atomic<bool> seen{false};
  thread_world(2, [&](World& world) {
    if (!world.is_main()) {
      waiting = &WorldAccess::progress(world);
    }
    world.main_first("work", [&] {
      ASSERT_EQ(view(WorldAccess::progress(world)).operation, Operation::none) << "its own turn is no collective";
      while (world.is_main() && !seen) {
        const ProgressRecord* other = waiting;
        seen = other != nullptr && view(*other).operation == Operation::turn;
      }
    });
    ASSERT_EQ(view(WorldAccess::progress(world)).operation, Operation::none);
  });
}

TEST(Progress, KeepsTheCollectiveThatFailed) {
  thread_world(2, [](World& world) {
    world.barrier("both are connected");
    if (world.rank() == 1) {
      return;  // goes away
    }
    ASSERT_THROW(world.all_reduce(at::ones({1000}), Reduce::sum), CommError);
    ASSERT_EQ(view(WorldAccess::progress(world)).operation, Operation::all_reduce);
    ASSERT_EQ(to_string(view(WorldAccess::progress(world))), "start-up, in collective 2: all-reduce of 3.9 KiB");
  });
}

TEST(Progress, OfAWorldOfOneIsOnTheLaunchersBoard) {
  ProgressBoard board(3);
  Plan plan;
  plan.local_devices.resize(3);
  const World world = World::connect(plan, {.local_rank = 2, .local_world_size = 3, .progress_fd = board.fd()});
  WorldAccess::progress(world).set_step(7);
  EXPECT_EQ(view(board[2]).step, 7);
  EXPECT_EQ(view(board[0]).step, -1);
}

TEST(Progress, APhaseThatEndsByAnExceptionStays) {
  ProgressRecord record;
  {
    const PhaseScope scope(record, Phase::validation);
    EXPECT_EQ(view(record).phase, Phase::validation);
  }
  EXPECT_EQ(view(record).phase, Phase::start);
  EXPECT_THROW(
      {
        const PhaseScope scope(record, Phase::save);
        throw std::runtime_error("disk full");
      },
      std::runtime_error);
  EXPECT_EQ(view(record).phase, Phase::save);
}

}  // namespace
}  // namespace lockstep
