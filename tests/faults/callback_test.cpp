// Callbacks may take longer than any limit at every stage, and a callback that throws is named. So may what a loop by
// hand does around its steps.
#include <future>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kCalls{"step_end",  "save",           "epoch_end",        "stages",
                                      "fit_start", "validation_end", "checkpoint_saved", "fit_end",
                                      "load",      "report"};

std::vector<std::string> with_callback(const TempDir& dir, int ranks, const std::string& call,
                                       std::vector<std::string> more) {
  more.insert(more.end(), {"--nprocs", std::to_string(ranks), "--fail_in", "callback:" + call});
  return command(TRAIN_PROGRAM, dir.path() / "run", more);
}

/// load() is called only in a resumed run.
void prepare(const TempDir& dir, int ranks, const std::string& call) {
  if (call == "load") {
    ASSERT_EQ(run_program(with_callback(dir, ranks, call, {"--max_epochs", "1"})).code, 0);
  }
}

TEST(Callback, ThatTakesLongerThanTheStallLimitIsNoHang) {
  struct Slow {
    std::string call;
    int ranks;
  };
  std::vector<Slow> cases;
  for (std::size_t i = 0; i < kCalls.size(); ++i) {
    if (i < static_cast<std::size_t>(rounds(2, static_cast<int>(kCalls.size())))) {
      cases.push_back({kCalls[i], 2});
      cases.push_back({kCalls[i], 1});
    }
  }
  Sweep sweep("slow callbacks");
  for (std::size_t i = 0; i < cases.size(); i += 4) {  // they sleep, so several run at the same time
    std::vector<std::future<Process::Result>> results;
    std::vector<TempDir> dirs(std::min<std::size_t>(4, cases.size() - i));
    for (std::size_t k = 0; k < dirs.size(); ++k) {
      const Slow slow = cases[i + k];
      prepare(dirs[k], slow.ranks, slow.call);
      results.push_back(std::async(std::launch::async, [&dir = dirs[k], slow] {
        return run_program(with_callback(
            dir, slow.ranks, slow.call,
            {"--fail", "once", "--fail_step", "0", "--fail_rank", std::to_string(slow.ranks - 1), "--max_epochs", "2",
             "--batch_size", "26", "--dist.stall_warn_s", "1", "--dist.stall_timeout_s", "2"}));
      }));
    }
    for (std::size_t k = 0; k < results.size(); ++k) {
      const Slow slow = cases[i + k];
      const auto result = results[k].get();
      EXPECT_EQ(result.code, 0) << slow.call << " at " << slow.ranks << " ranks\n" << result.err;
      if (slow.ranks > 1) {
        const std::string name =
            slow.call == "save" || slow.call == "load" || slow.call == "stages" ? slow.call + "()" : slow.call;
        EXPECT_THAT(result.err, HasSubstr(fmt::format("callback 'everywhere' ({})", name)));
        EXPECT_THAT(result.err, HasSubstr("no progress for 1 s; rank 1 is behind:"));
      }
      sweep.count(result.code == 0);
    }
  }
}

TEST(LoopByHand, ThatTakesLongerThanTheStallLimitBetweenStepsIsNoHang) {
  const std::vector<std::string> flags{
      "--by_hand", "--max_epochs", "1", "--batch_size",        "26", "--checkpoint.every_steps", "1", "--fail",
      "once",      "--fail_step",  "0", "--dist.stall_warn_s", "1",  "--dist.stall_timeout_s",   "2"};
  const std::vector<std::string> places{"save", "validation", "teardown"};
  Sweep sweep("slow code around steps");
  for (const int ranks : {2, 1}) {
    std::vector<TempDir> dirs(places.size());
    std::vector<std::future<Process::Result>> results;
    for (std::size_t i = 0; i < places.size(); ++i) {  // they sleep, so they run at the same time
      const auto words = with(
          flags, {"--nprocs", std::to_string(ranks), "--fail_rank", std::to_string(ranks - 1), "--fail_in", places[i]});
      results.push_back(std::async(std::launch::async, [words = command(TRAIN_PROGRAM, dirs[i].path() / "run", words)] {
        return run_program(words);
      }));
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto result = results[i].get();
      EXPECT_EQ(result.code, 0) << places[i] << " at " << ranks << " ranks\n" << result.err;
      if (ranks > 1) {
        EXPECT_THAT(result.err, HasSubstr("no progress for 1 s; rank 1 is behind:"));
        EXPECT_THAT(result.err, testing::ContainsRegex("rank 1: step [12], the program's own code"));
      }
      sweep.count(result.code == 0);
    }
  }
}

TEST(Callback, ThatThrowsIsNamedWithItsStage) {
  Sweep sweep("failing callbacks");
  for (int i = 0; i < rounds(3, static_cast<int>(kCalls.size())); ++i) {
    const std::string call = kCalls[static_cast<std::size_t>(i)];
    const TempDir dir;
    prepare(dir, 2, call);
    const int rank = sweep.between(0, 1);
    const auto result = run_program(with_callback(
        dir, 2, call,
        {"--fail", "throw", "--fail_step", "0", "--fail_rank", std::to_string(rank), "--max_epochs", "2"}));
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr(fmt::format("error: rank {} ", rank)));
    const bool is_stage = call.find('_') != std::string::npos || call == "report";
    EXPECT_THAT(result.err, HasSubstr(fmt::format("in callback 'everywhere' ({}): std::runtime_error: cannot decode",
                                                  is_stage ? call : call + "()")));
    sweep.count(result.code == 1);
  }
}

TEST(Callback, IsNotBlamedForWhatTheTaskDoesBeforeItsForward) {
  const TempDir dir;
  const auto result = run_program(
      command(TRAIN_PROGRAM, dir.path() / "run",
              {"--nprocs", "2", "--fail_in", "optimizer", "--fail", "throw", "--fail_step", "3", "--fail_rank", "1"}));
  EXPECT_THAT(result.err, HasSubstr("failed at step 3 in Task::optimize: std::runtime_error"));
}

}  // namespace
}  // namespace lockstep
