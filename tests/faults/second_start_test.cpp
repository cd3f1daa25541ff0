// Two starts in one run directory at random moments: there are never two writers, and no run contains weights of the
// other start.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Path = std::filesystem::path;

constexpr const char* kKeepsNone = "--no-checkpoint.enabled";

class SecondStarts : public testing::Test {
 protected:
  using State = std::map<std::string, std::string>;

  Path run() const { return dir_.path() / "run"; }

  static std::vector<std::string> start(const Path& run, int seed, int ranks,
                                        const std::vector<std::string>& more = {}) {
    auto program = command(TRAIN_PROGRAM, run,
                           {"--max_epochs", "2", "--data.workers", "0", "--nprocs", std::to_string(ranks), "--seed",
                            std::to_string(seed)});
    if (std::ranges::find(more, kKeepsNone) == more.end()) {  // there they are refused
      program = with(program, {"--checkpoint.every_steps", "5", "--checkpoint.monitor", "val_loss"});
    }
    return with(program, more);
  }

  /// Result of an uninterrupted run.
  const State& straight(int seed, int ranks) {
    State& state = straight_[{seed, ranks}];
    if (state.empty()) {
      const Path alone = dir_.path() / ("straight" + std::to_string(seed) + "_" + std::to_string(ranks));
      const auto result = run_program(start(alone, seed, ranks));
      EXPECT_EQ(result.code, 0) << result.err;
      state = final_state(alone);
    }
    return state;
  }

  /// "run" and the directories that were moved away.
  std::vector<Path> directories() const {
    std::vector<Path> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name == "run" || name.starts_with("run.")) {
        found.push_back(entry.path());
      }
    }
    return found;
  }
  void clear() const {
    for (const Path& directory : directories()) {
      std::filesystem::remove_all(directory);
    }
  }

  /// Whether no start began to train before the previous one had ended.
  static bool had_one_writer(const Path& run) {
    int writing = 0;
    for (const std::string& line : read_lines(run / "events.jsonl")) {
      writing += line.find(R"("event":"start")") != std::string::npos ? 1 : 0;
      if (writing > 1) {
        return false;
      }
      writing -= line.find(R"("event":"end")") != std::string::npos ? 1 : 0;
    }
    return true;
  }

  TempDir dir_;

 private:
  std::map<std::pair<int, int>, State> straight_{};
};

struct Contest {
  const char* name;
  bool old_run;  // whether a run with the third seed exists before the two starts
  std::vector<std::string> first;
  std::vector<std::string> second;
};

