// One rank fails or hangs, in every phase: it is reported with its own message, and all processes end soon.
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/busy_cores.h"
#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct Blame {
  int rank = 0;
  int code = 1;
  std::string text = "std::runtime_error: cannot decode sample 4411";
};

/// The error in the final message of a run; "": none.
std::string problems(const Process::Result& result, const Blame& blame) {
  const auto last = result.err.rfind("error: rank ");
  const std::string cause = last == std::string::npos ? std::string() : result.err.substr(last);
  std::string found;
  const auto expect = [&](bool holds, const std::string& what) { found += holds ? "" : what + "; "; };
  expect(result.code == blame.code, fmt::format("exit code {}", result.code));
  expect(result.seconds < 60, fmt::format("{} s", result.seconds));
  expect(cause.starts_with(fmt::format("error: rank {} ", blame.rank)), "another rank is blamed");
  expect(cause.find(blame.text) != std::string::npos, "the text is not there");
  expect(cause.ends_with(fmt::format("\n  exit code {}\n", blame.code)),
         "the cause is not the last thing on the screen");
  return found.empty() ? found : found + "in\n" + result.err;
}

Process::Result train(int ranks, int failing, const std::string& phase, const std::string& how, int step,
                      std::vector<std::string> more = {}) {
  const TempDir dir;
  more.insert(more.end(), {"--nprocs", std::to_string(ranks), "--fail_in", phase, "--fail_rank",
                           std::to_string(failing), "--fail", how, "--fail_step", std::to_string(step)});
  return run_program(command(TRAIN_PROGRAM, dir.path() / "run", more));
}

TEST(EveryPhase, OfEveryRankIsBlamedRight) {
  Sweep sweep("phases x ranks");
  for (int round = 0; round < rounds(1, 3); ++round) {
    const int ranks = round % 2 == 0 ? 2 : 4;
    for (const std::string phase :
         {"init", "turn", "data", "forward", "backward", "optimizer", "validation", "save", "teardown"}) {
      const bool passed_once = phase == "init" || phase == "turn" || phase == "teardown";
      for (const int rank : {0, ranks - 1}) {
        const std::string backend = (sweep.points() + sweep.points() / 2) % 2 == 0 ? "auto" : "gloo";
        const std::string static_graph = (sweep.points() + sweep.points() / 4) % 2 == 0 ? "false" : "true";
        const std::string found = problems(train(ranks, rank, phase, "throw",
                                                 passed_once       ? 0
                                                 : phase == "save" ? 1
                                                                   : 3,
                                                 {"--backend", backend, "--dist.static_graph", static_graph}),
                                           {.rank = rank});
        EXPECT_EQ(found, "") << phase << " of rank " << rank << " of " << ranks << ", " << backend << ", "
                             << static_graph;
        sweep.count(found.empty());
      }
    }
  }
  EXPECT_GE(sweep.points(), 18);
}

// Its phases are those of the calls that it makes; everything else is code of the program.
TEST(EveryPhase, OfALoopByHandIsBlamedRight) {
  struct Case {
    std::string phase;
    int calls = 0;
    std::string place;
  };
  Sweep sweep("phases of a loop by hand");
  for (const Case& at : {Case{"data", 3, "failed at step [0-9]+ in data: "},
                         {"forward", 3, "failed at step 3 in forward: "},
                         {"backward", 3, "failed at step 3 in backward: "},
                         {"save", 0, "failed at step 5 in the program's own code: "},
                         {"validation", 3, "failed at step 13 in the program's own code: "},
                         {"teardown", 0, "failed at step 13 in the program's own code: "}}) {
    const int rank = sweep.between(0, 1);
    const auto result = train(2, rank, at.phase, "throw", at.calls,
                              {"--by_hand", "--max_epochs", "1", "--checkpoint.every_steps", "5"});
    const std::string found = problems(result, {.rank = rank});
    EXPECT_EQ(found, "") << at.phase << " of rank " << rank;
    EXPECT_THAT(result.err, testing::ContainsRegex(at.place));
    sweep.count(found.empty());
  }
}

TEST(EveryPhase, SweepSeesAWrongRank) {  // known failure
  const auto result = train(2, 1, "optimizer", "throw", 3);
  EXPECT_EQ(problems(result, {.rank = 1}), "");
  EXPECT_THAT(problems(result, {.rank = 0}), HasSubstr("another rank is blamed"));
  EXPECT_THAT(problems(result, {.rank = 1, .text = "something else"}), HasSubstr("the text is not there"));
}

TEST(OutOfMemory, OfOneRankIsExplainedAndDelaysNobody) {
  for (const int rank : {0, 1}) {
    const auto result = train(2, rank, "forward", "memory", 3);
    EXPECT_EQ(problems(result, {.rank = rank, .text = "you tried to allocate"}), "");
    EXPECT_THAT(result.err, testing::ContainsRegex("hint: use --batch_size [^\n]*: the same training with smaller "
                                                   "micro-batches"));
  }
  const auto in_data = train(2, 1, "data", "memory", 3);
  EXPECT_EQ(problems(in_data, {.rank = 1, .text = "you tried to allocate"}), "");
  EXPECT_THAT(in_data.err, HasSubstr("hint: the data set ran out of memory: use fewer --data.workers (now "));
}

