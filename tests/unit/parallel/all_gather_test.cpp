#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/all_gather.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/world/world.h>

#include "parallel/ddp.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// The loss of each row depends on all rows of the global batch.
class ContrastiveTask final : public TinyTask {
 public:
  ContrastiveTask(World& world, bool own_rows) : world_(world), own_rows_(own_rows) {
    module().to(at::kDouble);
    const at::NoGradGuard no_grad;
    scale_ = module().register_parameter("scale", at::full({}, 0.7, at::kDouble));
  }
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor mine = at::cat({net_(batch.input), batch.input.narrow(1, 0, 2) * scale_}, 1);
    const at::Tensor all = all_gather_with_grad(world_, mine);
    const at::Tensor wanted = world_.all_gather(batch.target);
    const at::Tensor queries = own_rows_ ? mine : all;
    const at::Tensor targets = own_rows_ ? batch.target : wanted;
    const at::Tensor alike = (targets - wanted.t()).abs().neg().softmax(1);
    return -(alike * queries.matmul(all.t()).log_softmax(1)).sum(1).mean();
  }

 private:
  World& world_;
  bool own_rows_;
  at::Tensor scale_{};
};

struct Trained {
  std::vector<at::Tensor> weights{};
  double loss = 0;
};

Trained train(int ranks, bool own_rows) {
  Trained trained;
  TrainConfig config =
      in_memory({.precision = Precision::fp64, .max_epochs = 0, .max_steps = 6, .global_batch_size = 16});
  config.report.every_steps = 1;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    ContrastiveTask task(world, own_rows);
    const auto x = at::sin(at::arange(48 * 4, at::kDouble) * 0.37).view({48, 4});
    DataLoader data(tensor_dataset(x, x.sum(1, true)), plan.loader, world);
    const FitResult result = Trainer(plan, world).fit(task, data);
    if (world.is_main()) {
      trained = {.weights = weights_of(task), .loss = result.metrics.at(0).second};
      EXPECT_EQ(result.metrics.at(0).first, "loss");
    }
  });
  return trained;
}

// 16 samples are 6, 5 and 5 on three ranks.
TEST(AllGatherWithGrad, TrainsOnAnyNumberOfRanksAsOnOne) {
  const Trained one = train(1, /*own_rows=*/false);
  for (const int ranks : {1, 2, 3}) {
    for (const bool own_rows : {false, true}) {
      SCOPED_TRACE(std::to_string(ranks) + (own_rows ? " ranks, each its own rows" : " ranks"));
      const Trained several = train(ranks, own_rows);
      EXPECT_LT(largest_difference(several.weights, one.weights), 1e-12);
      EXPECT_NEAR(several.loss, one.loss, 1e-6);
    }
  }
}

TEST(AllGatherWithGrad, GivesEachRankTheSumOfTheGradientsOfItsRows) {
  thread_world(3, [](World& world) {
    const std::int64_t rows = world.rank();  // rank 0 has none
    const at::Tensor mine = at::full({rows, 2}, 10.0 * world.rank(), at::kDouble).requires_grad_();
    const at::Tensor all = all_gather_with_grad(world, mine);
    ASSERT_TRUE(at::equal(all.select(1, 0).detach(), at::tensor({10.0, 20.0, 20.0}, at::kDouble)));
    const at::Tensor factors = at::arange(1, 7, at::kDouble).view({3, 2});
    torch::autograd::backward({(all * factors).sum() * (1 + world.rank())}, {});
    const std::int64_t first = world.rank() == 2 ? 1 : 0;
    EXPECT_TRUE(at::equal(mine.grad(), factors.narrow(0, first, rows) * (1 + 2 + 3)));
  });
}

/// Rank r uses head r. The gradient of a head is as large as that of the gathered rows.
struct TwoHeads : torch::nn::Module {
  TwoHeads() {
    const at::Tensor values = at::sin(at::arange(16, at::kFloat)).view({4, 4});
    body = register_parameter("body", values.clone());
    heads = {register_parameter("first", values.cos()), register_parameter("second", values.exp())};
  }
  at::Tensor rows_of(int rank) const {
    const at::Tensor inputs = at::cos(at::arange(8, at::kFloat) + rank).view({2, 4});
    return at::tanh(inputs.matmul(body)).matmul(heads.at(static_cast<std::size_t>(rank)));
  }
  at::Tensor body{};
  std::vector<at::Tensor> heads{};
};

