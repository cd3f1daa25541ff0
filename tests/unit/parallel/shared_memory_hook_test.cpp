// Gradients in shared memory: the bytes of Gloo's on two ranks, the same bytes on all ranks, and an end for all when
// one rank fails.
#include "parallel/shared_memory_hook.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/trainer/trainer.h>

#include "base/mapped.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Its first layer has 1.6 MB of gradients, which are added in slices, and its second one few bytes.
struct WideNetImpl : torch::nn::Module {
  explicit WideNetImpl(std::int64_t width) {
    first = register_module("first", torch::nn::Linear(4, width));
    second = register_module("second", torch::nn::Linear(width, 1));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.01);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(WideNet);

/// The mean as one number after another gives it.
template <class T>
T mean_of(const std::vector<T>& numbers) {
  const float factor = 1.0F / static_cast<float>(numbers.size());
  float sum = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const float share = static_cast<T>(static_cast<float>(numbers[i]) * factor);
    sum = i == 0 ? share : sum + share;
  }
  return static_cast<T>(sum);
}

/// All bit patterns of a half type: of rank 0 in their order, of the others in another one each, or zeros. Some numbers
/// at the end fill no vector.
template <class T>
std::vector<std::vector<T>> all_numbers(std::size_t ranks, bool zeros) {
  constexpr std::size_t kCount = (1U << 16) + 37;
  std::vector<std::vector<T>> numbers(ranks, std::vector<T>(kCount));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::size_t pattern = rank == 0 ? i : zeros ? 0 : i * (2 * rank + 40'501) + 11 * rank;
      numbers[rank][i] = T(static_cast<std::uint16_t>(pattern), T::from_bits());
    }
  }
  return numbers;
}

template <class T>
void expect_the_mean_of_each(at::ScalarType type) {
  for (const std::size_t ranks : {2U, 3U, 8U}) {
    for (const bool zeros : {false, true}) {
      const std::vector<std::vector<T>> numbers = all_numbers<T>(ranks, zeros);
      std::vector<std::vector<T>> means = numbers;  // written in place, as in the shared memory
      std::vector<std::byte*> to;
      std::vector<const std::byte*> from;
      for (std::vector<T>& mean : means) {
        to.push_back(reinterpret_cast<std::byte*>(mean.data()));
        from.push_back(to.back());
      }
      write_mean_of(type)(to, from, means.front().size() * sizeof(T));
      int wrong = 0;
      for (std::size_t i = 0; i < means.front().size(); ++i) {
        const T expected = mean_of(mapped(numbers, [i](const std::vector<T>& of_rank) { return of_rank[i]; }));
        for (const std::vector<T>& mean : means) {  // of several NaN one is left, and not always the same
          wrong += mean[i].x == expected.x || (std::isnan(mean[i]) && std::isnan(expected) && !zeros) ? 0 : 1;
        }
      }
      EXPECT_EQ(wrong, 0) << c10::toString(type) << ", " << ranks << " ranks, zeros " << zeros;
    }
  }
}

// Also subnormal numbers, infinity and NaN, and results that are rounded to them.
TEST(SharedMemoryHook, WritesTheMeanOfEachNumberOfAHalfType) {
  expect_the_mean_of_each<c10::Half>(at::kHalf);
  expect_the_mean_of_each<c10::BFloat16>(at::kBFloat16);
}

struct Training {
  std::int64_t width = 100'000;
  OptimizerSpec optimizer = adamw({.lr = 1e-3});
  Precision precision = Precision::fp32;
  double bucket_mib = 1;
  std::string run_dir{};  ///< "": no checkpoints
  std::int64_t max_steps = 0;
  Backend* in_use = nullptr;  ///< at the end
};

