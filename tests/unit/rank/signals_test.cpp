#include "rank/signals.h"

#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(SignalScope, TurnsSignalsIntoRequests) {
  const std::pair<int, StopKind> cases[] = {
      {SIGINT, StopKind::interrupt}, {SIGTERM, StopKind::terminate}, {SIGUSR1, StopKind::terminate}};
  for (const auto& [signal, kind] : cases) {
    TrainControl control;
    const SignalScope scope(control);
    EXPECT_EQ(control.stop_requested(), StopKind::none);
    raise(signal);
    EXPECT_EQ(control.stop_requested(), kind) << strsignal(signal);
  }
}

TEST(SignalScope, RestoresTheOldHandlers) {
  const auto handler_of = [](int signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler;
  };
  signal(
      SIGTERM, +[](int) {});
  const auto before = handler_of(SIGTERM);
  {
    const SignalScope scope{TrainControl()};
    EXPECT_NE(handler_of(SIGTERM), before);
    EXPECT_NE(handler_of(SIGINT), SIG_DFL);
  }
  EXPECT_EQ(handler_of(SIGTERM), before);
  EXPECT_EQ(handler_of(SIGINT), SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

TEST(SignalScope, LeavesAnIgnoredSignalIgnored) {
  signal(SIGUSR1, SIG_IGN);
  TrainControl control;
  {
    const SignalScope scope(control);
    raise(SIGUSR1);
  }
  signal(SIGUSR1, SIG_DFL);
  EXPECT_EQ(control.stop_requested(), StopKind::none);
}

TEST(SignalScope, TakesOneCtrlCThatArrivesTwiceAsOne) {
  TrainControl control;
  const SignalScope scope(control);
  raise(SIGINT);
  raise(SIGINT);  // would end the test
  EXPECT_EQ(control.stop_requested(), StopKind::interrupt);
}

TEST(SignalScopeDeathTest, EndsAtOnceOnTheSecondCtrlC) {
  const auto interrupt_twice = [] {
    const SignalScope scope{TrainControl()};
    raise(SIGINT);
    poll(nullptr, 0, 1100);  // the rule under test is about time: more than a second
    raise(SIGINT);
    _exit(0);
  };
  EXPECT_EXIT(interrupt_twice(), testing::ExitedWithCode(130), "");
}

TEST(SignalScopeDeathTest, IsOneAtATime) {
  const auto two = [] {
    const SignalScope one{TrainControl()};
    const SignalScope another{TrainControl()};
  };
  EXPECT_DEATH(two(), "one SignalScope at a time");
}

TEST(SignalScope, LetsWritesToAClosedPipeFail) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  close(ends[0]);
  {
    const SignalScope scope{TrainControl()};
    EXPECT_EQ(write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  EXPECT_EXIT(static_cast<void>(write(ends[1], "x", 1) + 0), testing::KilledBySignal(SIGPIPE), "")
      << "the control: without the scope";
  close(ends[1]);
}

}  // namespace
}  // namespace lockstep
