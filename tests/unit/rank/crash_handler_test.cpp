#include "rank/crash_handler.h"

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace lockstep {
namespace {

/// The end of a rank right after a request for its stacks, which its other threads may not have taken yet.
[[noreturn]] void end_after_a_request() {
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&over] {
      while (!over) {
        usleep(1000);
      }
    });
  }
  {
    ProgressBoard board(1);
    CrashHandler handler(0, &board[0]);
    std::thread([] { dump_stacks(); }).join();
  }
  usleep(50'000);  // in which a request that was left over would end the process
  over = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::_Exit(0);
}

TEST(CrashHandler, EndsWithRequestsForStacksThatWereNotTaken) {
  for (int round = 0; round < 10; ++round) {
    EXPECT_EXIT(end_after_a_request(), testing::ExitedWithCode(0), "");
  }
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
