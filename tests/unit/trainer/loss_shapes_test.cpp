// A target of another shape than the output, which LibTorch repeats.
#include "trainer/watch/loss_shapes.h"

#include <functional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>

#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

at::Tensor mse(const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); }

/// What is said about the loss of an output and a target of these shapes.
std::string said(const Loss& loss, at::IntArrayRef output, at::IntArrayRef target) {
  const at::Tensor weight = at::full({}, 0.5).requires_grad_();
  LossShapes shapes;
  testing::internal::CaptureStderr();
  shapes.look(2 * loss(weight * at::ones(output), at::zeros(target)) + weight * weight);
  return testing::internal::GetCapturedStderr();
}

TEST(LossShapes, AreNamedIfEachOutputIsComparedWithSeveralTargets) {
  EXPECT_THAT(said(mse, {4, 1}, {4}),
              HasSubstr("mse_loss compares an output of shape [4, 1] with a target of shape [4] as [4, 4]: each output "
                        "with several targets; give both the same shape, for example with target.view_as(output)"));
  EXPECT_THAT(said(mse, {4}, {4, 1}), HasSubstr("as [4, 4]"));
  EXPECT_THAT(said([](const auto& y, const auto& t) { return at::smooth_l1_loss(y, t); }, {4, 1}, {4}),
              HasSubstr("smooth_l1_loss compares"));
  EXPECT_THAT(said([](const auto& y, const auto& t) { return at::huber_loss(y, t); }, {4, 1}, {4}),
              HasSubstr("huber_loss compares"));
  EXPECT_THAT(said([](const auto& y, const auto& t) { return at::binary_cross_entropy(y, t); }, {4, 1}, {4}),
              HasSubstr("binary_cross_entropy compares"));
}

TEST(LossShapes, AreFineIfTheTargetIsRepeatedForTheOutputs) {
  EXPECT_EQ(said(mse, {4, 1}, {4, 1}), "");
  EXPECT_EQ(said(mse, {4, 1}, {}), "") << "a number for all";
  EXPECT_EQ(said(mse, {4, 3}, {4, 1}), "");
  EXPECT_EQ(said([](const auto& y, const auto& t) { return (y - t).square().mean(); }, {4}, {4}), "");
  LossShapes shapes;
  shapes.look(at::zeros({}));  // without a graph
}

// LibTorch says it in each step, and gives mse_loss tensors of one shape.
TEST(LossShapes, AreNamedByLibTorchInItsFunctionals) {
  const auto functional = [](const at::Tensor& y, const at::Tensor& t) {
    return torch::nn::functional::mse_loss(y, t);
  };
  testing::internal::CaptureStderr();
  functional(at::ones({4, 1}), at::zeros({4}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("Using a target size ([4]) that is different to"));
}

TEST(LossShapes, AreNamedOnceInAFit) {
  class Flat final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      return at::mse_loss(net_(batch.input), batch.target.flatten());
    }
  };
  for (const int ranks : {1, 2}) {
    testing::internal::CaptureStderr();
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 2, .batch_size = 4, .accumulation = 2}));
      Flat task;
      DataLoader data(tiny_data(32), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
    const std::string text = testing::internal::GetCapturedStderr();
    const std::string message = "mse_loss compares an output of shape [4, 1] with a target of shape [4]";
    EXPECT_THAT(text, HasSubstr(message));
    EXPECT_EQ(text.find(message), text.rfind(message)) << text;
  }
}

}  // namespace
}  // namespace lockstep
