// Gradients that are sent in another dtype, and hooks of the program.
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/strategy.h>

#include "parallel/ddp.h"
#include "support/message_of.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kUlp = 1.0 / 128;  // of a bfloat16 between 1 and 2

/// Its loss gives the gradient that is asked for, exactly.
struct Vectors : torch::nn::Module {
  Vectors(std::int64_t elements, at::ScalarType dtype) {
    a = register_parameter("a", at::zeros({elements}, dtype));
    b = register_parameter("b", at::zeros({elements}, dtype));
  }
  at::Tensor loss(const at::Tensor& gradient) const { return ((a + b) * gradient.to(a.scalar_type())).sum(); }
  at::Tensor a, b;
};

/// Reduces `mine` of each rank in the step `step`, and returns the gradient of `a`.
at::Tensor reduced(Strategy& strategy, const Vectors& module, const at::Tensor& mine, std::int64_t step,
                   double count = 0) {
  strategy.begin_step(step);
  strategy.optimizer().zero_grad();
  strategy.optimizer().begin_forward(Gradients::reduce);
  if (count > 0) {
    strategy.optimizer().add_count(at::full({}, count));
  }
  strategy.optimizer().backward(module.loss(mine), count > 0 ? count : 1.0);
  strategy.optimizer().finish();
  return module.a.grad().clone();
}

