#include "supervise/run_outcome.h"

#include <chrono>
#include <functional>
#include <string>
#include <tuple>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using namespace std::chrono_literals;

const RunOutcome::Time kStart{};
const ProgressView kPlace{};  // never written

Message finished(int code) { return {.kind = Message::Kind::finished, .code = code}; }
Message failure(int code, std::string text) {
  return {.kind = Message::Kind::failure, .text = std::move(text), .code = code};
}
Message lost_peer(std::string text) {
  return {.kind = Message::Kind::failure, .text = std::move(text), .code = 76, .secondary = true};
}
Ending code(int code) { return {.status = {.code = code}}; }
Ending by_signal(int signal) { return {.status = {.signal = signal}}; }

/// Of host a: ranks 0, 1 and 2 with process numbers 70, 71 and 72.
RunOutcome three_ranks() { return {"a", {70, 71, 72}, /*first_rank=*/0}; }

struct Case {
  const char* name;
  std::function<void(RunOutcome&)> events;
  int exit_code;
  int failed_rank;
  const char* failure;
};

void all_finish(RunOutcome& outcome, int with) {
  for (int rank = 0; rank < 3; ++rank) {
    outcome.announced(rank, finished(with), kPlace, kStart);
    outcome.exited(rank, code(with));
  }
}

