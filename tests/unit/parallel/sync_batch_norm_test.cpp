#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/nn/recompute.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/parallel/sync_batch_norm.h>

#include "parallel/ddp.h"
#include "support/larger_or_nan.h"
#include "support/message_of.h"
#include "support/tensors.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

at::Tensor wave(at::IntArrayRef shape, double shift) {
  const std::int64_t n = c10::multiply_integers(shape);
  return (at::sin(at::arange(n, at::kDouble) * 0.7 + shift) + 0.3).view(shape);
}

template <class Norm>
struct Net : torch::nn::Module {
  explicit Net(torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(6)) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3)));
    norm = register_module("norm", Norm(options));
    second = register_module("second", torch::nn::Linear(6, 6));
    flat = register_module("flat", Norm(options));
    last = register_module("last", torch::nn::Linear(6, 1));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double shift = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(wave(parameter.sizes(), shift += 1) * 0.5);
    }
  }
  // Shape: [N, 2, 5, 5] -> [N, 1].
  at::Tensor forward(const at::Tensor& x) {
    const auto pooled = at::relu(norm(first(x))).mean({2, 3});
    return last(at::tanh(flat(second(pooled))));
  }
  torch::nn::Conv2d first{nullptr};
  Norm norm{nullptr};
  torch::nn::Linear second{nullptr};
  Norm flat{nullptr};
  torch::nn::Linear last{nullptr};
};

// BatchNorm2d and 1d check the number of dimensions, so the reference has a class without this check.
struct AnyBatchNormImpl : torch::nn::BatchNormImplBase<1, AnyBatchNormImpl> {
  using BatchNormImplBase::BatchNormImplBase;
  void _check_input_dim(const at::Tensor&) override {}
};
TORCH_MODULE(AnyBatchNorm);
using SyncNet = Net<SyncBatchNorm>;
using PlainNet = Net<AnyBatchNorm>;

/// Its first layers run again in the backward.
struct RecomputedNet : SyncNet {
  using SyncNet::SyncNet;
  at::Tensor forward(const at::Tensor& x) {
    const auto pooled = [this](const at::Tensor& in) { return at::relu(norm(first(in))).mean({2, 3}); };
    return last(at::tanh(flat(second(recompute(pooled, x)))));
  }
};

/// A strategy for a net.
struct Prepared {
  Prepared(torch::nn::Module& net, World& world, const DistConfig& options = {.broadcast_buffers = false},
           GradientHook hook = {})
      : strategy({}, options, world, Precision::fp32, /*seed=*/0, std::move(hook)) {
    const OptimizerSpec spec(sgd({.lr = 0.1}));
    strategy.prepare(net, {&spec, 1});
    optimizer().zero_grad();
  }
  StrategyOptimizer& optimizer() { return strategy.optimizer(); }
  Ddp strategy;
};

at::Tensor inputs(std::int64_t step, std::int64_t samples) {
  return wave({samples, 2, 5, 5}, 3.1 * static_cast<double>(step));
}
at::Tensor targets(std::int64_t step, std::int64_t samples) {
  return wave({samples, 1}, 1.3 * static_cast<double>(step));
}

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values = module.parameters();
  std::ranges::copy(module.buffers(), std::back_inserter(values));
  return values;
}

