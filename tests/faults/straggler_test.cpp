// Runs in which one rank is slower than the others (T1 of the fault model), and runs without such a rank, one of them
// with slow data.
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/busy_cores.h"
#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

struct Named {
  int rank = -1;
  std::int64_t step = 0;
  std::string phase{};
};

std::optional<Named> first_named(const std::filesystem::path& run) {
  for (const std::string& line : read_lines(run / "events.jsonl")) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] == "straggler") {
      return Named{.rank = event["rank"], .step = event["step"], .phase = event["phase"]};
    }
  }
  return {};
}

struct Slow {
  std::string phase;
  int work_ms = 0;
  int more_ms = 0;
};

TEST(Straggler, IsNamedWithinTwentySteps) {
  Sweep sweep("slow ranks");
  for (int round = 0; round < rounds(1, 5); ++round) {
    for (const Slow& slow : {Slow{"optimizer", 100, 120}, Slow{"optimizer", 40, 160}, Slow{"data", 40, 160}}) {
      const TempDir dir;
      const int rank = sweep.between(0, 2);
      const auto result = run_program(
          command(TRAIN_PROGRAM, dir.path() / "run",
                  {"--nprocs", "3", "--max_steps", "21", "--batch_size", "1", "--data.workers", "0",
                   "--checkpoint.enabled", "false", "--work_ms", std::to_string(slow.work_ms), "--fail_rank",
                   std::to_string(rank), "--fail_in", slow.phase, "--slow_ms", std::to_string(slow.more_ms)}));
      const auto named = first_named(dir.path() / "run");
      const std::string text = "rank " + std::to_string(rank) + " (";
      const auto told = result.err.find(" times as long for a step as the others, who wait for it: ");
      const bool right = result.code == 0 && named && named->rank == rank && named->step == 20 &&
                         named->phase == (slow.phase == "data" ? "data" : "Task::optimize") &&
                         told != std::string::npos && result.err.find(text) < told;
      EXPECT_TRUE(right) << result.err;
      sweep.count(right);
    }
  }
}

// It takes longer than ten seconds: the end of a shorter run has no such advice.
TEST(SlowData, IsNamedAtTheEndOfARun) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                                          {"--max_steps", "4", "--data.workers", "0", "--fail_in", "data", "--slow_ms",
                                           "2600", "--checkpoint.enabled", "false"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, testing::ContainsRegex("waiting for data took (9[0-9]|100) % of the time: "
                                                 "raise --data.workers .now 0."));
}

// Control: a delay below the threshold, or one that affects all ranks, is not reported.
TEST(Straggler, IsNobodyWhoIsHalfSlowerOnly) {
  const TempDir dir;
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                                          {"--nprocs", "3", "--max_steps", "41", "--batch_size", "1", "--work_ms", "60",
                                           "--fail_rank", "1", "--slow_ms", "30", "--checkpoint.enabled", "false"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(first_named(dir.path() / "run")) << result.err;
}

TEST(Straggler, IsNobodyOnABusyMachine) {
  Sweep sweep("clean runs beside other programs");
  for (int round = 0; round < rounds(1, 10); ++round) {
    const BusyCores others(3);
    const TempDir dir;
    const auto result = run_program(command(EXAMPLES_DIR "/06_char_gpt", dir.path() / "run",
                                            {"--nprocs", round % 2 == 0 ? "4" : "2", "--max_steps", "100", "--sample",
                                             "0", "--checkpoint.enabled", "false"}));
    const bool clean = result.code == 0 && !first_named(dir.path() / "run");
    EXPECT_TRUE(clean) << result.err;
    sweep.count(clean);
  }
}

}  // namespace
}  // namespace lockstep
