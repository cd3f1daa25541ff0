#include "rank/crash_handler.h"

#include <cstdlib>
#include <semaphore>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/signals_blocked.h"
#include "support/requirements.h"

namespace lockstep {
namespace {

/// The end of a rank with a request for its stacks that another thread has not taken yet.
[[noreturn]] void end_with_a_request() {
  std::binary_semaphore is_blocked(0);
  std::binary_semaphore is_over(0);
  std::thread other([&] {
    {
      const AllSignalsBlocked blocked;
      is_blocked.release();
      is_over.acquire();
    }  // a request that still waits ends the process here
  });
  is_blocked.acquire();
  {
    ProgressBoard board(1);
    CrashHandler handler(0, &board[0]);
    dump_stacks();
  }
  is_over.release();
  other.join();
  std::_Exit(0);
}

TEST(CrashHandler, EndsWithRequestsForStacksThatWereNotTaken) {
  EXPECT_EXIT(end_with_a_request(), testing::ExitedWithCode(0), "");
}

/// The exit code of a first process of a container that crashes.
[[noreturn]] void crash_as_first_process() {
  if (unshare(CLONE_NEWPID) != 0) {
    std::_Exit(2);
  }
  const pid_t first = fork();
  if (first == 0) {
    const CrashHandler handler(0, nullptr);
    std::abort();
  }
  alarm(20);  // less than the crash handler allows
  int status = 0;
  waitpid(first, &status, 0);
  std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// The kernel gives it no signal with its default action, so abort() goes on after that.
TEST(CrashHandlerDeathTest, EndsTheFirstProcessOfAContainer) {
  const pid_t child = fork();
  if (child == 0) {
    std::_Exit(unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  LOCKSTEP_REQUIRE(Requirements().that(status == 0, "no process namespaces"));
  EXPECT_EXIT(crash_as_first_process(), testing::ExitedWithCode(128 + SIGABRT), "rank 0 crashed: signal 6");
}

TEST(CrashHandler, LeavesAHandlerOfTheProgram) {
  struct sigaction own {};
  own.sa_handler = [](int) {};
  struct sigaction before {};
  sigaction(SIGUSR2, &own, &before);
  { CrashHandler handler(0, nullptr); }
  struct sigaction after {};
  sigaction(SIGUSR2, &before, &after);
  EXPECT_EQ(after.sa_handler, own.sa_handler);
}

}  // namespace
}  // namespace lockstep
