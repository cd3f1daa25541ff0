// Compares runs of two ranks with and without a disturbance: both must end with the same bytes.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/runs.h"

namespace lockstep {

class Undisturbed : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    straight_dir_ = std::make_unique<TempDir>();
    const auto result = run_program(two_ranks(straight_dir_->path() / "run"));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  static void TearDownTestSuite() { straight_dir_.reset(); }

  /// The command of the program, to be started by a launcher.
  static std::vector<std::string> program(const std::filesystem::path& run) {
    return command(
        TRAIN_PROGRAM, run,
        {"--max_epochs", "40", "--checkpoint.every_steps", "50", "--report.every_steps", "50", "--data.workers", "2"});
  }
  /// The command of the program that launches itself.
  static std::vector<std::string> two_ranks(const std::filesystem::path& run,
                                            const std::vector<std::string>& more = {}) {
    auto words = program(run);
    words.insert(words.end(), {"--nprocs", "2"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::filesystem::path run() const { return dir_.path() / "run"; }
  static bool ends_like_the_straight_run(const std::filesystem::path& run) {
    return final_state(run) == final_state(straight_dir_->path() / "run");
  }
  bool ends_like_the_straight_run() const { return ends_like_the_straight_run(run()); }

  /// Number of entries of this event in the event log.
  static int noted(const std::filesystem::path& run, const std::string& event) {
    int found = 0;
    for (const std::string& line : read_lines(run / "events.jsonl")) {
      found += line.find("\"event\":\"" + event + "\"") != std::string::npos ? 1 : 0;
    }
    return found;
  }

  TempDir dir_;

 private:
  static inline std::unique_ptr<TempDir> straight_dir_{};
};

}  // namespace lockstep
