// Real programs that get the rows of a run.
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/file_system.h>
#include <lockstep/base/variables.h>
#include <lockstep/report/metric_sink.h>

#include "base/json.h"
#include "base/text.h"
#include "support/captured_stderr.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const std::vector<MetricValue>& row() {
  static const std::vector<MetricValue> values{{"loss", 1.0 / 3}, {"worst", std::nan("")}};
  return values;
}

/// What is logged while `run` runs.
template <class Run>
std::string logged(const Run& run) {
  CapturedStderr captured;
  run();
  return captured.text();
}

TEST(CommandSink, SendsEveryRowAndWaitsForTheProgram) {
  const TempDir dir;
  const auto file = dir.path() / "rows";
  const std::string text = logged([&] {
    // It is slow to begin and slow to end.
    const auto sink = command_sink(
        "sleep 0.2; cat > '" + file.string() + ".part'; mv '" + file.string() + ".part' '" + file.string() + "'",
        read_environment(), "runs/first", 10,
        std::vector<RunSetting>{{"nprocs", "2"},
                                {"seed", "18446744073709551615"},
                                {"optim.lr", "0.05"},
                                {"checkpoint.async", "true"},
                                {"weight", ""},
                                {"limit", "inf"},
                                {"hidden", "64", /*is_text=*/true}});
    sink->write(20, row());
    sink->write(30, row());
  });
  EXPECT_EQ(text, "");
  const auto lines = split(read_file(real_file_system(), file), '\n');
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(parse_json(lines[0]), (Json{{"run_dir", "runs/first"},
                                        {"resume_step", 10},
                                        {"settings",
                                         {{"nprocs", 2},
                                          {"seed", 18446744073709551615U},
                                          {"optim.lr", 0.05},
                                          {"checkpoint.async", true},
                                          {"weight", ""},
                                          {"limit", "inf"},
                                          {"hidden", "64"}}}}));
  EXPECT_EQ(parse_json(lines[1]).at("step"), 20);
  EXPECT_EQ(parse_json(lines[1]).at("loss"), 1.0 / 3);
  EXPECT_EQ(parse_json(lines[1]).at("worst"), "NaN");
  EXPECT_EQ(parse_json(lines[2]).at("step"), 30);
}

TEST(CommandSink, NeverWaitsForAProgramThatDoesNotRead) {
  const TempDir dir;
  const auto count = dir.path() / "count";
  const std::string text = logged([&] {
    const auto sink =
        command_sink("read first; sleep 0.5; wc -l > '" + count.string() + "'", read_environment(), "r", 0);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20000; ++i) {  // more than a socket holds
      sink->write(i, row());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  });
  EXPECT_EQ(text, "");
  EXPECT_EQ(std::stoi(read_file(real_file_system(), count)), 20000);
}

TEST(CommandSink, WarnsOnceAboutAProgramThatFails) {
  EXPECT_THAT(logged([] { command_sink("cat > /dev/null; exit 3", read_environment(), "r", 0)->write(1, row()); }),
              HasSubstr("ended with code 3"));
  const std::string early = logged([] {
    const auto sink = command_sink("exec true", read_environment(), "r", 0);
    for (int i = 0; i < 200000 && sink != nullptr; ++i) {
      sink->write(i, row());  // until the socket notices
    }
  });
  EXPECT_THAT(early, HasSubstr("does not read its input any more; the run goes on without it"));
  EXPECT_EQ(split(early, '\n').size(), 2U) << early;
  EXPECT_THAT(logged([] { command_sink("/no/such/program", read_environment(), "r", 0); }),
              testing::AnyOf(HasSubstr("ended with code 127"), HasSubstr("does not read its input any more")));
}

TEST(CommandSink, EndsAProgramThatGoesOn) {
  const std::string text = logged([] {
    command_sink("cat > /dev/null; sleep 1000", read_environment(), "r", 0, {}, std::chrono::milliseconds(100));
  });
  EXPECT_THAT(text, HasSubstr("did not end 0.1 s after its input: it is ended"));
}

TEST(CommandSink, DoesNotWaitAfterAnException) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        const auto sink = command_sink("cat > /dev/null; sleep 2", read_environment(), "r", 0);
        throw std::runtime_error("a step failed");
      },
      std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1900));
}

}  // namespace
}  // namespace lockstep
