// Tasks that would train nothing, or something else than they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>

#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Plan plan_of(int ranks, TrainConfig config) {
  config.batch_size = 4;
  return plan_for(ranks, config);
}

/// What fit() throws at that many ranks.
std::string refusal(int ranks, const std::function<std::unique_ptr<Task>()>& make) {
  return message_of([&] {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(ranks, in_memory({.max_epochs = 2}));
      const auto task = make();
      DataLoader data(tiny_data(16), plan.loader, world);
      Trainer(plan, world).fit(*task, data);
    });
  });
}

TEST(Refused, IsACallbackThatIsAddedInACallback) {
  World world = World::single(at::kCPU);
  const Plan plan = plan_for(1, in_memory({.max_epochs = 1, .batch_size = 4}));
  TinyTask task;
  DataLoader data(tiny_data(8), plan.loader, world);
  Trainer trainer(plan, world);
  trainer.on(Stage::fit_start, [&](const StageContext&) { trainer.on(Stage::step_end, [](const StageContext&) {}); });
  EXPECT_THAT(message_of([&] { trainer.fit(task, data); }), testing::HasSubstr("was added inside of a callback"));
}

TEST(Refused, IsALossThatIsMissingOnEveryRank) {
  class Empty final : public TinyTask {
   public:
    StepOutput training_step(const Batch&) override { return {}; }
  };
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(refusal(ranks, [] { return std::make_unique<Empty>(); }), HasSubstr("no step returned a loss"));
  }
}

/// A source that leaves out a number.
class OwnSource final : public BatchSource {
 public:
  OwnSource(std::int64_t samples, std::int64_t local_samples, std::int64_t global_samples)
      : step_{.micro = {{.input = at::ones({4, 4}), .target = at::ones({4, 1}), .samples = samples}},
              .local_samples = local_samples,
              .global_samples = global_samples,
              .ends_epoch = true} {}
  const StepBatches* next() override { return &step_; }
  std::optional<std::int64_t> steps_per_epoch() const override { return 1; }
  LoaderPosition position() const override { return {}; }
  void seek(const LoaderPosition&) override {}

 private:
  StepBatches step_;
};

class Predicts final : public TinyTask {
 public:
  NamedTensors predict_step(const Batch& batch) override { return {{"y", batch.input}}; }
};

TEST(Refused, IsASourceThatLeavesOutTheNumberOfSamples) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_of(1, in_memory({.max_steps = 2}));
  Predicts task;
  Trainer trainer(plan, world);
  OwnSource without_samples(0, 4, 4);
  OwnSource complete(4, 4, 4);
  for (const std::function<void(OwnSource&)>& use :
       std::vector<std::function<void(OwnSource&)>>{[&](OwnSource& source) { trainer.fit(task, source); },
                                                    [&](OwnSource& source) { trainer.validate(task, source); },
                                                    [&](OwnSource& source) { trainer.predict(task, source); }}) {
    EXPECT_EQ(message_of<DataError>([&] { use(without_samples); }),
              "the source gave a batch with input of shape [4, 4] and samples == 0, expected the number of its samples "
              "| a BatchSource sets Batch::samples of each batch, and StepBatches::local_samples and global_samples");
    EXPECT_EQ(message_of([&] { use(complete); }), "no error");
  }
  for (const auto& [local, global] : {std::pair(0, 4), std::pair(4, 0)}) {
    OwnSource without_sum(4, local, global);
    EXPECT_THAT(message_of<DataError>([&] { trainer.fit(task, without_sum); }),
                HasSubstr("the source gave a step with samples and local_samples == " + std::to_string(local)));
  }
}

TEST(Refused, IsAModuleWithoutValues) {
  class WithoutValues final : public TinyTask {
   public:
    WithoutValues() { module_.register_parameter("scale", at::empty({1}, at::kMeta)); }
    torch::nn::Module& module() override { return module_; }

   private:
    torch::nn::Module module_{};
  };
  EXPECT_EQ(refusal(1, [] { return std::make_unique<WithoutValues>(); }),
            "scale is on the device meta, where tensors have no values | make the module on the CPU; the Trainer moves "
            "it to the device of the rank");
}

