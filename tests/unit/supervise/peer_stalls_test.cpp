// Ranks of one process that look at each other's records. Real launches are in tests/integration/guard_test.cpp.
#include "supervise/peer_stalls.h"

#include <deque>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using namespace std::chrono_literals;

/// The ranks of one machine, numbers `first`, `first` + 1, ...
class Machine {
 public:
  Machine(int first, int ranks, int size) : first_(first) {
    for (int local = 0; local < ranks; ++local) {
      ProgressBoard& board = boards_.emplace_back(ranks);
      stalls_.emplace_back(
          PeerStalls::Options{.rank = first + local, .size = size, .local_size = ranks, .local_rank = local}, board);
      record(local).set_stall_limits(30s, 300s);
      record(local).set_step(812);
      record(local).set_phase(Phase::forward);
    }
  }
  ProgressRecord& record(int local) { return boards_[static_cast<std::size_t>(local)][local]; }
  void introduce(int local, int other, const std::string& about) {
    stalls_[static_cast<std::size_t>(local)].add({.rank = first_ + other, .process = this_process(), .about = about});
  }
  void introduce(int local, int other) { introduce(local, other, stalls_[static_cast<std::size_t>(other)].about()); }
  /// What one rank finds in that time.
  StallFinder::Finding look(int local, std::chrono::milliseconds duration) {
    StallFinder::Finding all;
    for (std::chrono::milliseconds passed{}; passed < duration; passed += StallWatch::kPeriod) {
      now_ += StallWatch::kPeriod;
      StallFinder::Finding found = stalls_[static_cast<std::size_t>(local)].look(now_);
      all.text += found.text;
      all.failure = found.failure ? found.failure : all.failure;
    }
    return all;
  }

 private:
  int first_;
  std::deque<ProgressBoard> boards_{};
  std::deque<PeerStalls> stalls_{};
  StallFinder::Time now_{};
};

TEST(PeerStalls, AreFoundByTheFirstRankOfAMachine) {
  Machine machine(0, 2, 2);
  machine.record(0).begin(Operation::all_reduce, 1 << 20);
  EXPECT_THAT(machine.look(0, 100s).text, IsEmpty()) << "the other rank has not been found";
  machine.introduce(0, 1);
  machine.introduce(1, 0);
  EXPECT_THAT(machine.look(1, 400s).text, IsEmpty()) << "rank 0 looks";
  EXPECT_EQ(machine.look(0, 31s).text,
            "no progress for 30 s; rank 1 is behind:\n"
            "  rank 0: step 812, forward, in collective 1: all-reduce of 1.0 MiB\n"
            "  rank 1: step 812, forward");
  const auto end = machine.look(0, 271s).failure;
  ASSERT_TRUE(end);
  EXPECT_EQ(end->rank, 1);
  EXPECT_EQ(end->code, 124);
  EXPECT_EQ(end->text, fmt::format("rank 1 ({}) failed: made no progress for 300 s at step 812 in forward",
                                   to_string(this_process())));
}

TEST(PeerStalls, OfOneMachineOfSeveralAreItsOwn) {
  Machine machine(2, 2, 4);
  machine.introduce(0, 1);
  for (const int local : {0, 1}) {
    machine.record(local).begin(Operation::all_reduce, 4);
  }
  const auto waiting = machine.look(0, 400s);
  EXPECT_THAT(waiting.text, IsEmpty()) << "the rank for which they wait may be elsewhere";
  EXPECT_FALSE(waiting.failure);
  for (const int local : {0, 1}) {
    machine.record(local).end();
  }
  machine.record(0).begin(Operation::all_reduce, 4);
  const auto hanging = machine.look(0, 31s);
  EXPECT_THAT(hanging.text, StartsWith("no progress for 30 s; rank 3 is behind:"));
  EXPECT_THAT(hanging.text, HasSubstr("  rank 2: step 812, forward, in collective 2: all-reduce of 4 B"));
}

TEST(PeerStalls, AreNotFoundWhereARankIsHidden) {
  Machine machine(0, 2, 2);
  machine.introduce(0, 1, "no descriptor 0");
  EXPECT_THAT(machine.look(0, 400s).text, IsEmpty());
}

}  // namespace
}  // namespace lockstep
