#include "supervise/terminal_queue.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/descriptor.h"

namespace lockstep {
namespace {

/// In place of the terminal for as long as it lives: a pipe, whose writer waits while nobody reads.
class SlowScreen {
 public:
  SlowScreen() : before_(dup(STDERR_FILENO)) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    screen_ = Descriptor(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
  }
  ~SlowScreen() { detach(); }
  SlowScreen(const SlowScreen&) = delete;
  SlowScreen& operator=(const SlowScreen&) = delete;

  void detach() {
    if (before_.is_open()) {
      dup2(before_.get(), STDERR_FILENO);
      before_.close();
    }
  }
  /// All that is shown until `text` has been; without one, until the end.
  std::string read_until(const std::string& text = {}) {
    std::string shown;
    std::array<char, 4096> bytes{};
    while (text.empty() || shown.find(text) == std::string::npos) {
      const ssize_t size = read(screen_.get(), bytes.data(), bytes.size());
      if (size <= 0) {
        break;
      }
      shown.append(bytes.data(), static_cast<std::size_t>(size));
    }
    return shown;
  }

 private:
  Descriptor before_{};
  Descriptor screen_{};
};

TEST(TerminalQueue, ShowsNoStatusBelowALineThatCameAfterItsEnd) {
  SlowScreen screen;
  std::string shown;
  std::thread reader;
  {
    TerminalQueue queue(/*shared_screen=*/true);
    queue.status("42%|bar");
    screen.read_until("42%|bar");
    queue.line(OutputStream::err, std::string(1 << 20, 'x'));
    screen.read_until("x");  // the queue's thread now waits in the write of the rest
    queue.status("");
    queue.line(OutputStream::err, "after");
    reader = std::thread([&] { shown = screen.read_until(); });
  }
  screen.detach();
  reader.join();
  EXPECT_THAT(shown, testing::HasSubstr("after\n"));
  EXPECT_THAT(shown, testing::Not(testing::HasSubstr("after\n42%|bar")));
}

// Another program may have made the pipe that the launcher got as standard output non-blocking.
TEST(TerminalQueue, LosesNoLineToAPipeThatDoesNotBlock) {
  constexpr int kLines = 20'000;
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const Descriptor screen(ends[0]);
  const Descriptor before(dup(STDOUT_FILENO));
  dup2(ends[1], STDOUT_FILENO);
  close(ends[1]);
  std::jthread rank([&] {
    {
      TerminalQueue queue(false);
      for (int i = 0; i < kLines; ++i) {
        queue.line(OutputStream::out, "a line of a rank that is not short");
      }
    }
    dup2(before.get(), STDOUT_FILENO);  // ends the pipe
  });
  std::array<char, 4096> bytes{};
  std::ptrdiff_t lines = 0;
  for (ssize_t size = 0; (size = read(screen.get(), bytes.data(), bytes.size())) > 0;) {
    lines += std::count(bytes.data(), bytes.data() + size, '\n');
  }
  EXPECT_EQ(lines, kLines);
}

}  // namespace
}  // namespace lockstep
