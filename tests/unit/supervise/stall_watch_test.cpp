#include "supervise/stall_watch.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20;

RankSample in_phase(Phase phase, std::int64_t step = 812, std::uint64_t beats = 7) {
  return {.view = {.beats = beats, .step = step, .phase = phase}, .process = {.state = 'S'}, .pid = 71};
}

RankSample in_collective(std::uint64_t number, Operation operation, std::int64_t bytes = kMiB) {
  RankSample sample = in_phase(Phase::backward);
  sample.view.collectives = number;
  sample.view.operation = operation;
  sample.view.bytes = bytes;
  return sample;
}

/// A watch whose clock is moved by hand.
class Watched {
 public:
  explicit Watched(std::vector<RankSample> samples, StallLimits limits = {.warning = 30s, .deadline = 300s},
                   bool sees_all = true, int first_rank = 0)
      : samples_(std::move(samples)), watch_(limits, static_cast<int>(samples_.size()), sees_all, first_rank) {}

  RankSample& operator[](std::size_t rank) { return samples_[rank]; }

  /// Looks every period for that long; what was found, with `each` called before every look.
  std::vector<StallFinding> pass(
      milliseconds duration, const std::function<void()>& each = [] {}) {
    std::vector<StallFinding> all;
    for (milliseconds passed{}; passed < duration; passed += StallWatch::kPeriod) {
      now_ += StallWatch::kPeriod;
      each();
      for (StallFinding& finding : watch_.observe(samples_, now_)) {
        all.push_back(std::move(finding));
      }
    }
    return all;
  }
  void sleep(milliseconds duration) { now_ += duration; }
  /// Instead of a look after each period.
  void leave_out(milliseconds duration) {
    for (milliseconds passed{}; passed < duration; passed += StallWatch::kPeriod) {
      now_ += StallWatch::kPeriod;
      watch_.leave_out(now_);
    }
  }
  void ask_for_a_stop() { watch_.stop_asked_for(now_); }
  void take_limits(const ProgressRecord& record) { watch_.take_limits(record); }

 private:
  std::vector<RankSample> samples_;
  StallWatch watch_;
  StallWatch::Time now_{};
};

TEST(StallWatch, NamesWhoIsBehindOnceAndThenEndsTheRun) {
  Watched ranks(
      {in_phase(Phase::backward), in_phase(Phase::data), in_phase(Phase::backward), in_phase(Phase::backward)});
  EXPECT_THAT(ranks.pass(29s), IsEmpty());
  const auto warnings = ranks.pass(200s);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0].lines, ElementsAre("no progress for 30 s; rank 1 is behind:",
                                             "  ranks 0,2-3: step 812, backward", "  rank 1: step 812, data"));
  EXPECT_THAT(warnings[0].ranks, ElementsAre(1));
  EXPECT_FALSE(warnings[0].ends_the_run);
  const auto ends = ranks.pass(200s);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_TRUE(ends[0].ends_the_run);
  EXPECT_THAT(ends[0].lines[0], HasSubstr("no progress for 300 s"));
}

TEST(StallWatch, NamesRanksOfALaterMachineByTheirNumbersInTheRun) {
  const StallLimits limits{.warning = 30s, .deadline = 300s};
  Watched ranks({in_phase(Phase::backward), in_phase(Phase::data), in_phase(Phase::data)}, limits, /*sees_all=*/false,
                /*first_rank=*/4);
  const auto findings = ranks.pass(301s);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_THAT(findings[0].lines, ElementsAre("no progress for 30 s; ranks 5-6 are behind:",
                                             "  rank 4: step 812, backward", "  ranks 5-6: step 812, data"));
  EXPECT_EQ(findings[1].what, "made no progress for 300 s at step 812 in data, with rank 6");
  EXPECT_THAT(findings[1].ranks, ElementsAre(1, 2)) << "indices";
  Watched stopped({in_phase(Phase::backward), in_phase(Phase::data)}, limits, /*sees_all=*/false, /*first_rank=*/4);
  stopped[1].process.state = 'T';
  EXPECT_THAT(stopped.pass(2s).at(0).lines[0], HasSubstr("rank 5 (pid 71) is stopped by a signal"));
}

