#include "ipc/progress_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(ProgressBoard, ShowsWhatAnotherProcessWrites) {
  ProgressBoard board(3);
  ASSERT_EQ(board.size(), 3);
  const pid_t child = fork();
  if (child == 0) {
    ProgressBoard same(board.fd(), 2);
    same[2].set_step(812);
    same[2].set_phase(Phase::backward);
    same[2].begin(Operation::all_reduce, 1 << 20);
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(view(board[1]), ProgressView{});
  EXPECT_EQ(view(board[2]), (ProgressView{.beats = 3,
                                          .step = 812,
                                          .collectives = 1,
                                          .bytes = 1 << 20,
                                          .phase = Phase::backward,
                                          .operation = Operation::all_reduce}));
}

TEST(ProgressBoard, RefusesWhatIsNoBoardForTheRank) {
  ProgressBoard board(2);
  EXPECT_THROW(ProgressBoard(board.fd(), 2), LaunchError);
  EXPECT_THROW(ProgressBoard(-1, 0), LaunchError);
  const Descriptor before(dup(board.fd()));
  for (int time = 0; time < 3; ++time) {
    EXPECT_THROW(ProgressBoard(board.fd(), 2), LaunchError);
  }
  const Descriptor after(dup(board.fd()));
  EXPECT_EQ(after.get(), before.get() + 1) << "a descriptor stayed open";
}

TEST(ProgressView, IsReadAsText) {
  EXPECT_EQ(to_string(ProgressView{}), "start-up");
  EXPECT_EQ(to_string(ProgressView{.step = 7, .phase = Phase::data}), "step 7, data");
  EXPECT_EQ(to_string(ProgressView{.step = 7,
                                   .collectives = 4103,
                                   .bytes = 1 << 20,
                                   .phase = Phase::backward,
                                   .operation = Operation::all_reduce}),
            "step 7, backward, in collective 4103: all-reduce of 1.0 MiB");
}

TEST(ProgressView, NamesWhateverAMemoryHolds) {
  EXPECT_EQ(to_string(Phase::task), "Task::optimize");
  EXPECT_EQ(to_string(Phase::program), "the program's own code");
  EXPECT_EQ(to_string(Phase::teardown), "teardown");
  EXPECT_EQ(to_string(Phase{kPhaseCount}), "unknown phase");
  EXPECT_EQ(to_string(Operation::none), "none");
  EXPECT_EQ(to_string(Operation::bytes), "broadcast of bytes");
  EXPECT_EQ(to_string(Operation::turn), "taking turns");
  EXPECT_EQ(to_string(Operation{255}), "unknown operation");
}

TEST(ProgressView, NamesAPlace) {
  EXPECT_EQ(place_of({}), "") << "the record was never written";
  EXPECT_EQ(place_of({.beats = 1, .phase = Phase::rendezvous}), "in rendezvous");
  EXPECT_EQ(place_of({.beats = 1, .step = 0, .phase = Phase::data}), "at step 0 in data");
  EXPECT_EQ(place_of({.beats = 1, .step = 8, .phase = Phase::finish}), "after step 8") << "perhaps behind the fit";
  EXPECT_EQ(place_of({.beats = 1, .step = 8, .phase = Phase::program}), "at step 8 in the program's own code");
}

// A restarted process: its first fit has nothing to do, the second one resumes, and a third one follows.
TEST(ProgressRecord, CountsTheStepsOfAllFits) {
  ProgressRecord record;
  EXPECT_EQ(record.all_steps(), -1);
  EXPECT_FALSE(record.has_trained());
  record.begin_fit(20);
  record.begin_fit(5);
  EXPECT_FALSE(record.has_trained());
  ASSERT_TRUE(record.training_start());
  EXPECT_EQ(record.training_start()->step, 25);
  record.set_step(6);
  EXPECT_EQ(view(record).step, 6);
  EXPECT_EQ(record.all_steps(), 26);
  EXPECT_TRUE(record.has_trained());
  record.begin_fit(0);
  EXPECT_EQ(view(record).step, 0);
  EXPECT_EQ(record.all_steps(), 26);
  EXPECT_TRUE(record.has_trained());
  EXPECT_EQ(record.training_start()->step, 25) << "with its first step";
}

// Of a script: the first one was killed in a collective of its training.
TEST(ProgressRecord, BeginsAnotherProgramWithItsOwnState) {
  ProgressRecord record;
  record.begin_program();
  EXPECT_EQ(place_of(view(record)), "") << "the first program of a rank has done nothing yet";
  record.begin_fit(20);
  record.set_step(26);
  record.in_fit = true;
  record.set_callback("sample", "epoch_end");
  record.begin(Operation::all_reduce, 4);
  record.begin_program();
  EXPECT_EQ(place_of(view(record)), "in start-up");
  EXPECT_EQ(collective_of(view(record)), "");
  EXPECT_FALSE(record.in_fit);
  EXPECT_FALSE(record.has_trained());
  EXPECT_FALSE(record.training_start());
  EXPECT_EQ(record.times().waited.count(), 0);
  record.begin_fit(5);
  EXPECT_EQ(view(record).step, 5);
  EXPECT_EQ(record.all_steps(), 31) << "the steps of the first one count as progress of the rank";
  EXPECT_FALSE(record.has_trained());
  record.set_step(6);
  EXPECT_TRUE(record.has_trained());
}

TEST(PhaseScope, KeepsThePhaseInWhichAnExceptionBegan) {
  ProgressRecord record;
  record.set_phase(Phase::validation);
  EXPECT_THROW(
      {
        const PhaseScope data(record, Phase::data);
        throw LaunchError("x");
      },
      LaunchError);
  EXPECT_EQ(view(record).phase, Phase::data);
}

TEST(PhaseScope, NamesACallback) {
  ProgressRecord record;
  record.set_step(4);
  {
    const PhaseScope phase(record, "sample", "epoch_end");
    EXPECT_EQ(place_of(view(record)), "at step 4 in callback 'sample' (epoch_end)");
    {
      const PhaseScope inner(record, Phase::validation);
      EXPECT_EQ(to_string(view(record)), "step 4, validation");
    }
    EXPECT_EQ(to_string(view(record)), "step 4, callback 'sample' (epoch_end)");
  }
  EXPECT_EQ(to_string(view(record)), "step 4, start-up");
  record.set_callback(std::string(100, 'x'), "checkpoint_saved");
  EXPECT_EQ(place_of(view(record)), "at step 4 in callback '" + std::string(30, 'x') + "' (checkpoint_saved)");
}

TEST(PhaseScope, GoesBackToThePhaseBefore) {
  ProgressRecord record;
  record.set_phase(Phase::validation);
  {
    const PhaseScope data(record, Phase::data);
    EXPECT_EQ(view(record).phase, Phase::data);
  }
  EXPECT_EQ(view(record).phase, Phase::validation);
}

}  // namespace
}  // namespace lockstep