/// The parameters of each rank at the end.
std::vector<NamedTensors> trained(int ranks, Backend backend, const Training& training = {}) {
  std::vector<NamedTensors> found(static_cast<std::size_t>(ranks));
  const auto train = [&](World& world) {
    TrainConfig config = in_memory({.max_epochs = 2});
    config.global_batch_size = 6;
    config.precision = training.precision;
    config.dist.bucket_mib = training.bucket_mib;
    config.max_steps = training.max_steps;
    config.run_dir = training.run_dir;
    config.checkpoint.enabled = !training.run_dir.empty();
    const Plan plan = plan_for(world.size(), config);
    const auto task = make_task(
        WideNet(training.width), [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); },
        training.optimizer);
    DataLoader data(tiny_data(14), plan.loader, world);
    Trainer(plan, world).fit(*task, data);
    if (training.in_use != nullptr && world.is_main()) {
      *training.in_use = WorldAccess::backend(world);
    }
    for (const auto& [name, tensor] : module_tensors(task->module())) {
      found[static_cast<std::size_t>(world.rank())].emplace_back(name, tensor.detach().clone());
    }
  };
  thread_world(ranks, train, std::chrono::seconds(30), /*nodes=*/1, backend);
  return found;
}

TEST(SharedMemoryHook, GivesTheBytesOfGlooOnTwoRanks) {
  for (const Training& training : {Training{}, Training{.bucket_mib = 100}, Training{.width = 8},
                                   Training{.precision = Precision::fp64}, Training{.precision = Precision::bf16},
                                   Training{.optimizer = sgd({.lr = 1e-2}), .precision = Precision::fp16}}) {
    const auto expected = trained(2, Backend::gloo, training);
    const auto found = trained(2, Backend::shm, training);
    EXPECT_TRUE(are_equal(found[0], expected[0])) << training.width << ", " << static_cast<int>(training.precision);
    EXPECT_TRUE(are_equal(found[0], found[1]));
  }
  EXPECT_FALSE(are_equal(trained(2, Backend::shm, {.max_steps = 4})[0], trained(2, Backend::gloo)[0]));  // the control
}

TEST(SharedMemoryHook, GivesEveryRankTheSameBytesAtEveryTiming) {
  for (const int ranks : {3, 4}) {
    const auto first = trained(ranks, Backend::shm);
    const auto again = trained(ranks, Backend::shm);
    for (const NamedTensors& of_rank : again) {
      EXPECT_TRUE(are_equal(of_rank, first[0])) << ranks << " ranks";
    }
  }
}

// A third is no number of bfloat16. Adam would not notice a common factor of the gradients.
TEST(SharedMemoryHook, DividesHalfTypesAsGlooDoes) {
  const auto after_a_step = [](Backend backend, double lr) {
    return trained(3, backend,
                   {.width = 64, .optimizer = sgd({.lr = lr}), .precision = Precision::bf16, .max_steps = 1})[0];
  };
  const auto are_close = [](const NamedTensors& a, const NamedTensors& b) {
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
      return at::allclose(x.second.to(at::kFloat), y.second.to(at::kFloat), 2e-2, 2e-2);
    });
  };
  const NamedTensors expected = after_a_step(Backend::gloo, 1);
  EXPECT_FALSE(expected.empty());
  EXPECT_TRUE(are_close(after_a_step(Backend::shm, 1), expected));
  for (const double factor : {3.0, 1 / 3.0, 0.0}) {  // gradients that are added, divided twice, or not there
    EXPECT_FALSE(are_close(after_a_step(Backend::shm, factor), expected)) << "control: " << factor;
  }
}

TEST(SharedMemoryHook, ResumesWithTheBytesOfTheUndisturbedRun) {
  const auto straight = trained(3, Backend::shm);
  const TempDir dir;
  Training training{.run_dir = (dir.path() / "run").string(), .max_steps = 4};
  trained(3, Backend::shm, training);
  training.max_steps = 0;
  EXPECT_TRUE(are_equal(trained(3, Backend::shm, training)[0], straight[0]));
}