// Rank 0 sends the bucket of the head that it does not use before the backward of the gather, and rank 1 after it.
TEST(AllGatherWithGrad, IsNotMixedUpWithGradientBucketsInAnotherOrder) {
  thread_world(2, [](World& world) {
    constexpr double kABucketForEach = 1e-5;  // MiB
    TwoHeads net;
    Ddp strategy({}, {.bucket_mib = kABucketForEach, .find_unused_parameters = true}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    for (std::int64_t step = 0; step < 3; ++step) {
      strategy.begin_step(step, {});
      strategy.optimizer().zero_grad();
      strategy.optimizer().begin_forward(Gradients::reduce);
      const at::Tensor all = all_gather_with_grad(world, net.rows_of(world.rank()));
      strategy.optimizer().backward(all.square().mean(), 1.0);
      strategy.optimizer().finish();
      TwoHeads whole;
      torch::autograd::backward({at::cat({whole.rows_of(0), whole.rows_of(1)}).square().mean()}, {});
      for (const auto& parameter : whole.named_parameters()) {
        EXPECT_LT(largest_difference(net.named_parameters()[parameter.key()].grad(), parameter.value().grad()), 1e-5)
            << parameter.key() << " in step " << step;
      }
    }
  });
}

// Rank 0 waits in the gather, and rank 1 for the gradients of rank 0.
TEST(AllGatherWithGrad, IsWhatARankWithoutSamplesMayWaitFor) {
  std::string hint;
  const auto body = [&](World& world) {
    const Plan plan = plan_for(2, in_memory({.precision = Precision::fp64, .global_batch_size = 16}));
    ContrastiveTask task(world, /*own_rows=*/true);
    const auto x = at::sin(at::arange(17 * 4, at::kDouble) * 0.37).view({17, 4});  // the last step has one sample
    DataLoader data(tensor_dataset(x, x.sum(1, true)), plan.loader, world);
    try {
      Trainer(plan, world).fit(task, data);
    } catch (const CommError& error) {
      if (!world.is_main()) {
        hint = error.hint();
      }
      throw;
    }
  };
  EXPECT_THROW(thread_world(2, body, std::chrono::seconds(3)), CommError);
  EXPECT_THAT(hint, HasSubstr("this rank has no samples in this micro-batch, so it did not run training_step"));
}

// A program that changes the result in place behaves the same with any number of ranks.
TEST(AllGatherWithGrad, MakesANewTensorOnOneRankToo) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      const at::Tensor mine = at::ones({2, 3}).requires_grad_();
      at::Tensor all = all_gather_with_grad(world, mine);
      EXPECT_THROW(static_cast<void>(all_gather_with_grad(world, at::ones({}))), Error);
      all.mul_(2);
      EXPECT_TRUE(at::equal(mine.detach(), at::ones({2, 3})));
      torch::autograd::backward({all.sum()}, {});
      EXPECT_TRUE(at::equal(mine.grad(), at::full({2, 3}, 2.0 * world.size())));
    });
  }
}

TEST(AllGatherWithGrad, HasNoGraphWhereNoneIsNeeded) {
  thread_world(2, [](World& world) {
    const at::Tensor weights = at::ones({1, 2}).requires_grad_();
    EXPECT_FALSE(all_gather_with_grad(world, at::ones({1, 2})).requires_grad());
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(all_gather_with_grad(world, weights).requires_grad());
  });
}

TEST(AllGatherWithGrad, RefusesOtherShapesAndASecondDerivative) {
  EXPECT_THAT(
      [] {
        thread_world(2, [](World& world) {
          static_cast<void>(all_gather_with_grad(world, at::ones({2, 3 + world.rank()}).requires_grad_()));
        });
      },
      ThrowsMessage<CommError>(HasSubstr("rank 1 has a tensor Float of [*, 4], rank 0 has Float of [*, 3]")));
  EXPECT_THAT(
      [] {
        World world = World::single(c10::kCPU);  // as several ranks do
        const at::Tensor mine = at::ones({2, 3}).requires_grad_();
        const at::Tensor all = all_gather_with_grad(world, mine);
        torch::autograd::grad({all.square().sum()}, {mine}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      },
      ThrowsMessage<Error>(HasSubstr("all_gather_with_grad has no second derivative")));
}

}  // namespace
}  // namespace lockstep
