#include <chrono>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/control.h>

#include "base/control_access.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

TEST(TrainControl, KeepsTheFirstReason) {
  TrainControl control;
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  EXPECT_EQ(control.stop_reason(), "");
  control.request_stop("time limit of 1:00:00", StopKind::terminate);
  control.request_stop("early stopping");
  control.request_stop_from_signal(StopKind::interrupt);
  EXPECT_EQ(control.stop_requested(), StopKind::terminate);
  EXPECT_EQ(control.stop_reason(), "time limit of 1:00:00");
}

TEST(TrainControl, NamesASignalAsTheReason) {
  TrainControl control;
  control.request_stop_from_signal(StopKind::interrupt);
  EXPECT_EQ(control.stop_requested(), StopKind::interrupt);
  EXPECT_EQ(control.stop_reason(), "Ctrl-C");
  control.request_stop("later");
  EXPECT_EQ(control.stop_reason(), "Ctrl-C");
}

TEST(TrainControl, LetsASignalReplaceTheProgramsOwnStop) {
  TrainControl control;
  control.request_stop("early stopping");
  control.request_stop("again");
  EXPECT_EQ(control.stop_reason(), "early stopping");
  control.request_stop_from_signal(StopKind::terminate);
  EXPECT_EQ(control.stop_requested(), StopKind::terminate);
  EXPECT_EQ(control.stop_reason(), "a signal requested a stop");
  TrainControlAccess::begin_fit(control);
  TrainControlAccess::end_fit(control);
  EXPECT_EQ(control.stop_requested(), StopKind::terminate) << "a signal is for every fit";
}

TEST(TrainControl, ForgetsTheProgramsRequestsAtTheEndOfAFit) {
  TrainControl control;
  control.request_stop("early stopping");
  control.request_checkpoint();
  TrainControlAccess::begin_fit(control);
  EXPECT_TRUE(TrainControlAccess::in_fit(control));
  EXPECT_EQ(control.stop_reason(), "early stopping") << "a request from before a fit is for it";
  TrainControlAccess::end_fit(control);
  EXPECT_FALSE(TrainControlAccess::in_fit(control));
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  EXPECT_EQ(control.stop_reason(), "");
  EXPECT_FALSE(control.take_checkpoint_request());
  control.request_stop("time limit", StopKind::terminate);
  EXPECT_EQ(control.stop_reason(), "time limit");
}

TEST(TrainControl, AFitInsideAnotherOneHasRequestsOfItsOwn) {
  TrainControl control;
  TrainControlAccess::begin_fit(control);
  control.request_stop("of the outer one");
  control.request_checkpoint();
  TrainControlAccess::begin_fit(control);
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  EXPECT_FALSE(control.take_checkpoint_request());
  control.request_stop("of the inner one");
  TrainControlAccess::end_fit(control);
  EXPECT_TRUE(TrainControlAccess::in_fit(control));
  EXPECT_EQ(control.stop_reason(), "of the outer one");
  EXPECT_TRUE(control.take_checkpoint_request());
  TrainControlAccess::begin_fit(control);
  control.request_stop_from_signal(StopKind::terminate);
  TrainControlAccess::end_fit(control);
  EXPECT_EQ(control.stop_requested(), StopKind::terminate) << "a signal is for both";
}

TEST(TrainControl, StopsAtATimeUntilTheEndOfTheFit) {
  const auto now = std::chrono::steady_clock::now();
  TrainControl control;
  TrainControlAccess::begin_fit(control);
  control.request_stop_at(now + std::chrono::hours(1), "late", StopKind::terminate);
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  control.request_stop_at(now + std::chrono::milliseconds(20), "soon");
  control.request_stop_at(now + std::chrono::hours(2), "later");
  TrainControlAccess::begin_fit(control);
  while (control.stop_requested() == StopKind::none) {
  }
  EXPECT_GE(std::chrono::steady_clock::now() - now, std::chrono::milliseconds(20));
  EXPECT_EQ(control.stop_reason(), "soon");
  TrainControlAccess::end_fit(control);
  EXPECT_EQ(control.stop_requested(), StopKind::program) << "the fit around it, too";
  EXPECT_EQ(control.stop_reason(), "soon");
  TrainControlAccess::end_fit(control);
  TrainControlAccess::begin_fit(control);
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  control.request_stop_at(now, "late", StopKind::terminate);
  EXPECT_EQ(control.stop_reason(), "late") << "its time is over";
}

// A stop would be for either of them, and the fit that begins would take it from the other one.
TEST(TrainControl, RefusesFitsOfTwoThreads) {
  TrainControl control;
  TrainControlAccess::begin_fit(control);
  control.request_stop("of this thread");
  std::string refusal;
  std::thread([&] { refusal = message_of<ConfigError>([&] { TrainControlAccess::begin_fit(control); }); }).join();
  EXPECT_THAT(refusal, testing::HasSubstr("a fit in another thread uses this TrainControl"));
  EXPECT_EQ(control.stop_reason(), "of this thread");
  TrainControlAccess::end_fit(control);
  std::thread([&] {
    TrainControlAccess::begin_fit(control);
    TrainControlAccess::end_fit(control);
  }).join();
  EXPECT_FALSE(TrainControlAccess::in_fit(control));
}

TEST(TrainControl, CopiesShareRequests) {
  TrainControl control;
  TrainControl copy = control;
  copy.request_checkpoint();
  EXPECT_TRUE(control.take_checkpoint_request());
  EXPECT_FALSE(copy.take_checkpoint_request());
  copy.set_agreed(StopKind::program);
  EXPECT_EQ(control.agreed(), StopKind::program);
}

TEST(TrainControl, RefusesAStopWithoutAKind) {
  TrainControl control;
  const auto error = error_of<ConfigError>([&] { control.request_stop("x", StopKind::none); });
  EXPECT_THAT(error.what(), testing::HasSubstr("request_stop: kind is none"));
  EXPECT_THAT(error.hint(), testing::HasSubstr("leave kind out"));
  EXPECT_THROW(control.request_stop_at(std::chrono::steady_clock::now(), "x", StopKind::none), ConfigError);
  EXPECT_EQ(control.stop_requested(), StopKind::none);
  control.request_stop("y");
  EXPECT_EQ(control.stop_reason(), "y");
}

}  // namespace
}  // namespace lockstep