/// As the rank of a machine that has no more memory for files.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(SharedMemoryOfAuto, IsTakenAndIsLeftByAllIfItIsMissing) {
  const auto shared = trained(3, Backend::shm);
  const auto sent = trained(3, Backend::gloo);
  ASSERT_FALSE(are_equal(shared[0], sent[0])) << "three ranks have several orders";
  Backend in_use = Backend::automatic;
  const Training training{.in_use = &in_use};
  EXPECT_TRUE(are_equal(trained(3, Backend::automatic, training)[0], shared[0]));
  EXPECT_EQ(in_use, Backend::shm);
  const FileLimit limit(100'000);
  CapturedStderr captured;
  const auto found = trained(3, Backend::automatic, training);
  EXPECT_THAT(captured.text(),
              testing::ContainsRegex("gradients go through Gloo, not through shared memory: rank 0: cannot have .* of "
                                     "shared memory \\(ulimit -f"));
  EXPECT_EQ(in_use, Backend::gloo);
  for (const NamedTensors& of_rank : found) {
    EXPECT_TRUE(are_equal(of_rank, sent[0]));
  }
  EXPECT_THAT(message_of<CommError>([] { trained(3, Backend::shm); }),
              HasSubstr("--backend shm: rank 0: cannot have "));
}

/// Its second optimizer needs more memory than its first.
class TwoNets final : public Task {
 public:
  torch::nn::Module& module() override { return nets_; }
  std::vector<OptimizerSpec> optimizers() override {
    std::vector<OptimizerSpec> specs(2, OptimizerSpec(sgd({.lr = 0.1})));
    specs[0].name = "of small";
    specs[0].module = nets_.small.get();
    specs[1].name = "of wide";
    specs[1].module = nets_.wide.get();
    return specs;
  }
  void optimize(Step& step) override {
    update_with(0, step, [&](const Batch& b) { return at::mse_loss(nets_.small(b.input), b.target); });
    update_with(1, step, [&](const Batch& b) { return at::mse_loss(nets_.wide(b.input), b.target); });
  }