TEST(StallWatch, TakesTheLimitsOfTheProgramWhenItKnowsThem) {
  Watched ranks({in_phase(Phase::forward)});
  ProgressRecord record;
  ranks.take_limits(record);
  EXPECT_THAT(ranks.pass(20s), IsEmpty());
  record.set_stall_limits(2s, 25s);
  ranks.take_limits(record);
  const auto findings = ranks.pass(10s);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_TRUE(findings[1].ends_the_run);
  Watched never({in_phase(Phase::forward)});
  record.set_stall_limits(0s, 0s);
  never.take_limits(record);
  EXPECT_THAT(never.pass(1000s), IsEmpty());
}

TEST(StallWatch, SaysWhenTheRunGoesOn) {
  Watched ranks({in_phase(Phase::backward), in_phase(Phase::data)});
  EXPECT_EQ(ranks.pass(45s).size(), 1U);
  ++ranks[1].view.beats;
  const auto findings = ranks.pass(1s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].lines, ElementsAre("the run continues after a stall of 45 s"));
  EXPECT_EQ(ranks.pass(45s).size(), 1U) << "a second stall is a second warning";
}

TEST(StallWatch, IsSilentWhileThoseBehindMove) {
  Watched ranks({in_phase(Phase::save), in_collective(5, Operation::barrier)});
  EXPECT_THAT(ranks.pass(1000s, [&] { ++ranks[0].view.beats; }), IsEmpty());
}

// As after a validation that only one rank calls: the threads that watch the others use CPU time meanwhile.
TEST(StallWatch, EndsARunWhoseRanksAllWaitBetweenSteps) {
  std::vector<RankSample> waiting{in_collective(5, Operation::all_reduce), in_collective(5, Operation::turn)};
  waiting[0].view.phase = waiting[1].view.phase = Phase::finish;
  Watched ranks(waiting);
  const auto work = [&] { ranks[0].process.cpu_ticks += 10; };
  EXPECT_EQ(ranks.pass(299s, work).size(), 1U);
  const auto findings = ranks.pass(2s, work);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].ends_the_run);
  EXPECT_THAT(findings[0].lines[0], HasSubstr("the ranks are in different collectives"));

  Watched one_works(waiting);
  one_works[1].view.operation = Operation::none;
  EXPECT_THAT(one_works.pass(1000s), testing::Each(testing::Field(&StallFinding::ends_the_run, false)));
  Watched others_may_work(waiting, {.warning = 30s, .deadline = 300s}, /*sees_all=*/false);
  EXPECT_THAT(others_may_work.pass(1000s), testing::Each(testing::Field(&StallFinding::ends_the_run, false)));
}

TEST(StallWatch, TakesWorkBetweenStepsAsLife) {
  for (const Phase phase : {Phase::prepare, Phase::program, Phase::callback, Phase::save, Phase::validation}) {
    SCOPED_TRACE(to_string(phase));
    Watched busy({in_phase(phase)});
    EXPECT_THAT(busy.pass(1000s, [&] { busy[0].process.cpu_ticks += 2; }), IsEmpty());
    Watched idle({in_phase(phase)});
    const auto findings = idle.pass(1000s, [&] { ++idle[0].process.cpu_ticks; });
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_FALSE(findings[0].ends_the_run) << "what is between steps may take long";
  }
  Watched endless_loop({in_phase(Phase::forward)});
  EXPECT_TRUE(endless_loop.pass(301s, [&] { ++endless_loop[0].process.cpu_ticks; }).back().ends_the_run);
}

