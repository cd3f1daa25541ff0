// Runs that begin with the weights of another one.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/callbacks.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

/// A linear model whose parameters are all `value` at first.
class FilledTask final : public TinyTask {
 public:
  explicit FilledTask(double value, OptimizerSpec optimizer = sgd({.lr = 0.05})) : TinyTask(std::move(optimizer)) {
    fill(value);
  }
  void fill(double value) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net_->parameters()) {
      parameter.fill_(value);
    }
  }
};

class InitWeights : public testing::Test {
 protected:
  TrainConfig config(const std::string& run, const std::string& from, std::int64_t steps = 6) const {
    TrainConfig config = in_memory({.max_epochs = 0, .max_steps = steps, .global_batch_size = 12});
    config.run_dir = (dir_.path() / run).string();
    config.checkpoint.enabled = !run.empty();
    config.init_weights = from;
    return config;
  }
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }

  /// Trains in so many threads and returns the weights of rank 0 at the end.
  static std::vector<at::Tensor> train(const TrainConfig& config, int ranks = 1, double value = 0.25,
                                       std::int64_t samples = 60) {
    std::vector<at::Tensor> weights;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, config);
      FilledTask task(value);
      DataLoader data(tiny_data(samples), plan.loader, world);
      Trainer(plan, world).fit(task, data);
      if (world.is_main()) {
        weights = weights_of(task);
      }
    });
    return weights;
  }

  TempDir dir_{};
};

TEST_F(InitWeights, AreThoseOfARunACheckpointOrAFile) {
  const auto trained = train(config("first", ""));
  save_tensors(path("weights.safetensors"), {{"weight", trained[0]}, {"bias", trained[1]}});
  const auto expected = train(config("", path("weights.safetensors")));
  EXPECT_FALSE(are_equal(expected, train(config("", "")))) << "the control";
  for (const std::string& from : {path("first"), path("first/checkpoints/step-0000000006"),
                                  path("first/checkpoints/step-0000000006/model.safetensors")}) {
    EXPECT_TRUE(are_equal(train(config("", from)), expected)) << from;
    EXPECT_TRUE(are_equal(train(config("", from), 1, /*value=*/0.5), expected)) << "whatever the model had before";
  }
}

// Other data, another number of ranks: only the weights are taken.
TEST_F(InitWeights, ServeOtherDataAndAnyNumberOfRanks) {
  train(config("first", ""));
  for (const int ranks : {1, 2, 3}) {
    const auto weights = train(config("", path("first"), 1), ranks, 0.25, 24);
    const auto straight = train(config("", path("first"), 1), 1, 0.25, 24);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(at::allclose(weights[i], straight[i], 1e-5, 1e-7)) << ranks;
    }
  }
}

TEST_F(InitWeights, AreNotReadByARunThatResumes) {
  const auto trained = train(config("first", "", 3));
  save_tensors(path("weights.safetensors"), {{"weight", trained[0]}, {"bias", trained[1]}});
  const auto straight = train(config("straight", path("weights.safetensors"), 8));
  train(config("second", path("weights.safetensors"), 4));
  std::filesystem::remove(path("weights.safetensors"));
  EXPECT_TRUE(are_equal(train(config("second", path("weights.safetensors"), 8)), straight));
}

// A loop around fit() must not lose what the earlier rounds have learned.
TEST_F(InitWeights, BeginOnlyTheFirstFitOfATrainer) {
  train(config("first", ""));
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config("", path("first"), 4));
  FilledTask task(0.25);
  DataLoader data(tiny_data(60), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.fit(task, data);
  task.fill(0.75);
  std::vector<at::Tensor> at_start;
  trainer.on(Stage::fit_start, [&](const StageContext&) { at_start = weights_of(task); });
  trainer.fit(task, data);
  EXPECT_EQ(at_start.at(1).item<float>(), 0.75F);
}

