// --precision bf16_mixed through the Trainer: forward in bfloat16, everything that is kept in float.
#include <memory>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "support/watched_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

TrainConfig training_in(Precision precision) {
  TrainConfig config = in_memory({.max_epochs = 40, .batch_size = 8});
  config.precision = precision;
  return config;
}

std::vector<double> train(Precision precision, WatchedTask& task) {
  Session session = Session::single(training_in(precision));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  DataLoader validation(tiny_data(8), session.plan.eval_loader, session.world);
  const auto recorder = std::make_shared<LossRecorder>();
  Trainer(session).add(recorder).fit(task, data, &validation);
  return recorder->losses;
}

TEST(TrainerPrecision, Bf16MixedComputesInBf16AndKeepsFloat) {
  WatchedTask task;
  train(Precision::bf16_mixed, task);
  EXPECT_THAT(task.training_outputs, ElementsAre(at::kBFloat16));
  EXPECT_THAT(task.validation_outputs, ElementsAre(at::kBFloat16));
  EXPECT_THAT(task.losses, ElementsAre(at::kFloat));
  for (const auto& parameter : task.module().parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  }

  WatchedTask plain;
  train(Precision::fp32, plain);
  EXPECT_THAT(plain.training_outputs, ElementsAre(at::kFloat));
  EXPECT_THAT(plain.validation_outputs, ElementsAre(at::kFloat));
}

TEST(TrainerPrecision, Bf16MixedLearnsTheSame) {
  WatchedTask mixed;
  WatchedTask full;
  const auto rounded = train(Precision::bf16_mixed, mixed);
  const auto exact = train(Precision::fp32, full);
  ASSERT_EQ(rounded.size(), 160U);
  ASSERT_EQ(exact.size(), rounded.size());
  EXPECT_NE(rounded.front(), exact.front());  // control: something was rounded
  const double start = exact.front();
  for (std::size_t step = 0; step < exact.size(); ++step) {
    EXPECT_NEAR(rounded[step], exact[step], 0.02 * start) << "step " << step;
  }
  EXPECT_LT(exact.back(), 0.05 * start);
  EXPECT_LT(rounded.back(), 0.05 * start);
}

TEST(TrainerPrecision, EndsWithTheTraining) {
  const auto product_type = [] { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); };
  WatchedTask task;
  train(Precision::bf16_mixed, task);
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));

  class Failing final : public TinyTask {
   public:
    StepOutput training_step(const Batch&) override { throw std::runtime_error("no loss today"); }
  };
  Failing failing;
  Session session = Session::single(training_in(Precision::bf16_mixed));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  EXPECT_THROW(Trainer(session).fit(failing, data), std::runtime_error);
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace lockstep
