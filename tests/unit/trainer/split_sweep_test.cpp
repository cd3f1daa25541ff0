// Whatever is combined, ranks and micro-batches give the weights of one rank with the whole batch.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/trainer/trainer.h>

#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

enum Feature : unsigned {
  kCounts = 1,           // token counts, some of them zero
  kFp16 = 2,             // half precision between ranks
  kClipping = 4,         // of the gradient norm
  kAccumulation = 8,     // micro-batches of one sample
  kIdleRanks = 16,       // the last step of an epoch has fewer samples than ranks
  kTwoOptimizers = 32,   // only the first one's outputs have counts
  kSparse = 64,          // gradients of an embedding
  kSharded = 128,        // optimizer state
  kNorm = 256,           // SyncBatchNorm
  kGroups = 512,         // two groups, one of them with a gradient norm of its own
  kStochastic = 1024,    // gradients are rounded at random to bf16 before they are sent
  kSharedMemory = 2048,  // gradients are added in shared memory
  kLossScaling = 4096,   // the loss follows the global batch
};
constexpr unsigned kFeatures = 13;
constexpr const char* kNames[kFeatures] = {"counts",  "fp16", "clipping", "accumulation", "idle", "two",   "sparse",
                                           "sharded", "norm", "groups",   "stochastic",   "shm",  "scaled"};

std::string name_of(unsigned features) {
  std::string name = "plain";
  for (unsigned i = 0; i < kFeatures; ++i) {
    if ((features & (1U << i)) != 0) {
      name += std::string("_") + kNames[i];
    }
  }
  return name;
}

constexpr std::int64_t kRows = 7;
constexpr std::int64_t kWidth = 4;

struct PartImpl : torch::nn::Module {
  explicit PartImpl(unsigned features) {
    const bool sparse = (features & kSparse) != 0;
    rows = register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(kRows, kWidth).sparse(sparse)));
    if ((features & kNorm) != 0) {
      norm = register_module("norm", SyncBatchNorm(kWidth));
    }
    out = register_module("out", torch::nn::Linear(kWidth, 1));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.4);
    }
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor found = rows(ids);
    return out(norm.is_empty() ? found : norm(found)).squeeze(-1);
  }
  torch::nn::Embedding rows{nullptr};
  SyncBatchNorm norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Part);

struct PairImpl : torch::nn::Module {
  explicit PairImpl(unsigned features) {
    first = register_module("first", Part(features));
    second = register_module("second", Part(features));
  }
  Part first{nullptr}, second{nullptr};
};
TORCH_MODULE(Pair);

/// `wrong_weights`: a mistake on purpose, for the control.
class SweepTask final : public Task {
 public:
  SweepTask(unsigned features, bool wrong_weights)
      : features_(features), wrong_weights_(wrong_weights), net_(features) {}
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    std::vector<OptimizerSpec> specs;
    for (torch::nn::Module* part : {net_->first.get(), net_->second.get()}) {
      OptimizerSpec& spec = specs.emplace_back(OptimizerFactory([](ParamGroups groups) -> OptimizerPtr {
        return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.2));
      }));
      spec.module = two() ? part : nullptr;
      if ((features_ & kGroups) != 0) {
        spec.groups = {{.select = named("*out.weight"), .max_grad_norm = 0.1}, {}};
      }
    }
    specs.resize(two() ? 2 : 1);
    return specs;
  }
  StepOutput training_step(const Batch& batch) override {
    StepOutput both = loss_of(net_->first(batch.input) + net_->second(batch.input), batch);
    return both;
  }
  void optimize(Step& step) override {
    if (!two()) {
      Task::optimize(step);
      return;
    }
    update_with(0, step, [&](const Batch& b) { return loss_of(net_->first(b.input), b); });
    update_with(1, step, [&](const Batch& b) { return at::mse_loss(net_->second(b.input), b.target); });
  }

 private:
  bool two() const { return (features_ & kTwoOptimizers) != 0; }

  // Samples 0, 1, 3, 4, ... of every ten have tokens, as many as their number says; samples 2, 5, 6 and 7 have none.
  StepOutput loss_of(const at::Tensor& found, const Batch& batch) const {
    const auto squares = (found - batch.target).square();
    if ((features_ & kCounts) == 0) {
      return squares.mean();
    }
    std::vector<float> tokens;
    for (const std::int64_t id : batch.ids) {
      const std::int64_t digit = id % 10;
      tokens.push_back(digit == 2 || (digit >= 5 && digit <= 7) ? 0.0F : 20'000.0F * static_cast<float>(digit + 1));
    }
    const auto weights = at::tensor(tokens);
    StepOutput out((squares * weights).sum() / weights.sum().clamp_min(1));
    out.count = wrong_weights_ ? weights.gt(0).sum() : weights.sum();
    return out;
  }

  unsigned features_;
  bool wrong_weights_;
  Pair net_;
};

