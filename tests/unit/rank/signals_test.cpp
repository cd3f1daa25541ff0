#include "rank/signals.h"

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(SignalScope, TurnsSignalsIntoRequests) {
  const std::pair<int, StopKind> cases[] = {{SIGINT, StopKind::interrupt},
                                            {SIGTERM, StopKind::terminate},
                                            {SIGUSR1, StopKind::terminate},
                                            {SIGHUP, StopKind::terminate}};
  for (const auto& [signal, kind] : cases) {
    TrainControl control;
    const SignalScope scope(control);
    EXPECT_EQ(control.stop_requested(), StopKind::none);
    raise(signal);
    EXPECT_EQ(control.stop_requested(), kind) << strsignal(signal);
  }
}

// Nobody asked for requests yet, and nobody may ever: there is nothing to save.
TEST(SignalScopeDeathTest, EndsTheProcessBeforeTheTraining) {
  for (const auto& [signal, code] :
       {std::pair{SIGINT, 130}, std::pair{SIGTERM, 75}, std::pair{SIGUSR1, 75}, std::pair{SIGHUP, 75}}) {
    const auto wait = [number = signal] {
      const SignalScope scope{TrainControl()};
      raise(number);
      _exit(0);
    };
    EXPECT_EXIT(wait(), testing::ExitedWithCode(code),
                "stopped by signal " + std::to_string(signal) + ".*before the training began");
  }
}

// A simulator, or a loader of the program's own. The other signals reach a whole job, and it must help to save.
TEST(SignalScope, LetsAForkedChildEndBySigterm) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    TrainControl control;
    const SignalScope scope(control);
    EXPECT_EQ(control.stop_requested(), StopKind::none);
    const pid_t child = fork();
    if (child == 0) {
      raise(number);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, number == SIGTERM ? SIGTERM : 0) << strsignal(number);
    EXPECT_EQ(control.stop_requested(), StopKind::none);
  }
}

TEST(SignalScopeDeathTest, UnderOurLauncherDiesOfASignalBeforeTheTraining) {
  const auto wait = [] {
    const SignalScope scope(TrainControl(), EarlyStop::die_of_signal);
    raise(SIGTERM);
    _exit(0);
  };
  EXPECT_EXIT(wait(), testing::KilledBySignal(SIGTERM), "^$") << "the launcher says it";
}

TEST(SignalScope, KeepsAnEarlyRequestWhereItIsToldTo) {
  TrainControl control;
  const SignalScope scope(control, EarlyStop::wait);
  raise(SIGTERM);
  EXPECT_EQ(control.stop_requested(), StopKind::terminate);
}

TEST(SignalScopeDeathTest, EndsTheProcessAlsoWhereStandardErrorIsStuck) {
  const auto wait = [] {
    std::array<int, 2> ends{};
    [[maybe_unused]] const int made = pipe2(ends.data(), O_NONBLOCK);
    while (write(ends[1], "x", 1) == 1) {
    }
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], STDERR_FILENO);
    const SignalScope scope{TrainControl()};
    raise(SIGTERM);
    _exit(0);
  };
  EXPECT_EXIT(wait(), testing::ExitedWithCode(75), "");
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
  for (const int number : {SIGUSR1, SIGHUP}) {  // nohup ignores the second
    signal(number, SIG_IGN);
    TrainControl control;
    {
      const SignalScope scope(control);
      raise(number);
    }
    signal(number, SIG_DFL);
    EXPECT_EQ(control.stop_requested(), StopKind::none);
  }
}

TEST(SignalScope, TakesOneCtrlCThatArrivesTwiceAsOne) {
  TrainControl control;
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  const SignalScope scope(control);
  raise(SIGINT);
  raise(SIGINT);  // would end the test
  EXPECT_EQ(control.stop_requested(), StopKind::interrupt);
}

TEST(SignalScopeDeathTest, EndsAtOnceOnTheSecondCtrlC) {
  const auto interrupt_twice = [] {
    TrainControl control;
    [[maybe_unused]] const StopKind none = control.stop_requested();
    const SignalScope scope(control);
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

TEST(SignalScope, LetsWritesAboveTheLimitOfAFileFail) {
  const auto write_above = [] {
    const rlimit limit{0, 0};
    setrlimit(RLIMIT_FSIZE, &limit);
    const int file = memfd_create("file", MFD_CLOEXEC);
    return write(file, "x", 1) == -1 && errno == EFBIG;
  };
  EXPECT_EXIT(
      {
        const SignalScope scope{TrainControl()};
        _exit(write_above() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EXIT(_exit(write_above() ? 0 : 1), testing::KilledBySignal(SIGXFSZ), "") << "the control: without the scope";
}

}  // namespace
}  // namespace lockstep
