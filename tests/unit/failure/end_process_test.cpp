#include "failure/end_process.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr int kCode = 76;

/// Makes standard output a full pipe without a reader.
void let_output_get_stuck() {
  std::array<int, 2> ends{};
  [[maybe_unused]] const int made = pipe2(ends.data(), O_NONBLOCK);
  const std::string block(4096, 'x');
  while (write(ends[1], block.data(), block.size()) > 0) {
  }
  fcntl(ends[1], F_SETFL, 0);
  dup2(ends[1], STDOUT_FILENO);
  std::fputs("kept in the stream", stdout);
}

TEST(EndProcessDeathTest, FlushesTheStreams) {
  EXPECT_EXIT(
      {
        dup2(STDERR_FILENO, STDOUT_FILENO);  // death tests check standard error
        std::fputs("kept in the stream", stdout);
        end_process(kCode, [] { std::fputs("; last words", stdout); });
      },
      testing::ExitedWithCode(kCode), "kept in the stream; last words");
}

TEST(EndProcessDeathTest, FlushesStreamsThatHaveTheirOwnBuffer) {
  EXPECT_EXIT(
      {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        std::ios::sync_with_stdio(false);
        std::cout << "kept in the stream";
        end_process(kCode);
      },
      testing::ExitedWithCode(kCode), "kept in the stream");
}

TEST(EndProcessDeathTest, DoesNotWaitForAReader) {
  EXPECT_EXIT(
      {
        let_output_get_stuck();
        end_process(kCode);
      },
      testing::ExitedWithCode(kCode), "");
}

TEST(EndProcessDeathTest, DoesNotWaitForALockedStream) {
  EXPECT_EXIT(
      {
        let_output_get_stuck();
        std::thread([] { std::fflush(stdout); }).detach();
        while (ftrylockfile(stdout) == 0) {
          funlockfile(stdout);
          std::this_thread::yield();
        }
        end_process(kCode);
      },
      testing::ExitedWithCode(kCode), "");
}

TEST(EndProcessDeathTest, DoesNotWaitForALastMessage) {
  EXPECT_EXIT(end_process(kCode, [] { std::this_thread::sleep_for(std::chrono::hours(1)); }),
              testing::ExitedWithCode(kCode), "");
}

TEST(EndProcessDeathTest, EndsAThreadThatHangsLater) {
  EXPECT_EXIT(
      {
        end_process_within(std::chrono::seconds(1), kCode);
        std::this_thread::sleep_for(std::chrono::hours(1));
      },
      testing::ExitedWithCode(kCode), "");
}

}  // namespace
}  // namespace lockstep