 private:
  struct Nets : torch::nn::Module {
    WideNet small{register_module("small", WideNet(8))};
    WideNet wide{register_module("wide", WideNet(100'000))};
  } nets_{};
};

TEST(SharedMemoryOfAuto, IsLeftByBothOptimizersIfTheSecondCannotHaveIt) {
  const auto train = [](Backend backend, Backend expected) {
    NamedTensors found;
    const auto on_rank = [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 2});
      config.global_batch_size = 6;
      const Plan plan = plan_for(world.size(), config);
      TwoNets task;
      DataLoader data(tiny_data(14), plan.loader, world);
      Trainer(plan, world).fit(task, data);
      EXPECT_EQ(WorldAccess::backend(world), expected);
      if (world.is_main()) {
        for (const auto& [name, tensor] : module_tensors(task.module())) {
          found.emplace_back(name, tensor.detach().clone());
        }
      }
    };
    thread_world(3, on_rank, std::chrono::seconds(30), /*nodes=*/1, backend);
    return found;
  };
  const NamedTensors sent = train(Backend::gloo, Backend::gloo);
  EXPECT_FALSE(are_equal(train(Backend::automatic, Backend::shm), sent)) << "control";
  const FileLimit limit(1'000'000);  // enough for the first optimizer
  EXPECT_TRUE(are_equal(train(Backend::automatic, Backend::gloo), sent));
}

// The sums of three ranks depend on the order.
TEST(SharedMemoryOfAuto, KeepsTheOrderOfTheCheckpoint) {
  for (const Backend begun : {Backend::gloo, Backend::shm}) {
    const auto straight = trained(3, begun);
    const TempDir dir;
    Backend in_use = Backend::automatic;
    Training training{.run_dir = (dir.path() / "run").string(), .max_steps = 2, .in_use = &in_use};
    trained(3, begun, training);
    for (const std::int64_t steps : {4, 0}) {  // twice: the second checkpoint is of a run that left shared memory
      training.max_steps = steps;
      CapturedStderr captured;
      const auto found = trained(3, Backend::automatic, training);
      const std::string log = captured.text();
      EXPECT_EQ(in_use, begun);
      EXPECT_EQ(log.find("the checkpoint was written with Gloo") != std::string::npos, begun == Backend::gloo) << log;
      EXPECT_THAT(log, testing::Not(HasSubstr("warning")));
      EXPECT_TRUE(steps > 0 || are_equal(found[0], straight[0]));
    }
  }
}

TEST(SharedMemoryOfAuto, WarnsOnlyWhereSumsHaveAnotherOrder) {
  const auto log_of = [](int before, Backend first, int now, Backend second) {
    const TempDir dir;
    Training training{.width = 8, .run_dir = (dir.path() / "run").string(), .max_steps = 2};
    trained(before, first, training);
    training.max_steps = 4;
    CapturedStderr captured;
    trained(now, second, training);
    return captured.text();
  };
  EXPECT_THAT(log_of(3, Backend::gloo, 3, Backend::shm),
              HasSubstr("--backend is shm now, gloo when the checkpoint was written"));
  EXPECT_THAT(log_of(3, Backend::shm, 3, Backend::gloo), HasSubstr("--backend is gloo now, shm when"));
  EXPECT_THAT(log_of(2, Backend::shm, 2, Backend::gloo), testing::Not(HasSubstr("--backend")));
  EXPECT_THAT(log_of(2, Backend::gloo, 2, Backend::automatic), testing::Not(HasSubstr("Gloo"))) << "the same bytes";
  EXPECT_THAT(log_of(3, Backend::gloo, 2, Backend::automatic), testing::Not(HasSubstr("--backend")));
}

// A gradient is a view of memory that other ranks use too.
TEST(SharedMemoryHook, LeavesAGradientToAProgramThatHoldsIt) {
  shared_memory_world(2, [](World& world) {
    at::Tensor held;
    at::Tensor values;
    {
      TrainConfig config = in_memory({.max_epochs = 2});
      config.global_batch_size = 6;
      const Plan plan = plan_for(world.size(), config);
      TinyTask task;
      DataLoader data(tiny_data(12), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::backward_end, [&](const StageContext&) {
        held = task.module().parameters().front().grad();
        values = held.clone();
      });
      trainer.fit(task, data);
    }
    EXPECT_TRUE(at::equal(held, values));
    held.fill_(1);
    EXPECT_EQ(held.sum().item<float>(), 4);
  });
}

class FailingTask final : public TinyTask {
 public:
  FailingTask(const World& world, int steps) : fails_(world.rank() == 1), steps_(steps) {}
  StepOutput training_step(const Batch& batch) override {
    if (fails_ && steps_-- == 0) {
      throw std::runtime_error("no more power");
    }
    return TinyTask::training_step(batch);
  }

 private:
  bool fails_;
  int steps_;
};

TEST(SharedMemoryHook, EndsAllRanksWhenOneFails) {
  std::string seen;
  std::chrono::steady_clock::duration waited{};
  const auto train = [&](World& world) {
    TrainConfig config = in_memory({.max_epochs = 50});
    config.global_batch_size = 6;
    const Plan plan = plan_for(world.size(), config);
    FailingTask task(world, 3);
    DataLoader data(tiny_data(12), plan.loader, world);
    const auto began = std::chrono::steady_clock::now();
    if (world.is_main()) {
      seen = message_of<CommError>([&] { Trainer(plan, world).fit(task, data); });
      waited = std::chrono::steady_clock::now() - began;
    } else {
      Trainer(plan, world).fit(task, data);
    }
  };
  EXPECT_THAT(message_of<std::runtime_error>([&] { shared_memory_world(2, train); }), HasSubstr("no more power"));
  EXPECT_THAT(seen,
              AllOf(HasSubstr("gradient all-reduce failed on rank 0 of 2"), HasSubstr("rank 1 takes part no more")));
  EXPECT_LT(waited, std::chrono::seconds(20)) << "the timeout of a collective is 30 s";
}

}  // namespace
}  // namespace lockstep