TEST(Refused, IsAParameterOfTwoOptimizers) {
  class Shared final : public TinyTask {
   public:
    std::vector<OptimizerSpec> optimizers() override {
      OptimizerSpec second = sgd({.lr = 0.1});
      second.name = "second";
      return {optimizer_, second};
    }
  };
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(refusal(ranks, [] { return std::make_unique<Shared>(); }),
                AllOf(HasSubstr("optimizer 0 ('main') and optimizer 1 ('second') both have the parameter weight"),
                      HasSubstr("for one optimizer after another, train twice")));
  }
}

TEST(Refused, IsADtypeThatCheckpointsCannotHold) {
  const TempDir dir;
  TrainConfig config = in_memory({.max_steps = 1});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  World world = World::single(c10::Device(c10::kCPU));
  const Plan plan = plan_of(1, config);
  TinyTask task;
  task.module().register_buffer("phase", at::zeros({2}, at::kComplexDouble));
  DataLoader data(tiny_data(16), plan.loader, world);
  EXPECT_THAT([&] { Trainer(plan, world).fit(task, data); },
              testing::ThrowsMessage<CheckpointError>(AllOf(HasSubstr("phase"), HasSubstr("ComplexDouble"))));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run" / "checkpoints" / "step-0000000001"));
}

TEST(Refused, IsNotALossThatIsMissingForABatch) {
  class Sometimes final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      return batch.ids.front() % 8 < 4 ? StepOutput() : TinyTask::training_step(batch);
    }
  };
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 2, .batch_size = 4, .global_batch_size = 8});
      const Plan plan = plan_for(ranks, config);
      Sometimes task;
      DataLoader data(tiny_data(16), plan.loader, world);
      ASSERT_EQ(Trainer(plan, world).fit(task, data).state.step, 4);
    });
  }
}

TEST(Refused, IsASecondOptimizerThatNobodyUpdates) {
  class Two final : public TinyTask {
   public:
    std::vector<OptimizerSpec> optimizers() override {
      OptimizerSpec of_weight = optimizer_;
      of_weight.groups = {{.select = named("weight")}};
      OptimizerSpec of_bias = optimizer_;
      of_bias.groups = {{.select = named("bias")}};
      return {of_weight, of_bias};
    }
  };
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(refusal(ranks, [] { return std::make_unique<Two>(); }),
                AllOf(HasSubstr("2 optimizers"), HasSubstr("override Task::optimize")));
  }
}

TEST(Refused, IsAFactoryThatTakesOtherParameters) {
  EXPECT_THAT(refusal(1,
                      [] {
                        return std::make_unique<TinyTask>(OptimizerSpec([](ParamGroups) -> OptimizerPtr {
                          return std::make_unique<torch::optim::SGD>(torch::nn::Linear(4, 1)->parameters(),
                                                                     torch::optim::SGDOptions(0.1));
                        }));
                      }),
              HasSubstr("its factory joined parameter groups or left out parameters"));
}

TEST(Refused, IsAModuleThatIsNoPartOfTheTasks) {
  EXPECT_THAT(refusal(1,
                      [] {
                        static torch::nn::Linear stranger(2, 2);
                        OptimizerSpec spec(sgd());
                        spec.module = stranger.get();
                        return std::make_unique<TinyTask>(spec);
                      }),
              AllOf(HasSubstr("2 of its module's parameters do not belong to the task's module"),
                    HasSubstr("registered part")));
}

TEST(Refused, IsALossThatIsNoScalar) {
  class Rows final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override { return (net_(batch.input) - batch.target).square(); }
  };
  for (const int ranks : {1, 2}) {
    EXPECT_THAT(refusal(ranks, [] { return std::make_unique<Rows>(); }),
                AllOf(HasSubstr("the loss has shape [4, 1], expected a scalar"), HasSubstr("mean()")));
  }
}

