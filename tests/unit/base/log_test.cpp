#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <lockstep/base/log.h>
#include <lockstep/base/variables.h>

#include "base/terminal.h"
#include "support/captured_stderr.h"

namespace lockstep {
namespace {

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
