// Disturbances on shared machines: a run continues and ends with the same result as without them.
#include <csignal>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

#include "base/descriptor.h"
#include "faults/undisturbed.h"
#include "support/requirements.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

class Disturbed : public Undisturbed {
 protected:
  void expect_as_undisturbed(Process& process) const {
    const auto result = process.wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(ends_like_the_straight_run());
    EXPECT_THAT(result.err, Not(HasSubstr("no progress")));
  }
};

TEST_F(Disturbed, ByASuspendedLauncher) {
  Process process(two_ranks(run(), {"--dist.stall_warn_s", "1", "--dist.stall_timeout_s", "2"}));
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  process.signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(3));  // the tested time: longer than the limits
  process.signal(SIGCONT);
  expect_as_undisturbed(process);
}

TEST_F(Disturbed, ByASuspendedRank) {
  Process process(two_ranks(run()));
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  const auto ranks = Process::ranks_of(process.pid());
  ASSERT_EQ(ranks.size(), 2U);
  kill(ranks[1], SIGSTOP);
  ASSERT_TRUE(process.wait_for("rank 1 (pid " + std::to_string(ranks[1]) + ") is stopped by a signal"));
  kill(ranks[1], SIGCONT);
  expect_as_undisturbed(process);
}

TEST_F(Disturbed, ByADebuggerThatHoldsARankForLong) {
  Process process(two_ranks(run(), {"--dist.stall_timeout_s", "1"}));
  ASSERT_TRUE(process.wait_for("step 100 ")) << process.err();
  const auto ranks = Process::ranks_of(process.pid());
  ASSERT_EQ(ranks.size(), 2U);
  LOCKSTEP_REQUIRE(
      Requirements().that(ptrace(PTRACE_SEIZE, ranks[0], 0, 0) == 0, "this process may not trace another"));
  ptrace(PTRACE_INTERRUPT, ranks[0], 0, 0);
  ASSERT_EQ(waitpid(ranks[0], nullptr, __WALL), ranks[0]);
  EXPECT_TRUE(process.wait_for("rank 0 (pid " + std::to_string(ranks[0]) + ") is held by a debugger"));
  std::this_thread::sleep_for(std::chrono::seconds(3));  // the tested time: longer than the limit
  ptrace(PTRACE_DETACH, ranks[0], 0, 0);
  expect_as_undisturbed(process);
}

TEST_F(Disturbed, ByRequestsForStacksAndAReaderWhoLeft) {
  const std::string words = join(two_ranks(run()), " ");
  Process process({"sh", "-c", "exec " + words + " 3>&1 >&- 2>&3"});  // no standard output
  std::vector<pid_t> started;
  while (started.size() < 2 && !process.ended_within(milliseconds(1))) {
    started = Process::ranks_of(process.pid());
  }
  for (const pid_t rank : started) {
    kill(rank, SIGUSR2);  // long before main() begins
  }
  ASSERT_TRUE(process.wait_for("step 50 ")) << process.err();
  for (int i = 0; i < 3; ++i) {
    process.signal(SIGUSR2);
    const auto ranks = Process::ranks_of(process.pid());
    if (!ranks.empty()) {
      kill(ranks.back(), SIGUSR2);
    }
    process.ended_within(milliseconds(100));
  }
  expect_as_undisturbed(process);
  EXPECT_THAT(process.wait_for("stack of thread"), true);
}

/// A wall clock for selected processes, shifted by some seconds.
class WallClock {
 public:
  WallClock() {
    std::ofstream(path()) << std::string(sizeof(std::int64_t), '\0');
    const Descriptor file(open(path().c_str(), O_RDWR | O_CLOEXEC));
    shift_ = static_cast<volatile std::int64_t*>(
        mmap(nullptr, sizeof(std::int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  }
  ~WallClock() { munmap(const_cast<std::int64_t*>(shift_), sizeof(std::int64_t)); }
  WallClock(const WallClock&) = delete;
  WallClock& operator=(const WallClock&) = delete;

  void set(std::int64_t seconds) { *shift_ = seconds; }
  Process::Environment environment() const { return {{"LD_PRELOAD", WALL_CLOCK_SHIM}, {"TEST_WALL_CLOCK", path()}}; }

 private:
  std::string path() const { return (dir_.path() / "shift").string(); }
  TempDir dir_;
  volatile std::int64_t* shift_ = nullptr;
};

constexpr std::int64_t kHour = 3600;
constexpr std::int64_t kYear = 365 * 24 * kHour;

TEST_F(Disturbed, ByAWallClockThatJumps) {
  WallClock clock;
  Process process(two_ranks(run(), {"--dist.stall_warn_s", "20", "--dist.timeout_s", "60"}), clock.environment());
  int jumps = 0;
  for (const std::int64_t shift : {kHour, -kHour, kYear, -kYear}) {
    clock.set(shift);
    ++jumps;
    if (process.ended_within(milliseconds(200))) {
      break;
    }
  }
  for (; !process.ended_within(milliseconds(50)); ++jumps) {
    clock.set(jumps % 2 == 0 ? kYear : -kYear);
  }
  EXPECT_GE(jumps, 8) << "the run ended before the clock had jumped";
  expect_as_undisturbed(process);
  EXPECT_THAT(process.err(), Not(HasSubstr("warning")));
}

TEST_F(Disturbed, WallClockShimWorks) {  // the control
  WallClock clock;
  clock.set(10 * kYear);
  const auto year = [&](const Process::Environment& environment) {
    return std::stoi(run_program({"date", "+%Y"}, environment).out);
  };
  EXPECT_GE(year(clock.environment()), year({}) + 9);
}

TEST_F(Disturbed, ByATinyShm) {
  LOCKSTEP_REQUIRE(Requirements().that(run_program({"unshare", "--mount", "true"}).code == 0,
                                       "no mount namespaces: they need root"));
  Process process({"unshare", "--mount", "sh", "-c",
                   "mount -t tmpfs -o size=4k tmpfs /dev/shm && exec " + join(two_ranks(run()), " ")});
  expect_as_undisturbed(process);
}

}  // namespace
}  // namespace lockstep