struct Case {
  std::string name;
  std::vector<std::vector<std::int64_t>> samples;  // of each rank, per micro-batch; the same in every step
  DistConfig options{};
  bool counts = false;
  double tolerance = 1e-12;
  GradientHook hook{};
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Trains a net on ranks and another one on the micro-batches of all ranks together; returns the largest difference of
/// their parameters and buffers on any step of this rank.
template <class Trained>
double difference_after_training(const Case& c, World& world, const torch::nn::BatchNormOptions& options) {
  Trained net(options);
  PlainNet whole(options);
  Prepared prepared(net, world, c.options, c.hook);
  StrategyOptimizer& optimizer = prepared.optimizer();
  torch::optim::SGD reference(whole.parameters(), torch::optim::SGDOptions(0.1));
  const auto rank = static_cast<std::size_t>(world.rank());
  std::int64_t all = 0;
  for (const auto& micro : c.samples) {
    all = std::accumulate(micro.begin(), micro.end(), all);
  }
  double largest = 0;
  for (std::int64_t step = 0; step < 4; ++step) {
    reference.zero_grad();
    prepared.strategy.begin_step(step, {});
    optimizer.zero_grad();
    for (std::size_t m = 0; m < c.samples.size(); ++m) {
      const std::vector<std::int64_t>& counts = c.samples[m];
      const std::int64_t together = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      const std::int64_t before = std::accumulate(counts.begin(), counts.begin() + world.rank(), std::int64_t{0});
      const auto number = step * 10 + static_cast<std::int64_t>(m);
      const at::Tensor x = inputs(number, together);
      const at::Tensor y = targets(number, together);
      (at::mse_loss(whole.forward(x), y) * static_cast<double>(together) / static_cast<double>(all)).backward();

      optimizer.begin_forward(m + 1 == c.samples.size() ? Gradients::reduce : Gradients::accumulate);
      if (counts[rank] == 0) {
        optimizer.backward_nothing();
        continue;
      }
      const auto mine = static_cast<double>(counts[rank]);
      const at::Tensor loss =
          at::mse_loss(net.forward(x.narrow(0, before, counts[rank])), y.narrow(0, before, counts[rank]));
      if (c.counts) {
        const at::Tensor count = at::full({}, mine, at::kFloat);
        optimizer.add_count(count);
        optimizer.backward(loss, count.to(loss.dtype()));
      } else {
        optimizer.backward(loss, mine * world.size() / static_cast<double>(all));
      }
    }
    optimizer.finish();
    if (const at::Tensor count = optimizer.mean_count(); count.defined()) {
      optimizer.scale_grads(count.reciprocal());
    }
    optimizer.step();
    reference.step();
    largest = larger_or_nan(largest, largest_difference(values_of(net), values_of(whole)));
  }
  return largest;
}

class SyncBatchNormOverRanks : public testing::TestWithParam<Case> {};

TEST_P(SyncBatchNormOverRanks, TrainsAsOneRankWithTheWholeBatch) {
  const Case& c = GetParam();
  const int ranks = static_cast<int>(c.samples.front().size());
  thread_world(ranks, [&](World& world) {
    EXPECT_LE(difference_after_training<SyncNet>(c, world, torch::nn::BatchNormOptions(6)), c.tolerance);
  });
}

const DistConfig kOwnBuffers{.broadcast_buffers = false};
const DistConfig kTinyBuckets{.bucket_mib = 0.0001, .broadcast_buffers = false};

void mean_over_ranks(const GradientBucket& bucket, World& world) { world.all_reduce(bucket.gradients, Reduce::mean); }

INSTANTIATE_TEST_SUITE_P(
    Batches, SyncBatchNormOverRanks,
    testing::Values(Case{"two_ranks", {{4, 4}}, kOwnBuffers}, Case{"four_ranks", {{3, 3, 2, 2}}, kOwnBuffers},
                    Case{"buffers_are_sent", {{4, 3}}}, Case{"accumulation", {{4, 4}, {3, 3}, {2, 1}}, kOwnBuffers},
                    Case{"idle_rank", {{4, 0}}, kOwnBuffers}, Case{"main_rank_idle", {{0, 4, 3}}, kOwnBuffers},
                    Case{"idle_in_a_part", {{4, 4, 4}, {3, 0, 2}, {2, 2, 0}}, kOwnBuffers},
                    Case{"idle_in_the_first_part", {{4, 0}, {3, 3}}, kOwnBuffers},
                    Case{"idle_with_unused", {{4, 0, 2}}, {.find_unused_parameters = true, .broadcast_buffers = false}},
                    Case{"idle_with_static_graph", {{4, 0, 2}}, {.static_graph = true, .broadcast_buffers = false}},
                    Case{"idle_with_tiny_buckets", {{4, 0, 2}}, kTinyBuckets},
                    Case{"idle_with_a_hook", {{4, 0, 2}, {2, 2, 0}}, kTinyBuckets, false, 1e-11, mean_over_ranks},
                    Case{"counts_idle_and_a_hook", {{4, 0, 2}, {2, 2, 0}}, kTinyBuckets, true, 1e-7, mean_over_ranks},
                    Case{"counts_and_idle", {{4, 0, 2}, {2, 2, 0}}, kOwnBuffers, true, 1e-7},
                    Case{"counts_compressed_and_idle",
                         {{4, 0, 2}, {2, 2, 0}},
                         {.bucket_mib = 0.0001, .broadcast_buffers = false, .compression = GradCompression::fp16},
                         true,
                         1e-2}),
    [](const auto& test) { return test.param.name; });

TEST(SyncBatchNorm, HasAllOptionsOfBatchNorm) {
  const Case c{.name = "", .samples = {{4, 2}, {0, 3}}, .options = kOwnBuffers};
  for (const auto& options :
       {torch::nn::BatchNormOptions(6).affine(false), torch::nn::BatchNormOptions(6).track_running_stats(false),
        torch::nn::BatchNormOptions(6).momentum(std::nullopt), torch::nn::BatchNormOptions(6).momentum(0.3).eps(0.1)}) {
    thread_world(2, [&](World& world) { EXPECT_LE(difference_after_training<SyncNet>(c, world, options), 1e-12); });
  }
}

// Control: statistics of each rank give another model.
TEST(SyncBatchNorm, DiffersFromBatchNormOfEachRank) {
  const Case c{.name = "", .samples = {{4, 4}}};
  thread_world(2, [&](World& world) {
    EXPECT_GE(difference_after_training<PlainNet>(c, world, torch::nn::BatchNormOptions(6)), 1e-4);
  });
}

TEST(SyncBatchNorm, TrainsInARecomputedPartBesideAnIdleRank) {
  for (const bool static_graph : {false, true}) {
    const Case c{.name = "",
                 .samples = {{4, 0, 2}},
                 .options = {.bucket_mib = 0.0001, .static_graph = static_graph, .broadcast_buffers = false}};
    const auto train = [&](World& world) {  // the recomputation writes statistics twice
      const auto options = torch::nn::BatchNormOptions(6).track_running_stats(false);
      EXPECT_LE(difference_after_training<RecomputedNet>(c, world, options), 1e-12);
    };
    thread_world(3, train);
    shared_memory_world(3, train);
  }
}

// The optimizer has all its gradients before the backward reaches the batch norm.
TEST(SyncBatchNorm, TrainsBelowARecomputedPartBesideAnIdleRank) {
  const auto train = [](World& world) {
    SyncNet net;
    OptimizerSpec spec(sgd({.lr = 0.1}));
    spec.module = net.last.get();
    Ddp strategy({}, kOwnBuffers, world);
    strategy.prepare(net, {&spec, 1});
    for (std::int64_t step = 0; step < 3; ++step) {
      strategy.begin_step(step, {});
      strategy.optimizer().zero_grad();
      strategy.optimizer().begin_forward(Gradients::reduce);
      if (world.rank() == 1) {
        strategy.optimizer().backward_nothing();
      } else {
        const auto pooled = net.norm(net.first(inputs(step, 4))).mean({2, 3});
        const auto last = [&](const at::Tensor& in) { return net.last(in); };
        strategy.optimizer().backward(recompute(last, net.flat(net.second(pooled))).square().mean());
      }
      strategy.optimizer().finish();
      strategy.optimizer().step();
    }
    const auto weights = world.all_gather(net.last->weight);
    EXPECT_TRUE(weights[0].equal(weights[1]) && weights[0].equal(weights[2]));
  };
  thread_world(3, train);
  shared_memory_world(3, train);
}

// A generator that a step of the discriminator only evaluates: its forward has no backward.
TEST(SyncBatchNorm, MayRunWithoutABackwardBesideAnIdleRank) {
  thread_world(2, [](World& world) {
    SyncNet net;
    Prepared prepared(net, world);
    prepared.optimizer().begin_forward(Gradients::reduce);
    if (world.rank() == 0) {
      const at::Tensor unused = net.forward(inputs(0, 4)).detach();
      {
        const at::NoGradGuard no_grad;
        net.forward(inputs(2, 4));
      }
      prepared.optimizer().backward(at::mse_loss(net.forward(inputs(1, 4)), targets(1, 4)), 2);
    } else {
      prepared.optimizer().backward_nothing();
    }
    prepared.optimizer().finish();
    EXPECT_EQ(net.norm->num_batches_tracked.item<std::int64_t>(), 3);
    const auto means = world.all_gather(net.norm->running_mean.view({1, -1}));
    EXPECT_TRUE(means[0].equal(means[1]));
  });
}

TEST(SyncBatchNorm, MayGetNoRowsOnARank) {
  PlainNet plain;
  plain.forward(inputs(0, 4)).square().sum().backward();
  thread_world(2, [&](World& world) {
    SyncNet net;
    Prepared prepared(net, world);
    const at::Tensor x = world.is_main() ? inputs(0, 4) : inputs(0, 4).narrow(0, 0, 0);
    prepared.optimizer().begin_forward(Gradients::reduce);
    const at::Tensor loss = net.forward(x).square().sum();
    prepared.optimizer().backward(loss, 2);
    prepared.optimizer().finish();
    EXPECT_LE(largest_difference(net.buffers(), plain.buffers()), 1e-12);
    for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
      EXPECT_LE(largest_difference(net.parameters()[i].grad(), plain.parameters()[i].grad()), 1e-10) << i;
    }
  });
}

