#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/variables.h>

#include "base/log_label.h"
#include "base/terminal.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

/// The output of `write` on standard error.
template <class Write>
std::string captured(Write&& write) {
  CapturedStderr captured;
  write();
  return captured.text();
}

TEST(Log, LabelsLinesWithTheRankOfTheThread) {
  const std::string text = captured([] {
    log_info("alone");
    std::thread([] {
      set_log_rank(0, 2);
      log_info("from rank 0");
      log_warning("careful");
    }).join();
    std::thread([] {
      set_log_rank(1, 2);
      log_info("only the main rank says this");
      log(LogLevel::error, "broken");
    }).join();
    log_info("still alone");
  });
  EXPECT_EQ(text, "alone\n[rank0]: from rank 0\n[rank0]: warning: careful\n[rank1]: error: broken\nstill alone\n");
}

TEST(Log, DropsLinesBelowTheLevel) {
  const std::string text = captured([] {
    log(LogLevel::debug, "debug");
    set_log_level(LogLevel::error);
    log_warning("warning");
    log(LogLevel::error, "error");
    set_log_level(LogLevel::off);
    log(LogLevel::error, "nothing");
    set_log_level(LogLevel::debug);
    log(LogLevel::debug, "shown");
    set_log_level(LogLevel::info);
  });
  EXPECT_EQ(text, "error: error\nshown\n");
}

/// Lines that a handler got, in its form.
struct Lines {
  LogHandler handler() {
    return [this](LogLevel level, std::string_view message) {
      const std::lock_guard lock(mutex);
      all.push_back(std::to_string(static_cast<int>(level)) + " rank " + std::to_string(log_rank()) + " " +
                    std::string(message));
    };
  }
  std::mutex mutex{};
  std::vector<std::string> all{};
};

TEST(LogScope, GetsTheLinesOfItsThread) {
  Lines outer;
  Lines inner;
  const std::string text = captured([&] {
    log_info("before");
    {
      const LogScope scope(outer.handler());
      log_info("saved");
      log(LogLevel::debug, "below the level");
      {
        const LogScope other(inner.handler());
        log_warning("careful");
      }
      std::thread([] { log_info("of another thread of the program"); }).join();
      std::thread([] {
        set_log_rank(1, 2);
        log_warning("of another rank");
      }).join();
      log(LogLevel::error, "broken");
    }
    log_info("after");
  });
  EXPECT_THAT(outer.all, ElementsAre("1 rank 0 saved", "3 rank 0 broken"));
  EXPECT_THAT(inner.all, ElementsAre("2 rank 0 careful"));
  EXPECT_EQ(text, "before\nof another thread of the program\n[rank1]: warning: of another rank\nafter\n");
}

TEST(LogScope, GetsTheLinesOfThreadsWithItsLabel) {
  Lines lines;
  const std::string text = captured([&] {
    std::thread([&] {
      std::thread later;
      std::latch is_over(1);
      {
        const LogScope scope(lines.handler());
        set_log_rank(1, 2);
        later = std::thread([&, label = log_label()] {
          log_warning("not yet");
          const LogLabelScope inherited(label);
          is_over.wait();
          log_info("only the main rank says this");
          log_warning("careful");
        });
      }
      is_over.count_down();
      later.join();
    }).join();
  });
  EXPECT_THAT(lines.all, ElementsAre("2 rank 1 careful")) << "also after the scope";
  EXPECT_EQ(text, "warning: not yet\n");
}

TEST(LogScope, LosesNoLineOfAHandlerThatThrows) {
  const std::string text = captured([] {
    const LogScope scope([](LogLevel, std::string_view) { throw std::runtime_error("full"); });
    log_warning("careful");
  });
  EXPECT_EQ(text, "warning: careful\n");
}

TEST(LogScope, DoesNotGetWhatItsHandlerLogs) {
  std::vector<std::string> lines;
  const std::string text = captured([&] {
    const LogScope scope([&](LogLevel, std::string_view message) {
      lines.emplace_back(message);
      log_warning("from the handler");
    });
    log_info("first");
    log_info("second");
  });
  EXPECT_THAT(lines, ElementsAre("first", "second"));
  EXPECT_EQ(text, "warning: from the handler\nwarning: from the handler\n");
}