TEST(RunOutcome, BlamesTheFirstPrimaryEvent) {
  const Case cases[] = {
      {"all finish", [](RunOutcome& v) { all_finish(v, 0); }, 0, -1, ""},
      {"all stop on request", [](RunOutcome& v) { all_finish(v, 75); }, 75, -1, ""},
      {"all stop for Ctrl-C", [](RunOutcome& v) { all_finish(v, 130); }, 130, -1, ""},
      {"other announced codes are failures", [](RunOutcome& v) { all_finish(v, 65); }, 65, 0,
       "rank 0 (host a, pid 70) finished with code 65"},
      {"announced failure",
       [](RunOutcome& v) {
         v.announced(1, failure(65, "error: cannot decode img_4411.jpg\n"), kPlace, kStart);
         v.exited(1, code(65));
       },
       65, 1, "rank 1 (host a, pid 71) failed: cannot decode img_4411.jpg"},
      {"a failure is never code 0", [](RunOutcome& v) { v.announced(1, failure(0, "x"), kPlace, kStart); }, 1, 1,
       "rank 1 (host a, pid 71) failed: x"},
      {"signal", [](RunOutcome& v) { v.exited(2, by_signal(11)); }, 139, 2,
       "rank 2 (host a, pid 72) died of signal 11 (Segmentation fault)"},
      {"kill -9 by somebody else", [](RunOutcome& v) { v.exited(1, by_signal(9)); }, 137, 1,
       "rank 1 (host a, pid 71) died of signal 9 (Killed)"},
      {"exit 0 early", [](RunOutcome& v) { v.exited(1, code(0)); }, 1, 1,
       "rank 1 (host a, pid 71) ended with exit code 0 before its training was done"},
      {"unannounced code is not ours", [](RunOutcome& v) { v.exited(1, code(75)); }, 1, 1,
       "rank 1 (host a, pid 71) ended with exit code 75 before its training was done"},
      {"another code than announced",
       [](RunOutcome& v) {
         v.announced(1, finished(0), kPlace, kStart);
         v.exited(1, code(3));
       },
       1, 1, "rank 1 (host a, pid 71) exited with code 3 after it announced 0"},
      {"any code of main() after a stop is a stop",
       [](RunOutcome& v) {
         for (const auto& [rank, with] : {std::pair(0, 0), std::pair(1, 1), std::pair(2, 75)}) {
           v.announced(rank, finished(75), kPlace, kStart);
           v.exited(rank, code(with));
         }
       },
       75, -1, ""},
      {"also after Ctrl-C",
       [](RunOutcome& v) {
         v.announced(0, finished(130), kPlace, kStart);
         v.exited(0, code(1));
       },
       130, -1, ""},
      {"but not a crash",
       [](RunOutcome& v) {
         v.announced(1, finished(75), kPlace, kStart);
         v.exited(1, by_signal(6));
       },
       134, 1, "rank 1 (host a, pid 71) died of signal 6 (Aborted)"},
      {"crash after finishing",
       [](RunOutcome& v) {
         v.announced(1, finished(0), kPlace, kStart);
         v.exited(1, by_signal(6));
       },
       134, 1, "rank 1 (host a, pid 71) died of signal 6 (Aborted)"},
      {"the cause arrives after its effects",
       [](RunOutcome& v) {
         v.announced(0, lost_peer("connection closed"), kPlace, kStart);
         v.exited(0, code(76));
         v.settle(kStart + 500ms);
         v.exited(2, by_signal(9));
       },
       137, 2, "rank 2 (host a, pid 72) died of signal 9 (Killed)"},
      {"the first of several causes",
       [](RunOutcome& v) {
         v.announced(2, failure(1, "first"), kPlace, kStart);
         v.announced(1, failure(74, "second"), kPlace, kStart);
       },
       1, 2, "rank 2 (host a, pid 72) failed: first"},
      {"only effects, all gone",
       [](RunOutcome& v) {
         for (int rank : {1, 0, 2}) {
           v.announced(rank, lost_peer("lost " + std::to_string(rank)), kPlace, kStart);
           v.exited(rank, code(76));
         }
         v.settle(kStart);
       },
       76, 1, "rank 1 (host a, pid 71) failed: lost 1"},
      {"death by a forwarded signal is by request",
       [](RunOutcome& v) {
         v.signal_forwarded(15);
         v.exited(0, by_signal(15));
         v.announced(1, lost_peer("connection closed"), kPlace, kStart);
         v.exited(1, code(76));
       },
       75, -1, ""},
      {"death by a stop request before the training began is by request, whoever sent it",
       [](RunOutcome& v) { v.exited(0, by_signal(15)); }, 75, -1, ""},
      {"so is one of a rank that resumed and has done no step",
       [](RunOutcome& v) {
         Ending ending = by_signal(1);
         ending.place = {.beats = 1, .step = 812, .phase = Phase::data};
         v.exited(0, ending);
       },
       75, -1, ""},
      {"the end of a script is no stop if its program has not said that it has saved",
       [](RunOutcome& v) {
         v.signal_forwarded(15);
         Ending ending = by_signal(15);
         ending.of_script = true;
         ending.place = {.beats = 1, .step = 812, .phase = Phase::save};
         ending.has_trained = true;
         v.exited(0, ending);
       },
       1, 0,
       "rank 0 (host a, pid 70) ended at step 812 in save without saying that its work is saved, after signal 15 "
       "(Terminated) had ended its script"},
      {"it is one if the program has said so",
       [](RunOutcome& v) {
         v.announced(0, finished(75), kPlace, kStart);
         Ending ending = by_signal(15);
         ending.of_script = true;
         ending.has_trained = true;
         v.exited(0, ending);
       },
       75, -1, ""},
      {"and before the training began",
       [](RunOutcome& v) {
         v.signal_forwarded(15);
         Ending ending = by_signal(15);
         ending.of_script = true;
         v.exited(0, ending);
       },
       75, -1, ""},
      {"each program of a script has its own end",
       [](RunOutcome& v) {
         v.announced(0, finished(0), kPlace, kStart);
         v.announced(0, {.kind = Message::Kind::started}, kPlace, kStart);
         v.exited(0, code(0));
       },
       1, 0, "rank 0 (host a, pid 70) ended with exit code 0 before its training was done"},
      {"death by another signal is not",
       [](RunOutcome& v) {
         v.signal_forwarded(2);
         Ending ending = by_signal(15);
         ending.place = {.beats = 1, .step = 812, .phase = Phase::data};
         ending.has_trained = true;
         v.exited(0, ending);
       },
       143, 0, "rank 0 (host a, pid 70) died of signal 15 (Terminated) at step 812 in data"},
      {"who stands still is blamed",
       [](RunOutcome& v) {
         v.stalled(2, "made no progress for 300 s", "");
         v.exited(1, code(76));
       },
       124, 2, "rank 2 (host a, pid 72) made no progress for 300 s"},
      {"whom we kill is not blamed",
       [](RunOutcome& v) {
         v.killed_by_user();
         v.exited(0, by_signal(9));
       },
       130, -1, ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RunOutcome outcome = three_ranks();
    c.events(outcome);
    const LaunchReport report = outcome.report();
    EXPECT_EQ(report.exit_code, c.exit_code);
    EXPECT_EQ(report.failed_rank, c.failed_rank);
    EXPECT_EQ(report.failure, c.failure);
  }
}

TEST(RunOutcome, WaitsOneSecondForTheCauseOfALostPeer) {
  RunOutcome outcome = three_ranks();
  outcome.announced(0, lost_peer("connection closed"), kPlace, kStart);
  EXPECT_EQ(outcome.due(), kStart + 1s);
  outcome.settle(kStart + 999ms);
  EXPECT_FALSE(outcome.is_decided());
  outcome.settle(kStart + 1s);
  EXPECT_TRUE(outcome.is_decided());
  EXPECT_FALSE(outcome.due());
  outcome.exited(1, by_signal(6));
  EXPECT_EQ(outcome.report().failed_rank, 0);
}

TEST(RunOutcome, IsNotDecidedByARankThatFinishes) {
  RunOutcome outcome = three_ranks();
  outcome.announced(0, finished(0), kPlace, kStart);
  outcome.exited(0, code(0));
  outcome.settle(kStart);
  EXPECT_FALSE(outcome.is_decided());
  EXPECT_EQ(outcome.text(), "");
}

TEST(RunOutcome, CountsWhoStoppedBecauseOfIt) {
  RunOutcome outcome = three_ranks();
  outcome.announced(2, finished(0), kPlace, kStart);
  outcome.exited(2, code(0));
  outcome.announced(1, failure(65, "bad data\n  hint: look\x1b[2J there"), kPlace, kStart);
  outcome.killed_by_us();
  outcome.exited(0, by_signal(9));
  EXPECT_EQ(outcome.text(),
            "error: rank 1 (host a, pid 71) failed: bad data\n  hint: look there\n  1 other rank stopped because of "
            "it\n  exit "
            "code 65");
}

TEST(RunOutcome, SaysWhereItHappened) {
  const ProgressView place{.beats = 9, .step = 812, .phase = Phase::data};
  const ProgressView early{.beats = 1, .phase = Phase::prepare};
  RunOutcome outcome = three_ranks();
  outcome.announced(1, failure(1, "error: std::runtime_error: cannot decode img_4411.jpg"), place, kStart);
  EXPECT_EQ(outcome.report().failure,
            "rank 1 (host a, pid 71) failed at step 812 in data: std::runtime_error: cannot decode img_4411.jpg");
  outcome = three_ranks();
  Ending ending = by_signal(11);
  ending.place = early;
  outcome.exited(0, ending);
  EXPECT_EQ(outcome.report().failure, "rank 0 (host a, pid 70) died of signal 11 (Segmentation fault) in preparation");
  outcome = three_ranks();
  ending = code(0);
  ending.place = place;
  outcome.exited(0, ending);
  EXPECT_EQ(outcome.report().failure,
            "rank 0 (host a, pid 70) ended with exit code 0 before its training was done: at step 812 in data");
  EXPECT_THAT(outcome.text(), HasSubstr("return from the worker function"));
}

TEST(RunOutcome, KnowsTheOomKiller) {
  RunOutcome outcome = three_ranks();
  Ending ending = by_signal(9);
  ending.out_of_memory = true;
  ending.memory_limit = 64 << 20;
  outcome.exited(2, ending);
  EXPECT_EQ(outcome.report().failure,
            "rank 2 (host a, pid 72) was killed by the kernel's OOM killer (memory limit 64.0 MiB)");
  EXPECT_EQ(outcome.report().exit_code, 137);
  EXPECT_THAT(outcome.text(), HasSubstr("batch_size"));
}

TEST(RunOutcome, LetsNoWorkerForgeItsLines) {
  RunOutcome outcome = three_ranks();
  outcome.announced(
      1, failure(1, "error: true cause\nerror: rank 0 (host a, pid 70) failed: a lie\n\x1b[2J[rank0]: lie\n"), kPlace,
      kStart);
  EXPECT_THAT(outcome.text(), testing::StartsWith("error: rank 1 (host a, pid 71) failed: true cause\n"
                                                  "  error: rank 0 (host a, pid 70) failed: a lie\n"
                                                  "  [rank0]: lie\n  2 other ranks"));
}

TEST(RunOutcome, KnowsWhoHasToBeTold) {
  RunOutcome outcome = three_ranks();
  outcome.announced(1, failure(1, "x"), kPlace, kStart);
  outcome.exited(2, by_signal(9));
  EXPECT_TRUE(outcome.is_unaware(0));
  EXPECT_FALSE(outcome.is_unaware(1));
  EXPECT_FALSE(outcome.is_unaware(2));
}

TEST(RunOutcome, HintsAtMemoryWhenTheSystemKilled) {
  RunOutcome outcome = three_ranks();
  outcome.exited(0, by_signal(9));
  EXPECT_THAT(outcome.text(), HasSubstr("memory"));
  EXPECT_THAT(outcome.text(), EndsWith("2 other ranks stopped because of it\n  exit code 137"));
}

TEST(RunOutcome, TakesAStopOfAnotherLibraryOnlyAfterARequest) {
  for (const auto& [status, stop, failure] :
       {std::tuple(ExitStatus{.code = 75}, 75, 75), std::tuple(ExitStatus{.code = 130}, 130, 130),
        std::tuple(ExitStatus{.signal = 15}, 75, 143)}) {
    for (const bool asked : {false, true}) {
      RunOutcome outcome = three_ranks();
      if (asked) {
        outcome.signal_forwarded(15);
      }
      if (status.signal == 0) {
        outcome.announced(1, finished(status.code), kPlace, kStart);
      }
      outcome.exited(1, {.status = status, .tells_steps = false});
      EXPECT_EQ(outcome.report().failed_rank, asked ? -1 : 1) << failure;
      EXPECT_EQ(outcome.report().exit_code, asked ? stop : failure);
    }
  }
}

TEST(RunOutcome, SaysNothingAboutTheTrainingOfAnotherLibrary) {
  for (const bool tells : {true, false}) {
    RunOutcome outcome = three_ranks();
    outcome.signal_forwarded(2);
    Ending ending = by_signal(2);
    ending.tells_steps = tells;
    outcome.exited(0, ending);
    EXPECT_EQ(outcome.text().find("before the training began") != std::string::npos, tells) << outcome.text();
    EXPECT_EQ(outcome.report().exit_code, 130);
  }
}

}  // namespace
}  // namespace lockstep