// What a GAN does: the generator's output goes through both phases of one step.
TEST(Buffers, AreSentOncePerStepWithSeveralOptimizers) {
  struct Gan : torch::nn::Module {
    Gan() {
      g = register_module("g", torch::nn::Linear(4, 4));
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
      d = register_module("d", torch::nn::Linear(4, 1));
    }
    torch::nn::Linear g{nullptr}, d{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
  };
  class GanTask final : public Task {
   public:
    torch::nn::Module& module() override { return *gan_; }
    std::vector<OptimizerSpec> optimizers() override {
      OptimizerSpec d(sgd({.lr = 0.01}));
      d.module = gan_->d.get();
      OptimizerSpec g(sgd({.lr = 0.01}));
      g.module = gan_->g.get();
      return {d, g};
    }
    StepOutput training_step(const Batch&) override { return {}; }
    void optimize(Step& step) override {
      const Batch& batch = step.batches()[0];
      at::Tensor fake;
      OptimizerStep& d = step.optimizer(0);
      OptimizerStep& g = step.optimizer(1);
      d.zero_grad();
      const auto d_out = d.forward(batch, [&](const Batch& b) -> StepOutput {
        gan_->norm->eval();  // its statistics are read by the backward of the second phase
        fake = gan_->norm(gan_->g(b.input));
        gan_->norm->train();
        return gan_->d(fake.detach()).square().mean();
      });
      d.backward(d_out);
      d.update();
      g.zero_grad();
      const auto g_out =
          g.forward(batch, [&](const Batch& b) -> StepOutput { return at::mse_loss(gan_->d(fake), b.target); });
      d.zero_grad();
      g.backward(g_out);
      g.update();
      step.add(g_out);
    }

   private:
    std::shared_ptr<Gan> gan_ = std::make_shared<Gan>();
  };
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_of(ranks, in_memory({.max_epochs = 2}));
      GanTask task;
      DataLoader data(tiny_data(16), plan.loader, world);
      ASSERT_EQ(Trainer(plan, world).fit(task, data).state.step, 8 / ranks);
    });
  }
}

// Stopped after the callback wrote a rate, and resumed without it: the rates and weights of the run that was not
// stopped.
TEST(LearningRate, OfACallbackSurvivesAResume) {
  const TempDir dir;
  struct Result {
    std::vector<double> rates{};
    at::Tensor weight{};
  };
  const auto train = [&](const char* name, std::int64_t steps, bool sets_rate) {
    Result result;
    TrainConfig config = in_memory({.max_steps = steps});
    config.run_dir = (dir.path() / name).string();
    config.checkpoint.enabled = true;
    config.optim.schedule = "warmup:6";
    const Plan plan = plan_of(1, config);
    World world = World::single(c10::Device(c10::kCPU));
    TinyTask task(sgd({.lr = 0.1}));
    Trainer trainer(plan, world);
    trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
      result.rates.push_back(context.step.lr);
      if (sets_rate && context.state.step == 4) {
        context.strategy->optimizer().torch_optimizer().param_groups().front().options().set_lr(0.02);
      }
    }));
    DataLoader data(tiny_data(64), plan.loader, world);
    trainer.fit(task, data);
    result.weight = task.module().parameters().front().detach().clone();
    return result;
  };
  const Result straight = train("straight", 8, true);
  const Result first = train("resumed", 4, true);  // saved before a step used the rate
  const Result rest = train("resumed", 8, false);
  std::vector<double> rates = first.rates;
  rates.insert(rates.end(), rest.rates.begin(), rest.rates.end());
  EXPECT_EQ(rates, straight.rates);
  EXPECT_TRUE(at::equal(rest.weight, straight.weight));
  EXPECT_NE(straight.rates.back(), 0.1);  // the control: the callback changed something
}

// The schedule goes on from a rate that a callback wrote.
TEST(LearningRate, OfACallbackIsKept) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_steps = 8});
      config.optim.schedule = "warmup:4";
      const Plan plan = plan_of(ranks, config);
      TinyTask task(sgd({.lr = 0.1}));
      std::vector<double> rates;
      Trainer trainer(plan, world);
      trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
        rates.push_back(context.step.lr);
        auto& options = context.strategy->optimizer().torch_optimizer().param_groups().front().options();
        if (context.state.step == 2) {
          options.set_lr(0.02);  // where the schedule is at a half
        } else if (context.state.step == 6) {
          options.set_lr(options.get_lr() / 10);
        }
      }));
      DataLoader data(tiny_data(64), plan.loader, world);
      trainer.fit(task, data);
      const std::vector<double> expected{0.025, 0.05, 0.03, 0.04, 0.04, 0.04, 0.004, 0.004};
      ASSERT_EQ(rates.size(), expected.size());
      for (std::size_t i = 0; i < rates.size(); ++i) {
        ASSERT_NEAR(rates[i], expected[i], 1e-12) << i;
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