void end_scopes_in_wrong_order() {
  const LogHandler handler = [](LogLevel, std::string_view) {};
  std::optional<LogScope> outer(std::in_place, handler);
  const LogScope inner(handler);
  outer.reset();
}

void end_scope_in_another_thread() {
  auto scope = std::make_unique<LogScope>([](LogLevel, std::string_view) {});
  std::thread([&] { scope.reset(); }).join();
}

TEST(LogScopeDeathTest, MustEndInItsThreadTheNewestFirst) {
  const auto internal = testing::ExitedWithCode(static_cast<int>(ExitCode::internal));
  EXPECT_EXIT(end_scopes_in_wrong_order(), internal, "a LogScope ends before a newer one, or in another thread");
  EXPECT_EXIT(end_scope_in_another_thread(), internal, "a LogScope ends before a newer one, or in another thread");
}

TEST(LogScope, NeedsAFunction) {
  EXPECT_THAT(message_of<ConfigError>([] { const LogScope scope(nullptr); }),
              StartsWith("LogScope: found no function, expected one"));
  EXPECT_EQ(captured([] { log_info("still on standard error"); }), "still on standard error\n");
}

TEST(StatusLine, StaysBelowTheLog) {
  const std::string text = captured([] {
    write_status("50%");
    log_info("saved");
    write_status("60%");
    write_status("");
    log_info("done");
    write_status("");
  });
  EXPECT_EQ(text, "\r\x1b[K50%\r\x1b[Ksaved\n50%\r\x1b[K60%\r\x1b[Kdone\n");
}

TEST(WriteLine, IsOneWritePerLineFromAllThreads) {
  const std::string text = captured([] {
    std::vector<std::thread> threads;
    for (char letter : {'a', 'b', 'c', 'd'}) {
      threads.emplace_back([letter] {
        for (int i = 0; i < 200; ++i) {
          write_line(std::string(50, letter));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
  std::size_t lines = 0;
  for (std::size_t start = 0; start < text.size(); start += 51, ++lines) {
    ASSERT_EQ(text.substr(start, 51), std::string(50, text[start]) + "\n");
  }
  EXPECT_EQ(lines, 800U);
}

Terminal probe(int fd, std::map<std::string, std::string, std::less<>> variables) {
  return probe_terminal(fd, Variables(std::move(variables)));
}

class PseudoTerminal : public testing::Test {
 protected:
  void SetUp() override {
    winsize size{};
    size.ws_col = 132;
    ASSERT_EQ(::openpty(&leader_, &follower_, nullptr, nullptr, &size), 0);
  }
  void TearDown() override {
    ::close(leader_);
    ::close(follower_);
  }
  int leader_ = -1;
  int follower_ = -1;
};

TEST_F(PseudoTerminal, IsInteractiveUnlessTheEnvironmentSaysOtherwise) {
  const Terminal terminal = probe(follower_, {{"TERM", "xterm"}, {"COLUMNS", "40"}});
  EXPECT_TRUE(terminal.interactive);
  EXPECT_EQ(terminal.width, 132);
  EXPECT_FALSE(probe(follower_, {{"TERM", "dumb"}}).interactive);
  EXPECT_FALSE(probe(follower_, {}).interactive);
  EXPECT_FALSE(probe(follower_, {{"TERM", "xterm"}, {"CI", "true"}}).interactive);
}

TEST(ProbeTerminal, OfAFileIsNotInteractive) {
  const int fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const Terminal plain = probe(fd, {{"TERM", "xterm"}, {"COLUMNS", "100"}});
  EXPECT_FALSE(plain.interactive);
  EXPECT_EQ(plain.width, 100);
  EXPECT_EQ(probe(fd, {{"COLUMNS", "wide"}}).width, 80);
  ::close(fd);
}

TEST(ReadEnvironment, SeesThisProcess) {
  ASSERT_EQ(::setenv("LOCKSTEP_TEST_VARIABLE", "a=b", 1), 0);
  EXPECT_EQ(read_environment().get("LOCKSTEP_TEST_VARIABLE"), "a=b");
  ASSERT_EQ(::unsetenv("LOCKSTEP_TEST_VARIABLE"), 0);
  EXPECT_FALSE(read_environment().has("LOCKSTEP_TEST_VARIABLE"));
}

}  // namespace
}  // namespace lockstep