const std::vector<std::string> kShortPatience{"--dist.stall_warn_s", "1", "--dist.stall_timeout_s", "2"};

TEST(Hang, OfEveryKindIsEndedAndNamed) {
  Sweep sweep("hangs");
  for (int round = 0; round < rounds(1, 5); ++round) {
    for (const auto& [how, phase] :
         {std::pair{"mutex", "forward"}, std::pair{"spin", "optimizer"}, std::pair{"sleep", "data"},
          std::pair{"spin", "forward"}, std::pair{"sleep", "backward"}}) {
      const int rank = sweep.between(0, 1);
      const auto result = train(2, rank, phase, how, 3, kShortPatience);
      std::string found =
          problems(result, {.rank = rank, .code = 124, .text = fmt::format("made no progress for 2 s at step ")});
      found += result.err.find(fmt::format("[rank{}]: stack of thread", rank)) == std::string::npos ? "no stacks" : "";
      EXPECT_EQ(found, "") << how << " in " << phase << " of rank " << rank;
      sweep.count(found.empty());
    }
  }
  EXPECT_GE(sweep.points(), 5);
}

TEST(Hang, InAStepOfALoopByHandIsEndedAndNamed) {
  for (const std::string phase : {"data", "forward"}) {
    const auto result = train(2, 1, phase, "sleep", 3, with(kShortPatience, {"--by_hand"}));
    EXPECT_EQ(problems(result, {.rank = 1, .code = 124, .text = "made no progress for 2 s at step "}), "");
    EXPECT_THAT(result.err, testing::ContainsRegex("made no progress for 2 s at step [0-9]+ in " + phase));
  }
}

// The others wait only for its buckets, in the same phase.
TEST(Hang, InBackwardIsNotTakenForAWaitForOthers) {
  for (const std::string backend : {"auto", "gloo"}) {
    for (const int rank : {0, 1, 2}) {
      const auto result = train(3, rank, "backward", "sleep", 3, with(kShortPatience, {"--backend", backend}));
      EXPECT_EQ(problems(result, {.rank = rank, .code = 124, .text = "made no progress for 2 s at step 3 in backward"}),
                "")
          << backend;
    }
  }
}

// `lockstep run` learns the limits from the program.
TEST(Hang, UnderLockstepRunIsEndedAfterTheLimitOfTheProgram) {
  const TempDir dir;
  auto words = with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--"},
                    command(TRAIN_PROGRAM, dir.path() / "run", kShortPatience));
  words = with(words, {"--fail_in", "forward", "--fail_rank", "1", "--fail", "sleep", "--fail_step", "3"});
  const auto result = run_program(words);
  EXPECT_EQ(problems(result, {.rank = 1, .code = 124, .text = "made no progress for 2 s at step 3 in forward"}), "");
}

TEST(Hang, AfterTheWorkIsEndedAndNamed) {
  const auto result = train(2, 1, "exit", "sleep", 0, kShortPatience);
  EXPECT_EQ(problems(result, {.rank = 1, .code = 124, .text = "made no progress for 2 s at step 39 in teardown"}), "");
  EXPECT_THAT(result.err, HasSubstr("finished at step 39"));
}

// A branch on the rank: one rank calls a collective that the others do not call. Either Gloo's own thread ends a
// process that receives more data than expected, while the others run their backward or wait; or all ranks hang.
TEST(Collectives, InAnotherOrderAreNamed) {
  Sweep sweep("one more collective");
  const BusyCores others(4);
  for (int round = 0; round < rounds(4, 40); ++round) {
    const int ranks = 2 + round % 2;
    const auto limits = with(kShortPatience, {"--backend", round % 4 < 2 ? "auto" : "gloo"});
    const int rank = sweep.between(0, ranks - 1);
    const auto result = train(ranks, rank, "collective", "throw", sweep.between(0, 20), limits);
    const auto at = result.err.find("the ranks are in different collectives:");
    const bool named = at != std::string::npos && result.err.find("all-reduce of 4 B", at) != std::string::npos &&
                       result.err.find("hint: every rank has to call the same collectives", at) != std::string::npos;
    EXPECT_TRUE(named && (result.code == 124 || result.code == 78)) << result.code << result.err;
    sweep.count(named);
  }
  EXPECT_GE(sweep.points(), 4);
}

// Reported neither as hanging nor as slow: a step then mostly waits for a core, and no particular rank waits longest.
TEST(ManyRanks, AreNotTakenForHangingOnFewCores) {
  Sweep sweep("clean runs of 16 ranks beside other programs");
  for (int round = 0; round < rounds(1, 50); ++round) {
    const BusyCores others(4);
    const TempDir dir;
    const auto result =
        run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                            {"--nprocs", "16", "--max_steps", "30", "--global_batch_size", "16", "--dist.stall_warn_s",
                             "15", "--checkpoint.enabled", "false"}),  // a slow disk is told, and rightly
                    {}, ".", Process::Seconds(180));
    const bool clean = result.code == 0 && result.err.find("no progress") == std::string::npos &&
                       result.err.find("warning") == std::string::npos;
    EXPECT_TRUE(clean) << result.err;
    sweep.count(clean);
  }
}

}  // namespace
}  // namespace lockstep
