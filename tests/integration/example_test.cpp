// The bundled examples do what their header comments say.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

std::string example(const std::string& name) { return std::string(EXAMPLES_DIR) + "/" + name; }

TEST(Example, OneDeviceAndManyLearnThePlane) {
  const TempDir dir;
  const auto one =
      run_program(command(example("01_single_device"), dir.path() / "one", {"10", "2", "--batch_size", "64"}));
  ASSERT_EQ(one.code, 0) << one.err;
  const auto two = run_program(command(example("02_multi_device"), dir.path() / "two", {"10", "2", "--nprocs", "2"}));
  ASSERT_EQ(two.code, 0) << two.err;
  for (const auto* run : {"one", "two"}) {
    const auto losses = metric(dir.path() / run, "loss");
    ASSERT_FALSE(losses.empty());
    EXPECT_LT(losses.rbegin()->second, 0.1 * losses.begin()->second);
  }
}

// Example 06 and its manual loop, 07, give the same bytes with dropout, clipping, schedule and two ranks.
TEST(Example, TheLoopByHandEndsWithTheTrainersWeights) {
  const TempDir dir;
  const std::vector<std::string> flags{
      "--nprocs", "2", "--max_steps", "60", "--sample", "0", "--checkpoint.every_steps", "30"};
  const auto trainer = run_program(command(example("06_char_gpt"), dir.path() / "trainer", flags));
  ASSERT_EQ(trainer.code, 0) << trainer.err;
  auto by_hand = flags;
  by_hand.erase(by_hand.begin() + 4, by_hand.begin() + 6);
  const auto loop = run_program(command(example("07_custom_loop"), dir.path() / "loop", by_hand));
  ASSERT_EQ(loop.code, 0) << loop.err;
  auto expected = final_state(dir.path() / "trainer");
  EXPECT_EQ(expected.at("name"), "step-0000000060");
  expected.erase("report.safetensors");  // the loop by hand reports nothing
  EXPECT_EQ(final_state(dir.path() / "loop"), expected);
}

double words_known(const std::string& output) {
  const auto line = output.find(" % of the words");
  EXPECT_NE(line, std::string::npos) << output;
  const auto begin = output.rfind('\n', line) + 1;
  return std::stod(output.substr(begin, line - begin));
}

// The quickstart's training, stopped and resumed, learns English.
TEST(Example, TheMainJobLearnsEnglish) {
  const TempDir dir;
  const auto job = command(example("06_char_gpt"), dir.path() / "run", {"--nprocs", "2"});
  {
    Process process(job);
    ASSERT_TRUE(process.wait_for("step 300 ", std::chrono::seconds(120))) << process.err();
    process.signal(SIGINT);
    ASSERT_EQ(process.wait().code, 130);
  }
  const auto result = run_program(job, {}, ".", std::chrono::seconds(280));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resuming from step 3"));
  EXPECT_LT(metric(dir.path() / "run", "val_loss").rbegin()->second, 1.8);
  EXPECT_GE(words_known(result.err), 60);
}

// An almost untrained model writes few words; the quickstart's model must exceed this bound.
TEST(Example, AnUntrainedModelFailsTheSampleTest) {
  const TempDir dir;
  const auto result =
      run_program(command(example("06_char_gpt"), dir.path() / "run", {"--nprocs", "2", "--max_steps", "1"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_LT(words_known(result.err), 30);
}

}  // namespace
}  // namespace lockstep