TEST_F(SecondStarts, AtRandomMomentsHaveOneWriterAndTheirOwnWeights) {
  const std::vector<Contest> contests{
      {"two that start over", true, {"--fresh"}, {"--fresh"}},
      {"two that start over where nothing is", false, {"--fresh"}, {"--fresh"}},
      {"two that go on", false, {}, {}},
      {"one that starts over, one that goes on", true, {"--fresh"}, {}},
      {"one that goes on, one that starts over", false, {}, {"--fresh"}},
      {"one that needs an empty run", false, {}, {"--resume", "never"}},
      {"one that needs the last", true, {"--fresh"}, {"--resume", "last"}},
      {"one that needs the best", true, {"--fresh"}, {"--resume", "best"}},
      {"one that keeps no checkpoints", false, {}, {kKeepsNone}},
  };
  Sweep sweep("second starts");
  const int wanted = rounds(4, 200);
  int refused = 0;
  for (int round = 0; round < wanted; ++round) {
    const auto& [name, old_run, first, second] =
        contests[static_cast<std::size_t>(sweep.between(0, static_cast<int>(contests.size()) - 1))];
    const int ranks = sweep.between(0, 3) == 0 ? 2 : 1;
    const int delay = sweep.between(0, 1) == 0 ? 0 : sweep.between(0, 1500);
    SCOPED_TRACE(std::string(name) + ", " + std::to_string(ranks) + " ranks, " + std::to_string(delay) + " ms apart");
    clear();
    // A start that resumes may continue the run of the other: then both have the same seed.
    const bool both_fresh = first == second && !first.empty();
    const std::map<int, int> seeds{{0, both_fresh ? 1 : 3}, {1, both_fresh ? 2 : 3}};
    if (old_run) {
      ASSERT_EQ(run_program(start(run(), 3, ranks)).code, 0);
    }
    std::vector<std::unique_ptr<Process>> contenders;
    contenders.push_back(std::make_unique<Process>(start(run(), seeds.at(0), ranks, first)));
    contenders.back()->ended_within(milliseconds(delay));
    contenders.push_back(std::make_unique<Process>(start(run(), seeds.at(1), ranks, second)));
    bool kept = true;
    int ended = 0;
    std::set<int> trained;  // expected seeds
    for (int i = 0; i < 2; ++i) {
      const auto result = contenders[static_cast<std::size_t>(i)]->wait();
      EXPECT_TRUE(result.code == 0 || result.code == 65) << result.code << ": " << result.err;
      kept = kept && (result.code == 0 || result.code == 65);
      refused += result.code == 65 ? 1 : 0;
      ended += result.code == 0 ? 1 : 0;
      const auto& flags = i == 0 ? first : second;
      if (result.code == 0 && (flags.empty() || flags.front() != kKeepsNone)) {
        trained.insert(seeds.at(i));
      }
    }
    EXPECT_GE(ended, 1) << "both were refused";
    kept = kept && ended >= 1;
    if (old_run) {
      trained.insert(3);
    }
    std::set<int> found;
    for (const Path& directory : directories()) {
      kept = kept && had_one_writer(directory);
      EXPECT_TRUE(had_one_writer(directory)) << directory;
      if (!std::filesystem::exists(directory / "checkpoints") || newest_checkpoint(directory).empty()) {
        continue;  // of a start that saved none, or that lost the race before it began
      }
      const State state = final_state(directory);
      int whose = 0;
      for (const int seed : {1, 2, 3}) {
        whose = state == straight(seed, ranks) ? seed : whose;
      }
      EXPECT_NE(whose, 0) << directory << " holds a mixture";
      kept = kept && whose != 0;
      found.insert(whose);
    }
    EXPECT_TRUE(std::includes(found.begin(), found.end(), trained.begin(), trained.end()))
        << testing::PrintToString(found) << " of " << testing::PrintToString(trained);
    kept = kept && std::includes(found.begin(), found.end(), trained.begin(), trained.end());
    sweep.count(kept);
    if (!kept) {
      return;  // the directories are kept for inspection
    }
  }
  EXPECT_EQ(sweep.lost(), 0);
  std::printf("second starts: %d were refused\n", refused);
  EXPECT_TRUE(refused > 0 || wanted < 20) << "they never met";
}

// Control: without the lock file, nothing prevents two writers, and the test detects them.
TEST_F(SecondStarts, TwoWritersWouldBeSeen) {
  const std::vector<std::string> slow{"--work_ms", "50", "--max_epochs", "1000"};
  Process first(start(run(), 1, 1, slow));
  ASSERT_TRUE(first.wait_for("step 6 ")) << first.err();
  std::filesystem::remove(run() / ".lock");
  std::filesystem::remove(run() / "checkpoints" / ".lock");
  Process second(start(run(), 1, 1, slow));
  ASSERT_TRUE(second.wait_for("| epoch ")) << second.err();  // its start is an event by then
  EXPECT_FALSE(had_one_writer(run()));
}

// Two different programs never train in the same directory, in either order of starts.
TEST_F(SecondStarts, OfAnotherProgramNeverGoOnWithItsWeights) {
  const Path other = dir_.path() / "other_program";
  std::filesystem::create_symlink(TRAIN_PROGRAM, other);
  Sweep sweep("second starts of another program");
  const int wanted = rounds(2, 50);
  for (int round = 0; round < wanted; ++round) {
    clear();
    Process ours(start(run(), 1, 1));
    ours.ended_within(milliseconds(sweep.between(0, 1) == 0 ? 0 : sweep.between(0, 2500)));
    auto words = start(run(), 2, 1);
    words.front() = other.string();
    Process theirs(words);
    const std::pair<int, int> codes{ours.wait().code, theirs.wait().code};
    const bool one_refused = codes == std::pair{0, 65} || codes == std::pair{65, 0};
    EXPECT_TRUE(one_refused) << ours.err() << theirs.err();
    const bool kept =
        one_refused && had_one_writer(run()) && final_state(run()) == straight(codes.first == 0 ? 1 : 2, 1);
    EXPECT_TRUE(kept);
    sweep.count(kept);
  }
  EXPECT_EQ(sweep.points(), wanted);
}

}  // namespace
}  // namespace lockstep