void expect_same_on_all_ranks(const at::Tensor& tensor, World& world) {
  const auto all = world.gather({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  for (const std::string& bytes : all) {
    ASSERT_TRUE(bytes == all.front());
  }
}

// Four gradients in bfloat16 whose mean is a quarter of the way to the next bfloat16.
TEST(Compression, AveragesInFp32AndRoundsOnceToTheOwnDtype) {
  constexpr std::int64_t kElements = 3000;
  constexpr int kSteps = 20;
  constexpr double kLimit = 5 * 0.434 / 244;  // five standard deviations of the mean of 60,000 errors, in ulps
  for (const auto compression : {GradCompression::fp32, GradCompression::fp32_stochastic}) {
    thread_world(4, [&](World& world) {
      Vectors module(kElements, at::kBFloat16);
      Ddp strategy({}, {.bucket_mib = 0.004, .compression = compression}, world, Precision::bf16, /*seed=*/42);
      const OptimizerSpec spec(sgd());
      strategy.prepare(module, {&spec, 1});
      const auto mine = at::full({kElements}, world.rank() == 2 ? 1 + kUlp : 1, at::kFloat);
      double error = 0;
      at::Tensor before;
      for (int step = 0; step < kSteps; ++step) {
        const auto found = reduced(strategy, module, mine, step);
        expect_same_on_all_ranks(found, world);
        error += (found.to(at::kDouble) - (1 + kUlp / 4)).mean().item<double>() / kUlp / kSteps;
        ASSERT_EQ(before.defined() && at::equal(found, before), step > 0 && compression == GradCompression::fp32);
        before = found;
      }
      if (compression == GradCompression::fp32_stochastic) {
        ASSERT_LE(std::abs(error), kLimit);
        ASSERT_FALSE(at::equal(module.a.grad(), module.b.grad())) << "another bucket";
        ASSERT_TRUE(at::equal(reduced(strategy, module, mine, kSteps - 1), before)) << "the step decides";
      } else {
        ASSERT_NEAR(error, -0.25, 1e-6) << "control: to nearest";
      }
    });
  }
}

// In bfloat16 alone, 256 + 1 is 256. Not in every place of a bucket is this the first addition.
TEST(Compression, InFp32LosesNoSmallGradient) {
  for (const auto compression : {GradCompression::none, GradCompression::fp32}) {
    thread_world(4, [&](World& world) {
      Vectors module(4096, at::kBFloat16);
      Ddp strategy({}, {.compression = compression}, world, Precision::bf16);
      const OptimizerSpec spec(sgd());
      strategy.prepare(module, {&spec, 1});
      const auto mine = at::full({4096}, world.rank() == 0 ? 1024.0 : 4.0);  // the mean is 259
      const auto found = reduced(strategy, module, mine, 0);
      ASSERT_EQ((found == 260).all().item<bool>(), compression == GradCompression::fp32);  // 258 is as near, but odd
    });
  }
}

// Only rank 0 has gradients here, so that the addition rounds nothing.
TEST(Compression, RoundsToBfloat16WithoutAnErrorOnAverage) {
  constexpr std::int64_t kElements = 20'000;
  for (const auto compression : {GradCompression::bf16, GradCompression::bf16_stochastic}) {
    thread_world(2, [&](World& world) {
      Vectors module(kElements, at::kFloat);
      Ddp strategy({}, {.compression = compression}, world);
      const OptimizerSpec spec(sgd());
      strategy.prepare(module, {&spec, 1});
      const auto mine = at::full({kElements}, world.rank() == 0 ? 2 + kUlp / 2 : 0);
      const auto found = reduced(strategy, module, mine, 0);
      expect_same_on_all_ranks(found, world);
      const double error = (found.to(at::kDouble) - (1 + kUlp / 4)).mean().item<double>() / kUlp;
      if (compression == GradCompression::bf16) {
        ASSERT_NEAR(error, -0.25, 1e-6) << "control: to nearest";
        return;
      }
      ASSERT_LE(std::abs(error), 5 * std::sqrt(0.25 * 0.75 / kElements));
      ASSERT_TRUE(at::equal(found, reduced(strategy, module, mine, 0)));
      ASSERT_FALSE(at::equal(found, reduced(strategy, module, mine, 1))) << "the step decides";
      Ddp other({}, {.compression = compression}, world, Precision::fp32, /*seed=*/1);
      other.prepare(module, {&spec, 1});
      ASSERT_FALSE(at::equal(found, reduced(other, module, mine, 0))) << "the seed decides";
    });
  }
}

// Each rank rounds up a quarter of its values. The sum is rounded to the upper neighbour only where both did.
TEST(Compression, RoundsWithOtherRandomNumbersOnEachRank) {
  constexpr std::int64_t kElements = 20'000;
  thread_world(2, [&](World& world) {
    Vectors module(kElements, at::kFloat);
    Ddp strategy({}, {.compression = GradCompression::bf16_stochastic}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(module, {&spec, 1});
    const auto found = reduced(strategy, module, at::full({kElements}, 1 + kUlp / 4), 0);
    ASSERT_NEAR((found > 1).to(at::kDouble).mean().item<double>(), 1.0 / 16, 0.01);
  });
}

at::Tensor wave(std::int64_t elements, double shift) { return at::sin(at::arange(elements, at::kFloat) * 0.7 + shift); }

// Whatever is sent: with counts, several buckets, and a hook instead of the setting.
TEST(GradientHook, IsWhatTheSettingDoes) {
  const GradientHook mean = [](const GradientBucket& bucket, World& world) {
    bucket.gradients.mul_(1.0 / world.size());
    world.all_reduce(bucket.gradients, Reduce::sum);
  };
  const GradientHook in_fp16 = [](const GradientBucket& bucket, World& world) {
    const auto sent = bucket.gradients.div_(world.size()).to(at::kHalf);
    world.all_reduce(sent, Reduce::sum);
    bucket.gradients.copy_(sent);
  };
  struct Case {
    const GradientHook& hook;
    GradCompression compression;
    int ranks;
  };
  for (const Case& c : {Case{mean, GradCompression::none, 2}, Case{in_fp16, GradCompression::fp16, 2},
                        Case{in_fp16, GradCompression::fp16, 3}}) {
    for (const double bucket_mib : {25.0, 0.004}) {
      for (const double count : {0.0, 40'000.0}) {
        thread_world(c.ranks, [&](World& world) {
          Vectors one(2000, at::kFloat);
          Vectors two(2000, at::kFloat);
          Ddp by_setting({}, {.bucket_mib = bucket_mib, .compression = c.compression}, world);
          Ddp by_hook({}, {.bucket_mib = bucket_mib}, world, Precision::fp32, 0, c.hook);
          const OptimizerSpec spec(sgd());
          by_setting.prepare(one, {&spec, 1});
          by_hook.prepare(two, {&spec, 1});
          for (std::int64_t step = 0; step < 3; ++step) {
            const auto mine = wave(2000, world.rank() + static_cast<double>(step) * 3);
            const auto expected = reduced(by_setting, one, mine, step, count);
            ASSERT_TRUE(at::equal(reduced(by_hook, two, mine, step, count), expected));
            ASSERT_TRUE(at::equal(one.b.grad(), two.b.grad()));
          }
        });
      }
    }
  }
}

TEST(GradientHook, SeesEachBucketOnceAndLeavesTheRequestsAlone) {
  thread_world(2, [](World& world) {
    std::vector<std::string> seen;
    const GradientHook hook = [&](const GradientBucket& bucket, World& w) {
      seen.push_back(std::to_string(bucket.optimizer) + "." + std::to_string(bucket.step) + "." +
                     std::to_string(bucket.index) + ":" + std::to_string(bucket.gradients.numel()));
      w.all_reduce(bucket.gradients, Reduce::mean);
    };
    Vectors module(2000, at::kFloat);
    Ddp strategy({}, {.bucket_mib = 0.004}, world, Precision::fp32, 0, hook);
    const OptimizerSpec spec(sgd());
    strategy.prepare(module, {&spec, 1});
    for (std::int64_t step = 5; step < 7; ++step) {
      strategy.begin_step(step, {.stop = step == 6 && world.rank() == 1});
      strategy.optimizer().zero_grad();
      for (const Gradients gradients : {Gradients::accumulate, Gradients::reduce}) {  // two micro-batches
        strategy.optimizer().begin_forward(gradients);
        strategy.optimizer().backward(module.loss(at::ones({2000})), 0.5);
      }
      strategy.optimizer().finish();
      ASSERT_EQ(strategy.agreed().stop, step == 6);
      ASSERT_EQ(module.a.grad().sub(1).abs().max().item<float>(), 0);
    }
    ASSERT_THAT(seen, testing::ElementsAre("0.5.0:2000", "0.5.1:2000", "0.6.0:2000", "0.6.1:2000"));
  });
}

// Freezing makes new buckets.
TEST(Compression, ContinuesAfterFreezing) {
  thread_world(2, [](World& world) {
    Vectors module(3000, at::kBFloat16);
    Ddp strategy({}, {.bucket_mib = 0.004, .compression = GradCompression::fp32_stochastic}, world, Precision::bf16);
    const OptimizerSpec spec(sgd());
    strategy.prepare(module, {&spec, 1});
    const auto mine = wave(3000, world.rank());
    reduced(strategy, module, mine, 0);
    module.b.set_requires_grad(false);
    module.b.mutable_grad().reset();
    strategy.prepare_again();
    const auto found = reduced(strategy, module, mine, 1);
    ASSERT_FALSE(module.b.grad().defined());
    expect_same_on_all_ranks(found, world);
    const auto mean = (wave(3000, 0).to(at::kBFloat16).to(at::kFloat) + wave(3000, 1).to(at::kBFloat16)) / 2;
    ASSERT_LE((found.to(at::kFloat) - mean).abs().max().item<double>(), kUlp / 2);  // one place, below 1
    ASSERT_FALSE(at::equal(found, mean.to(at::kBFloat16))) << "rounded at random";
  });
}

void expect_that_a_hook_names_its_rank(const std::function<void()>& fail, const std::string& text,
                                       ExitCode code = ExitCode::failed) {
  try {
    thread_world(3, [&](World& world) {
      const GradientHook hook = [&](const GradientBucket& bucket, World& w) {
        if (w.rank() == 1 && bucket.step == 2) {
          fail();
        }
        w.all_reduce(bucket.gradients, Reduce::mean);
      };
      Vectors module(10, at::kFloat);
      Ddp strategy({}, {}, world, Precision::fp32, 0, hook);
      const OptimizerSpec spec(sgd());
      strategy.prepare(module, {&spec, 1});
      for (std::int64_t step = 0; step < 4; ++step) {
        reduced(strategy, module, at::ones({10}), step);
      }
    });
    FAIL() << "nobody noticed";
  } catch (const CommError& error) {
    FAIL() << "the cause is not a peer: " << error.what();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the gradient hook failed on rank 1 in step 2, bucket 0: " + text));
    EXPECT_EQ(error.exit_code(), code);
  }
}

TEST(GradientHook, ThatThrowsNamesItsRank) {
  expect_that_a_hook_names_its_rank([] { throw std::runtime_error("no such codec"); }, "no such codec");
  expect_that_a_hook_names_its_rank([] { throw std::string("no such codec"); }, "std::string: no such codec");
  expect_that_a_hook_names_its_rank([] { throw IoError("no such codec"); }, "no such codec", ExitCode::io);
}

// Every rank throws it, and rank 1 is the cause.
TEST(GradientHook, PassesOnWhatAnotherRankHasThrown) {
  thread_world(2, [](World& world) {
    const GradientHook hook = [](const GradientBucket&, World& w) {
      w.one_by_one("codec", [&] {
        if (w.rank() == 1) {
          throw Error("no such codec");
        }
      });
    };
    Vectors module(10, at::kFloat);
    Ddp strategy({}, {}, world, Precision::fp32, 0, hook);
    const OptimizerSpec spec(sgd());
    strategy.prepare(module, {&spec, 1});
    const std::string message = message_of<Error>([&] { reduced(strategy, module, at::ones({10}), 0); });
    EXPECT_EQ(message.find("the gradient hook failed on rank 1") == 0, world.rank() == 1) << message;
    EXPECT_THAT(message, HasSubstr("no such codec"));
  });
}

TEST(GradientHook, OnSomeRanksOnlyIsRefused) {
  const auto error = error_of<CommError>([&] {
    thread_world(3, [](World& world) {
      Vectors module(10, at::kFloat);
      const GradientHook hook = [](const GradientBucket&, World&) {};
      Ddp strategy({}, {}, world, Precision::fp32, 0, world.rank() == 1 ? hook : GradientHook{});
      const OptimizerSpec spec(sgd());
      strategy.prepare(module, {&spec, 1});
    });
  });
  EXPECT_EQ(error.exit_code(), ExitCode::disagree);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 has a gradient hook"), HasSubstr("no gradient hook")));
}

TEST(GradientHook, AndCompressionAreRefused) {
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({});
  config.dist.compression = GradCompression::fp16;
  const GradientHook hook = [](const GradientBucket&, World&) {};
  EXPECT_THROW(make_strategy(plan_for(1, config), world, hook), ConfigError);
}

}  // namespace
}  // namespace lockstep