std::shared_ptr<Dataset> sweep_data(unsigned features) {
  constexpr std::int64_t kGlobalBatch = 6;
  const std::int64_t rest = (features & kNorm) != 0 ? 2 : 1;  // batch norm needs two samples
  const std::int64_t size = (features & kIdleRanks) != 0 ? 2 * kGlobalBatch + rest : 2 * kGlobalBatch;
  return tensor_dataset(at::arange(size).remainder(kRows), at::sin(at::arange(size, at::kFloat)));
}

std::vector<at::Tensor> trained(unsigned features, int ranks, bool wrong_weights = false) {
  TrainConfig config = in_memory({.max_epochs = 2,
                                  .batch_size = (features & kAccumulation) != 0 ? 1 : 6,
                                  .global_batch_size = 6,
                                  .sampler = {.shuffle = false}});
  config.report.every_steps = 1;
  config.optim.max_grad_norm = (features & kClipping) != 0 ? 0.3 : 0;
  config.dist.compression = (features & kFp16) != 0         ? GradCompression::fp16
                            : (features & kStochastic) != 0 ? GradCompression::bf16_stochastic
                                                            : GradCompression::none;
  config.dist.shard_optimizer = (features & kSharded) != 0;
  config.optim.loss_scaling = (features & kLossScaling) != 0 ? LrScaling::sqrt : LrScaling::none;
  config.optim.lr_batch_size = 3;
  const Plan plan = plan_for(ranks, config);
  std::vector<at::Tensor> weights;
  const auto train = [&](World& world) {
    SweepTask task(features, wrong_weights);
    DataLoader data(sweep_data(features), plan.loader, world);
    Trainer(plan, world).fit(task, data);
    if (world.is_main()) {
      weights = weights_of(task);
    }
  };
  (features & kSharedMemory) != 0 ? shared_memory_world(ranks, train) : thread_world(ranks, train);
  return weights;
}

/// Of the ways to combine at most two features; LOCKSTEP_TEST_ROUNDS above 1: at most so many more.
std::vector<unsigned> combinations() {
  const char* rounds = std::getenv("LOCKSTEP_TEST_ROUNDS");
  const int most = 2 + std::max(0, rounds == nullptr ? 0 : std::atoi(rounds) - 1);
  std::vector<unsigned> all;
  for (unsigned features = 0; features < (1U << kFeatures); ++features) {
    const auto has_both = [&](unsigned both) { return (features & both) == both; };
    // Batch norm depends on the micro-batches, and gradients are sent in one dtype.
    if (std::popcount(features) <= most && !has_both(kNorm | kAccumulation) && !has_both(kFp16 | kStochastic)) {
      all.push_back(features);
    }
  }
  return all;
}

class SplitSweep : public testing::TestWithParam<unsigned> {};

TEST_P(SplitSweep, EqualsOneRankWithTheWholeBatch) {
  const unsigned features = GetParam();
  const auto expected = trained(features & ~(kAccumulation | kFp16 | kStochastic), 1);
  const double tolerance = (features & kStochastic) != 0 ? 2e-2 : (features & kFp16) != 0 ? 2e-3 : 2e-6;
  for (const int ranks : {1, 2, 3}) {
    EXPECT_LE(largest_difference(trained(features, ranks), expected), tolerance) << ranks << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, SplitSweep, testing::ValuesIn(combinations()),
                         [](const auto& test) { return name_of(test.param); });

// The control: the sweep sees weights that are wrong, and every feature changes what is computed.
TEST(SplitSweepControl, SeesWrongWeights) {
  EXPECT_GT(largest_difference(trained(kCounts, 3, /*wrong_weights=*/true), trained(kCounts, 1)), 1e-3);
  for (const Feature feature : {kCounts, kClipping, kIdleRanks, kTwoOptimizers, kGroups, kLossScaling}) {
    EXPECT_GT(largest_difference(trained(feature, 1), trained(0, 1)), 1e-3) << name_of(feature);
  }
  EXPECT_GT(largest_difference(trained(kFp16, 2), trained(0, 2)), 0);
  EXPECT_GT(largest_difference(trained(kStochastic, 2), trained(0, 2)), 0);
  EXPECT_EQ(largest_difference(trained(kSparse, 1), trained(0, 1)), 0);
  EXPECT_GT(largest_difference(trained(kNorm | kAccumulation, 3), trained(kNorm, 1)), 1e-3);  // smaller micro-batches
}

}  // namespace
}  // namespace lockstep