TEST(StallWatch, NeverJudgesACallbackNorThoseThatWaitForIt) {
  for (const Phase waits_in : {Phase::data, Phase::task, Phase::forward, Phase::backward, Phase::optimizer,
                               Phase::callback, Phase::report, Phase::validation, Phase::save, Phase::finish}) {
    SCOPED_TRACE(to_string(waits_in));
    Watched ranks({in_phase(Phase::callback), in_phase(waits_in)});
    ranks[1].view.collectives = 1;
    ranks[1].view.operation = Operation::any;
    const auto findings = ranks.pass(1000s);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_FALSE(findings[0].ends_the_run);
    EXPECT_THAT(findings[0].lines[0], HasSubstr("rank 0 is behind"));
    EXPECT_THAT(findings[0].lines[1], HasSubstr("rank 0: step 812, callback"));
  }
}

// A loop by hand that waits for another rank outside of its steps; the rest of a step has the limit.
TEST(StallWatch, JudgesTheStepsOfALoopByHandAndNotTheCodeAroundThem) {
  Watched ranks({in_phase(Phase::program), in_collective(1, Operation::all_reduce)});
  const auto findings = ranks.pass(1000s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_FALSE(findings[0].ends_the_run);
  EXPECT_THAT(findings[0].lines[0], HasSubstr("rank 0 is behind"));
  EXPECT_THAT(findings[0].lines[1], HasSubstr("rank 0: step 812, the program's own code"));
  ranks[0].view.phase = Phase::data;
  EXPECT_TRUE(ranks.pass(301s).back().ends_the_run);
}

TEST(StallWatch, EndsWhatDoesNotEndAfterItsWork) {
  Watched destructor({in_phase(Phase::teardown)});
  EXPECT_TRUE(destructor.pass(301s).back().ends_the_run);
  Watched busy({in_phase(Phase::teardown)});
  EXPECT_THAT(busy.pass(301s, [&] { busy[0].process.cpu_ticks += 2; }), IsEmpty());
}

TEST(StallWatch, NamesRanksInDifferentCollectives) {
  Watched ranks({in_collective(4104, Operation::broadcast), in_collective(4103, Operation::all_reduce),
                 in_collective(4104, Operation::broadcast), in_collective(4104, Operation::broadcast)});
  const auto findings = ranks.pass(31s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].lines,
              ElementsAre("no progress for 30 s; the ranks are in different collectives:",
                          "  ranks 0,2-3: step 812, backward, in collective 4104: broadcast of 1.0 MiB",
                          "  rank 1: step 812, backward, in collective 4103: all-reduce of 1.0 MiB"));
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_THAT(findings[0].hint, HasSubstr("same order"));
}

TEST(StallWatch, ComparesSizesWhereTheyHaveToBeEqual) {
  const auto odd_ones = [](Operation operation) {
    return in_another_collective(
        {in_collective(7, operation, 8), in_collective(7, operation, 8), in_collective(7, operation, 12)});
  };
  EXPECT_THAT(odd_ones(Operation::all_reduce), ElementsAre(2));
  EXPECT_THAT(odd_ones(Operation::gather), IsEmpty());
  EXPECT_THAT(in_another_collective({in_collective(7, Operation::any), in_phase(Phase::data)}), IsEmpty());
  EXPECT_THAT(in_another_collective(
                  {in_collective(6, Operation::turn), in_phase(Phase::prepare), in_collective(5, Operation::turn)}),
              IsEmpty())
      << "rank 0 had its turn, rank 1 works";
}

