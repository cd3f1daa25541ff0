#include "rank/crash_handler.h"

#include <cstdlib>
#include <semaphore>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>

#include "base/signals_blocked.h"

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
