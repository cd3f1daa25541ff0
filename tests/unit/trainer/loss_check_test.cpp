// What the first losses of a fit show: a target of another shape than the output, weights that nobody registered.
#include "trainer/watch/loss_check.h"

#include <functional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
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
  TinyTask task;
  LossCheck check(task);
  CapturedStderr captured;
  check.look(2 * loss(weight * at::ones(output), at::zeros(target)) + weight * weight, /*step=*/0);
  return captured.text();
}

TEST(LossCheck, NamesShapesIfEachOutputIsComparedWithSeveralTargets) {
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

TEST(LossCheck, AllowsATargetThatIsRepeatedForTheOutputs) {
  EXPECT_EQ(said(mse, {4, 1}, {4, 1}), "");
  EXPECT_EQ(said(mse, {4, 1}, {}), "") << "a number for all";
  EXPECT_EQ(said(mse, {4, 3}, {4, 1}), "");
  EXPECT_EQ(said([](const auto& y, const auto& t) { return (y - t).square().mean(); }, {4}, {4}), "");
  TinyTask task;
  LossCheck(task).look(at::zeros({}), /*step=*/0);  // without a graph
}

// LibTorch says it in each step, and gives mse_loss tensors of one shape.
TEST(LossCheck, LeavesFunctionalsToLibTorch) {
  const auto functional = [](const at::Tensor& y, const at::Tensor& t) {
    return torch::nn::functional::mse_loss(y, t);
  };
  const std::string text = said(functional, {4, 1}, {4});
  EXPECT_THAT(text, HasSubstr("Using a target size ([4]) that is different to"));
  EXPECT_THAT(text, testing::Not(HasSubstr("mse_loss compares")));
}

TEST(LossCheck, NamesShapesOnceInAFit) {
  class Flat final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      return at::mse_loss(net_(batch.input), batch.target.flatten());
    }
  };
  for (const int ranks : {1, 2}) {
    CapturedStderr captured;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 2, .batch_size = 4, .accumulation = 2}));
      Flat task;
      DataLoader data(tiny_data(32), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
    const std::string text = captured.text();
    const std::string message = "mse_loss compares an output of shape [4, 1] with a target of shape [4]";
    EXPECT_THAT(text, HasSubstr(message));
    EXPECT_EQ(text.find(message), text.rfind(message)) << text;
  }
}

/// Trains `task` for three steps on one rank. Returns what it writes to standard error.
std::string trained(Task& task, TrainConfig config = {}) {
  config.max_steps = 3;
  config.batch_size = 4;
  CapturedStderr captured;
  thread_world(1, [&](World& world) {
    const Plan plan = plan_for(1, in_memory(config));
    DataLoader data(tiny_data(32), plan.loader, world);
    Trainer(plan, world).fit(task, data);
  });
  return captured.text();
}

TEST(RepeatedWarnings, OfLibTorchAreShownOnceInAFit) {
  class Flat final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      return torch::nn::functional::mse_loss(net_(batch.input), batch.target.flatten());
    }
  };
  Flat task;
  const std::string text = trained(task);
  const std::string message = "Using a target size";
  EXPECT_THAT(text, HasSubstr(message));
  EXPECT_EQ(text.find(message), text.rfind(message)) << text;
}

/// Adds `more(batch)` to the loss of a TinyTask.
class WithMore final : public TinyTask {
 public:
  explicit WithMore(std::function<at::Tensor(const Batch&)> more) : more_(std::move(more)) {}
  StepOutput training_step(const Batch& batch) override {
    return at::mse_loss(net_(batch.input), batch.target) + more_(batch);
  }

 private:
  std::function<at::Tensor(const Batch&)> more_;
};

TEST(LossCheck, NamesWeightsThatAreNotInTheModule) {
  torch::nn::Linear forgotten(4, 3);
  WithMore task([&](const Batch& batch) { return forgotten(batch.input).square().mean(); });
  const std::string text = trained(task);
  EXPECT_THAT(text, HasSubstr("the loss depends on tensors that require gradients and are not in the module, of shape "
                              "[3, 4], [3]: no optimizer of the task updates them"));
  EXPECT_EQ(text.find("the loss depends"), text.rfind("the loss depends")) << text;
}

TEST(LossCheck, AllowsInputsThatRequireGradients) {
  WithMore fresh([](const Batch& batch) { return batch.input.clone().requires_grad_().square().mean(); });
  EXPECT_EQ(trained(fresh), "");
  Batch last;  // a task may keep it for one more step
  WithMore kept([&](const Batch& batch) {
    last = batch;
    return batch.input.requires_grad_().square().mean();
  });
  EXPECT_EQ(trained(kept), "");
}

TEST(LossCheck, AllowsPartsWithoutGradients) {
  torch::nn::Linear teacher(4, 1);
  for (auto& parameter : teacher->parameters()) {
    parameter.requires_grad_(false);
  }
  WithMore task([&](const Batch& batch) { return teacher(batch.input).mean(); });
  EXPECT_EQ(trained(task), "");
}

/// A part that the loss uses only if it is told to.
class Spare final : public TinyTask {
 public:
  explicit Spare(bool uses_net) : uses_net_(uses_net) {
    whole_->push_back(net_);
    whole_->push_back(spare_);
  }
  torch::nn::Module& module() override { return *whole_; }
  StepOutput training_step(const Batch& batch) override {
    return at::mse_loss((uses_net_ ? net_ : outside_)(batch.input), batch.target);
  }
  torch::nn::Linear spare_{2, 1};

 private:
  bool uses_net_;
  torch::nn::Linear outside_{4, 1};
  torch::nn::Sequential whole_{};
};

TEST(UnusedParameters, AreNamedInTheFirstStepOfOneRank) {
  Spare task(/*uses_net=*/true);
  const std::string text = trained(task);
  const std::string message =
      "2 of 4 parameters got no gradient on rank 0: 1.weight, 1.bias; with several ranks this is an error: use them";
  EXPECT_THAT(text, HasSubstr(message));
  EXPECT_EQ(text.find(message), text.rfind(message)) << text;
}

TEST(UnusedParameters, MayBeFrozenOrAllowed) {
  Spare frozen(/*uses_net=*/true);
  for (auto& parameter : frozen.spare_->parameters()) {
    parameter.requires_grad_(false);
  }
  EXPECT_EQ(trained(frozen), "");
  Spare allowed(/*uses_net=*/true);
  EXPECT_EQ(trained(allowed, {.dist = {.find_unused_parameters = true}}), "");
}

TEST(UnusedParameters, AreAnErrorIfTheyAreAll) {
  Spare task(/*uses_net=*/false);
  EXPECT_EQ(message_of([&] { trained(task); }).substr(0, 45), "4 of 4 parameters got no gradient on rank 0: ");
}

}  // namespace
}  // namespace lockstep
