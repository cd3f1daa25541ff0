#include "supervise/signal_inbox.h"

#include <cerrno>
#include <csignal>
#include <optional>
#include <thread>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

namespace lockstep {
namespace {

std::optional<int> wait_for_signal(SignalInbox& inbox) {
  pollfd readable{inbox.fd(), POLLIN, 0};
  while (poll(&readable, 1, 20'000) == 1) {
    if (const auto signal = inbox.take()) {  // else another thread has taken it, and passes it on
      return signal;
    }
  }
  return std::nullopt;
}

// The kernel gives a signal of the process to a thread that does not block it. By default that would end the process.
TEST(SignalInbox, GetsSignalsThatReachAnotherThread) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  std::jthread other([end = pipe_ends[0]] {  // of a library, before the launcher is started
    char byte;
    EXPECT_EQ(read(end, &byte, 1), 1) << "a signal does not interrupt it";
  });
  {
    SignalInbox inbox;
    for (int round = 0; round < 50; ++round) {
      for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
        EXPECT_EQ(kill(getpid(), signal), 0);
        EXPECT_EQ(wait_for_signal(inbox), signal);
      }
    }
    {
      SignalInbox inner;
      kill(getpid(), SIGTERM);
      EXPECT_EQ(wait_for_signal(inner), SIGTERM);
    }
    kill(getpid(), SIGTERM);
    EXPECT_EQ(wait_for_signal(inbox), SIGTERM);
  }
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
  EXPECT_EQ(write(pipe_ends[1], "x", 1), 1);
  other.join();
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST(SignalInbox, LeavesIgnoredSignalsIgnored) {
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  struct sigaction before {};
  sigaction(SIGHUP, &ignored, &before);
  {
    SignalInbox inbox;
    kill(getpid(), SIGHUP);
    EXPECT_EQ(inbox.take(), std::nullopt);
  }
  struct sigaction after {};
  sigaction(SIGHUP, &before, &after);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(SignalInbox, LetsAWriteFailThatHasNoReader) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  {
    SignalInbox inbox;
    EXPECT_EQ(write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  struct sigaction after {};
  sigaction(SIGPIPE, nullptr, &after);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
  close(ends[1]);
}

}  // namespace
}  // namespace lockstep