TEST(SyncBatchNorm, RefusesInputsThatAreEmptyOnAllRanks) {
  EXPECT_THAT(message_of([] {
                thread_world(2, [](World& world) {
                  torch::nn::Sequential net{SyncBatchNorm(3)};
                  Prepared prepared(*net, world);
                  prepared.optimizer().begin_forward(Gradients::reduce);
                  net->forward(at::empty({0, 3}));
                });
              }),
              HasSubstr("the inputs of all ranks are empty"));
}

// A rank that had samples but no loss, such as a batch without labels.
TEST(SyncBatchNorm, NeedsNoLossOnEveryRank) {
  thread_world(2, [](World& world) {
    SyncNet net;
    Prepared prepared(net, world);
    prepared.optimizer().begin_forward(Gradients::reduce);
    const at::Tensor y = net.forward(inputs(world.rank(), 3));
    if (world.rank() == 0) {
      prepared.optimizer().backward(at::mse_loss(y, targets(1, 3)), 2);
    } else {
      prepared.optimizer().backward_nothing();
    }
    prepared.optimizer().finish();
    EXPECT_EQ(net.norm->num_batches_tracked.item<std::int64_t>(), 1);
    const auto gradients = world.all_gather(net.first->weight.grad().view({1, -1}));
    EXPECT_TRUE(gradients[0].equal(gradients[1]));
    EXPECT_GT(gradients.abs().max().item<double>(), 0);
  });
}