TEST(StallWatch, KnowsCollectivesThatCannotEndWell) {
  const auto mismatch = [](RankSample a, RankSample b) { return call_different_collectives({a, b}); };
  EXPECT_TRUE(mismatch(in_collective(7, Operation::all_reduce, 4), in_collective(7, Operation::all_reduce, 200)));
  EXPECT_TRUE(mismatch(in_collective(7, Operation::all_reduce), in_collective(7, Operation::barrier)));
  EXPECT_FALSE(mismatch(in_collective(7, Operation::all_reduce), in_collective(8, Operation::barrier)))
      << "one is late";
  EXPECT_FALSE(mismatch(in_collective(7, Operation::all_reduce), in_phase(Phase::data)));
  EXPECT_FALSE(mismatch(in_collective(7, Operation::gather, 4), in_collective(7, Operation::gather, 8)));
}

TEST(StallWatch, OrdersPlacesAsARunPassesThem) {
  const Phase order[] = {Phase::report,   Phase::validation, Phase::save,   Phase::data,    Phase::forward,
                         Phase::backward, Phase::optimizer,  Phase::finish, Phase::teardown};
  for (std::size_t i = 0; i + 1 < std::size(order); ++i) {
    EXPECT_THAT(furthest_behind({in_phase(order[i + 1]), in_phase(order[i])}), ElementsAre(1)) << to_string(order[i]);
  }
  EXPECT_THAT(furthest_behind({in_phase(Phase::data, 813), in_phase(Phase::optimizer, 812)}), ElementsAre(1));
  RankSample gone = in_phase(Phase::data, 1);
  gone.running = false;
  EXPECT_THAT(furthest_behind({in_phase(Phase::data), gone}), ElementsAre(0));
}

TEST(StallWatch, SeesStoppedProcessesWithinASecond) {
  Watched ranks({in_phase(Phase::prepare), in_phase(Phase::prepare)});
  EXPECT_THAT(ranks.pass(5s), IsEmpty());
  ranks[1].process.state = 'T';
  auto findings = ranks.pass(2s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].lines,
              ElementsAre("rank 1 (pid 71) is stopped by a signal (state T); kill -CONT 71 resumes it"));
  ranks[1].process.state = 'S';
  findings = ranks.pass(2s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].lines, ElementsAre("rank 1 (pid 71) continues"));
  ranks[1].process.state = 'T';
  EXPECT_TRUE(ranks.pass(301s).back().ends_the_run) << "a stopped process is no work, in no phase";
}

// All stand in the same collective: the others wait for the one that does not run.
TEST(StallWatch, BlamesARankThatTheSystemDoesNotLetRun) {
  for (const auto& [state, text] :
       {std::pair{'T', "stopped by a signal (state T)"}, {'D', "in the kernel (state D, nfs)"}}) {
    for (const std::size_t culprit : {0U, 1U, 2U}) {
      Watched ranks({in_collective(9, Operation::all_reduce), in_collective(9, Operation::all_reduce),
                     in_collective(9, Operation::all_reduce)});
      ranks[culprit].process = {.state = state, .waits_in = "nfs"};
      const StallFinding end = ranks.pass(301s).back();
      EXPECT_TRUE(end.ends_the_run);
      EXPECT_THAT(end.ranks, ElementsAre(culprit));
      EXPECT_THAT(end.lines[0], HasSubstr(fmt::format("; rank {} is {}:", culprit, text)));
      EXPECT_THAT(end.what, HasSubstr(fmt::format(" at step 812 in backward: it is {}", text)));
    }
  }
}

TEST(StallWatch, BlamesAStoppedRankThatIsFurtherThanThoseThatWaitForIt) {
  Watched ranks({in_collective(9, Operation::all_reduce), in_collective(10, Operation::all_reduce),
                 in_collective(9, Operation::all_reduce)});
  ranks[1].process.state = 'T';
  EXPECT_THAT(ranks.pass(301s).back().ranks, ElementsAre(1));
  Watched busy({in_phase(Phase::data), in_collective(10, Operation::all_reduce)});
  busy[1].process.state = 'T';
  EXPECT_THAT(busy.pass(301s).back().ranks, ElementsAre(0)) << "who hangs in its own work waits for nobody";
}

