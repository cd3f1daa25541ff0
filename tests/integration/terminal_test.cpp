// On a terminal: a progress bar that redraws, and Ctrl-C typed by a person.
#include "support/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class OnATerminal : public testing::TestWithParam<int> {};

TEST_P(OnATerminal, ShowsABarAndSavesOnCtrlC) {
  const TempDir dir;
  OnTerminal program(
      command(TRAIN_PROGRAM, dir.path() / "run",
              {"--nprocs", std::to_string(GetParam()), "--max_epochs", "100000", "--report.every_steps", "50"}));
  ASSERT_TRUE(program.read_until("%|")) << program.screen;
  ASSERT_TRUE(program.read_until("loss")) << program.screen;
  program.type("\x03");
  ASSERT_TRUE(program.read_until("")) << program.screen;
  EXPECT_EQ(program.wait(), 130) << program.screen;
  EXPECT_THAT(program.screen, HasSubstr("run the same command again to continue"));
  // The last line contains no part of the bar.
  const auto last = program.screen.rfind("to continue");
  EXPECT_EQ(program.screen.substr(last).find("%|"), std::string::npos);
  EXPECT_FALSE(newest_checkpoint(dir.path() / "run").empty());
}
INSTANTIATE_TEST_SUITE_P(Ranks, OnATerminal, testing::Values(1, 2));

}  // namespace
}  // namespace lockstep
