#include "report/console.h"

#include <memory>
#include <utility>

#include <gmock/gmock.h>

#include "ipc/channel.h"
#include "support/captured_stderr.h"

namespace lockstep {
namespace {

TEST(Console, ThroughTheChannelCarriesLinesAndStatus) {
  auto [supervisor, worker] = make_channel_pair();
  const auto console = channel_console(std::make_shared<Channel>(std::move(worker)), 100);
  EXPECT_TRUE(console->interactive());
  EXPECT_EQ(console->width(), 100);
  console->line("step 20");
  console->status("50%");
  const auto line = supervisor.receive();
  ASSERT_TRUE(line);
  EXPECT_EQ(line->kind, Message::Kind::line);
  EXPECT_EQ(line->text, "step 20");
  const auto status = supervisor.receive();
  ASSERT_TRUE(status);
  EXPECT_EQ(status->kind, Message::Kind::status);
  EXPECT_EQ(status->text, "50%");
}

TEST(Console, ThroughTheChannelShowsNoStatusWithoutATerminal) {
  auto [supervisor, worker] = make_channel_pair();
  const auto console = channel_console(std::make_shared<Channel>(std::move(worker)), 0);
  EXPECT_FALSE(console->interactive());
  console->status("50%");
  EXPECT_FALSE(supervisor.receive());
}

TEST(Console, OfTheTerminalWritesLinesToStandardError) {
  CapturedStderr captured;
  const auto console = terminal_console(/*interactive=*/false, 80);
  console->status("never shown");
  console->line("step 20");
  EXPECT_EQ(captured.text(), "step 20\n");
  EXPECT_FALSE(console->interactive());
}

TEST(Console, SilentSaysNothing) {
  CapturedStderr captured;
  silent_console()->line("step 20");
  silent_console()->status("50%");
  EXPECT_EQ(captured.text(), "");
  EXPECT_FALSE(silent_console()->interactive());
}

}  // namespace
}  // namespace lockstep