TEST(StallWatch, EndsARendezvousThatRanksDoNotEndThemselves) {
  const StallLimits limits{.warning = 30s, .deadline = 300s, .rendezvous = 60s};
  Watched ranks({in_phase(Phase::rendezvous, -1), in_phase(Phase::start, -1)}, limits);
  ranks[1].view.phase = Phase::prepare;
  const auto findings = ranks.pass(61s, [&] { ++ranks[0].process.cpu_ticks; });
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_FALSE(findings[0].ends_the_run);
  EXPECT_TRUE(findings[1].ends_the_run) << "asking a store again and again is no progress";
  EXPECT_THAT(findings[1].ranks, ElementsAre(0));
  EXPECT_EQ(findings[1].what, "made no progress for 60 s in rendezvous");
  EXPECT_THAT(findings[1].hint, HasSubstr("--dist.init_timeout_s"));
  Watched others({in_phase(Phase::prepare, -1)}, limits);
  EXPECT_FALSE(others.pass(301s).back().ends_the_run);
}

TEST(StallWatch, HasLessPatienceAfterAStopWasAskedFor) {
  Watched ranks({in_phase(Phase::backward), in_phase(Phase::data)});
  EXPECT_THAT(ranks.pass(10s), IsEmpty());
  ranks.ask_for_a_stop();
  auto findings = ranks.pass(6s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].lines[0], HasSubstr("no progress for 5 s after a stop request; rank 1 is behind:"));
  EXPECT_FALSE(findings[0].ends_the_run);
  findings = ranks.pass(15s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].ends_the_run) << "before those 30 s are over that schedulers wait";
  EXPECT_THAT(findings[0].ranks, ElementsAre(1));
  EXPECT_EQ(findings[0].what, "made no progress for 20 s after a stop request at step 812 in data");
}

TEST(StallWatch, LetsALongStepAndASaveEndAfterAStopWasAskedFor) {
  Watched slow({in_phase(Phase::forward)});
  for (int step = 0; step < 3; ++step) {
    slow.pass(25s);
    ++slow[0].view.beats;
  }
  slow.ask_for_a_stop();
  for (const StallFinding& finding : slow.pass(49s)) {
    EXPECT_FALSE(finding.ends_the_run) << "a step takes 25 s in this run";
  }
  EXPECT_TRUE(slow.pass(2s).back().ends_the_run);
  Watched save({in_phase(Phase::save)});
  save.ask_for_a_stop();
  for (const StallFinding& finding : save.pass(1000s)) {
    EXPECT_FALSE(finding.ends_the_run);
  }
}

TEST(StallWatch, LetsPassWhatHoldsAProcessForAMoment) {
  Watched ranks({in_phase(Phase::forward)});
  for (int i = 0; i < 3; ++i) {
    ranks[0].process = {.state = 't', .tracer = 99};
    EXPECT_THAT(ranks.pass(StallWatch::kPeriod), IsEmpty());
    ranks[0].process = {.state = 'R'};
    EXPECT_THAT(ranks.pass(StallWatch::kPeriod), IsEmpty());
  }
  ranks[0].process = {.state = 't', .tracer = 99};
  EXPECT_EQ(ranks.pass(2 * StallWatch::kPeriod).size(), 1U);
}

TEST(StallWatch, NeverEndsWhatADebuggerHolds) {
  Watched ranks({in_phase(Phase::forward), in_phase(Phase::backward)});
  ranks[0].process = {.state = 't', .tracer = 99};
  for (const auto& finding : ranks.pass(1000s)) {
    EXPECT_FALSE(finding.ends_the_run);
  }
  ranks[0].process = {.state = 'S'};  // let go, and not moved yet
  for (const auto& finding : ranks.pass(20s)) {
    EXPECT_FALSE(finding.ends_the_run);
  }
  EXPECT_TRUE(ranks.pass(300s).back().ends_the_run) << "its own time counts";
}