TEST_F(InitWeights, ComeBeforeAnOptimizerOrAnAverageCopiesThem) {
  const auto trained = train(config("first", ""));
  World world = World::single(c10::kCPU);
  const auto end = [&](double value, const std::string& from) {
    const Plan plan = plan_for(1, config("", from, 3));
    FilledTask task(value, schedule_free_adamw({.lr = 0.01}));
    if (from.empty()) {
      load_module(task.module(), {{"weight", trained[0]}, {"bias", trained[1]}});
    }
    DataLoader data(tiny_data(60), plan.loader, world);
    const auto average = std::make_shared<WeightAverage>();
    Trainer(plan, world).add(average).fit(task, data);
    std::vector<at::Tensor> all = weights_of(task);
    for (const auto& [name, tensor] : average->save()) {
      all.push_back(tensor.clone());
    }
    return all;
  };
  EXPECT_TRUE(are_equal(end(0.5, path("first")), end(0.25, "")));
}

TEST_F(InitWeights, TakeTheDtypeOfTheRun) {
  save_tensors(path("weights.safetensors"), {{"weight", at::full({1, 4}, 0.1)}, {"bias", at::full({1}, 0.2)}});
  for (const auto& [precision, dtype] :
       std::map<Precision, at::ScalarType>{{Precision::fp64, at::kDouble}, {Precision::bf16, at::kBFloat16}}) {
    TrainConfig of_run = config("", path("weights.safetensors"), 1);
    of_run.precision = precision;
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, of_run);
    FilledTask task(0.25);
    DataLoader data(tiny_data(60), plan.loader, world);
    at::Tensor bias;
    Trainer trainer(plan, world);
    trainer.on(Stage::fit_start,
               [&](const StageContext&) { bias = task.module().parameters().at(1).detach().clone(); });
    trainer.fit(task, data);
    EXPECT_EQ(bias.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(bias, at::full({1}, 0.2).to(dtype)));
  }
}

// As DistributedDataParallel writes them.
TEST_F(InitWeights, TakeTheDtypeOfTheRunUnderOtherNamesToo) {
  save_tensors(path("weights.safetensors"),
               {{"module.weight", at::full({1, 4}, 0.1, at::kHalf)}, {"module.bias", at::full({1}, 0.2, at::kHalf)}});
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, config("", path("weights.safetensors"), 1));
  FilledTask task(0.25);
  DataLoader data(tiny_data(60), plan.loader, world);
  at::Tensor bias;
  Trainer trainer(plan, world);
  trainer.on(Stage::fit_start, [&](const StageContext&) { bias = task.module().parameters().at(1).detach().clone(); });
  trainer.fit(task, data);
  EXPECT_TRUE(at::equal(bias, at::full({1}, 0.2, at::kHalf).to(at::kFloat)));
}

TEST_F(InitWeights, ThatCannotBeLoadedAreNamedWithTheFlag) {
  std::filesystem::create_directories(path("empty"));
  EXPECT_THAT(message_of<CheckpointError>([&] { train(config("", path("empty"))); }),
              testing::StartsWith("--init_weights: " + path("empty") + ": it has no readable checkpoint"));
  std::ofstream(path("broken.pt")) << "no file of weights";
  EXPECT_THAT(message_of<CheckpointError>([&] { train(config("", path("broken.pt"))); }),
              testing::StartsWith("--init_weights: " + path("broken.pt") + ": "));
}

TEST_F(InitWeights, ThatDoNotFitAreRefused) {
  const auto message = [&](const TrainConfig& of_run) { return message_of<CheckpointError>([&] { train(of_run); }); };
  save_tensors(path("other.safetensors"), {{"fc.weight", at::ones({1, 4})}});
  EXPECT_THAT(message(config("", path("other.safetensors"))), HasSubstr("fc.weight"));
  TrainConfig partial = config("", path("other.safetensors"));
  partial.checkpoint.allow_partial = true;
  EXPECT_THAT(message(partial), HasSubstr("other.safetensors: no tensor in it has the name of one of the model"));
  save_tensors(path("head.safetensors"), {{"weight", at::ones({1, 4})}, {"bias", at::ones({7})}});
  EXPECT_THAT(message(config("", path("head.safetensors"))), HasSubstr("bias"));
  partial.init_weights = path("head.safetensors");
  CapturedStderr captured;
  EXPECT_EQ(message(partial), "no error");
  EXPECT_THAT(captured.text(), HasSubstr("bias"));
  EXPECT_THROW(train(config("", path("missing.safetensors"))), Error);
}

}  // namespace
}  // namespace lockstep