TEST(SyncBatchNorm, NormalisesHalfPrecisionInFloat) {
  thread_world(2, [](World& world) {
    SyncBatchNorm norm(6);
    SyncBatchNorm exact(6);
    torch::nn::Sequential both;
    both->push_back(norm);
    both->push_back(exact);
    Prepared prepared(*both, world);
    const at::Tensor x = wave({5, 6}, world.rank()).to(at::kFloat);
    const at::Tensor y = norm(x.to(at::kBFloat16));
    const at::Tensor expected = exact(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_LE((y.to(at::kFloat) - expected).abs().max().item<double>(), 0.03);
    EXPECT_LE(largest_difference(norm->running_var, exact->running_var), 0.01);
    y.to(at::kFloat).sum().backward();
    EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
  });
}

TEST(SyncBatchNorm, IsPlainBatchNormAlone) {
  SyncNet net;
  PlainNet plain;
  for (const bool training : {true, false}) {
    net.train(training);
    plain.train(training);
    EXPECT_TRUE(net.forward(inputs(0, 4)).equal(plain.forward(inputs(0, 4))));
  }
  EXPECT_EQ(largest_difference(values_of(net), values_of(plain)), 0);
}

TEST(SyncBatchNorm, OfAStrategyThatHasEndedIsPlainBatchNorm) {
  thread_world(2, [](World& world) {
    SyncNet net;
    PlainNet plain;
    { Prepared prepared(net, world); }
    if (world.rank() == 0) {  // would wait for the other rank
      EXPECT_TRUE(net.forward(inputs(0, 4)).equal(plain.forward(inputs(0, 4))));
    }
  });
}

TEST(SyncBatchNorm, NamesModulesThatRanksCallInAnotherOrder) {
  std::vector<std::string> texts(2);
  thread_world(2, [&](World& world) {
    SyncNet net;
    Prepared prepared(net, world);
    prepared.optimizer().begin_forward(Gradients::reduce);
    const at::Tensor x = wave({4, 6}, world.rank());
    try {
      (world.rank() == 0 ? net.norm : net.flat)(x);
    } catch (const CommError& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
      EXPECT_EQ(error.exit_code(), ExitCode::disagree);
    }
  });
  EXPECT_THAT(texts[0], HasSubstr("rank 0 runs the forward of norm, another rank runs something else"));
  EXPECT_THAT(texts[1], HasSubstr("rank 1 runs the forward of flat"));
}

TEST(SyncBatchNorm, RefusesOtherShapes) {
  thread_world(2, [](World& world) {
    SyncNet net;
    Prepared prepared(net, world);
    EXPECT_THAT(message_of([&] {
                  net.norm(wave({4, 5}, 0));
                }),
                HasSubstr("the input has shape [4, 5], expected [N, 6, ...]"));
  });
}

TEST(SyncBatchNorm, IsRequiredOnRequest) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_module("good", SyncBatchNorm(4));
      register_module("bad", torch::nn::BatchNorm2d(4));
      register_module("worse", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4)));
    }
  } module;
  World alone = World::single(c10::kCPU);
  SingleDevice strategy({}, {.require_sync_batch_norm = true}, alone);
  const OptimizerSpec spec(sgd({.lr = 0.1}));
  EXPECT_THAT(message_of<ConfigError>([&] {
                strategy.prepare(module, {&spec, 1});
              }),
              HasSubstr("statistics are those of one rank: bad, worse.1"));
  SingleDevice unasked({}, {}, alone);
  EXPECT_NO_THROW(unasked.prepare(module, {&spec, 1}));
}

}  // namespace
}  // namespace lockstep