TEST(StallWatch, DoesNotCountTimeInWhichNobodyLooked) {
  Watched ranks({in_phase(Phase::data)});
  EXPECT_THAT(ranks.pass(20s), IsEmpty());
  ranks.sleep(3600s);  // the supervisor was stopped, or the lid was closed
  EXPECT_THAT(ranks.pass(9s), IsEmpty());
  EXPECT_EQ(ranks.pass(2s).size(), 1U);
}

TEST(StallWatch, DoesNotCountTimeThatIsLeftOut) {
  Watched ranks({in_phase(Phase::data)});
  EXPECT_THAT(ranks.pass(20s), IsEmpty());
  ranks.leave_out(3600s);
  EXPECT_THAT(ranks.pass(9s), IsEmpty());
  EXPECT_EQ(ranks.pass(2s).size(), 1U);
}

TEST(StallWatch, DoesNotTakeTimeThatIsLeftOutForMovement) {
  Watched ranks({in_phase(Phase::data)});
  EXPECT_EQ(ranks.pass(31s).size(), 1U);
  ranks.leave_out(60s);
  EXPECT_THAT(ranks.pass(5s), IsEmpty()) << "it still hangs";
  ++ranks[0].view.beats;
  const auto findings = ranks.pass(StallWatch::kPeriod);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].lines, ElementsAre("the run continues after a stall of 36 s"));
}

TEST(StallWatch, DoesNotTakeTimeThatIsLeftOutForALongStep) {
  Watched ranks({in_phase(Phase::forward)});
  ranks.pass(5s);
  ranks.leave_out(60s);
  ++ranks[0].view.beats;
  ranks.pass(1s);
  ranks.ask_for_a_stop();
  EXPECT_TRUE(ranks.pass(21s).back().ends_the_run);
}

TEST(StallWatch, DoesNotCountTimeThatIsLeftOutAfterAStopWasAskedFor) {
  Watched ranks({in_phase(Phase::forward)});
  ranks.pass(10s);
  ranks.ask_for_a_stop();
  ranks.leave_out(60s);
  for (const StallFinding& finding : ranks.pass(19s)) {
    EXPECT_FALSE(finding.ends_the_run);
  }
  const auto findings = ranks.pass(2s);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].ends_the_run);
}

TEST(StallWatch, CountsFromAStopThatWasAskedForWhileNobodyLooked) {
  Watched ranks({in_phase(Phase::forward)});
  ranks.pass(10s);
  ranks.sleep(3600s);
  ranks.ask_for_a_stop();
  EXPECT_TRUE(ranks.pass(21s).back().ends_the_run);
}

TEST(StallWatch, DoesNotJudgeWhoNeverWroteItsRecord) {
  Watched ranks({in_phase(Phase::start, -1, 0), in_phase(Phase::rendezvous, -1)});
  EXPECT_THAT(ranks.pass(1000s), IsEmpty());
}

TEST(StallWatch, CanBeTurnedOff) {
  Watched ranks({in_phase(Phase::data)}, {.warning = 0s, .deadline = 0s});
  EXPECT_THAT(ranks.pass(1000s), IsEmpty());
}

TEST(ProcessState, ReadsWhatTheKernelWrites) {
  const ProcessState state = parse_process_stat("4711 (a) b (c) D 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0\n");
  EXPECT_EQ(state.state, 'D');
  EXPECT_EQ(state.cpu_ticks, 300);
  for (const char* broken : {"", "4711", "4711 (x", "4711 (x) R 1", "4711 (x) RR 1 2 3 4 5 6 7 8 9 10 1 2"}) {
    EXPECT_EQ(parse_process_stat(broken).state, '?') << broken;
  }
  EXPECT_EQ(parse_tracer("Name:\tx\nTracerPid:\t4711\nUid:\t0"), 4711);
  EXPECT_EQ(parse_tracer("Name:\tx\n"), 0);
}

}  // namespace
}  // namespace lockstep
