// Frozen parameters and evaluation mode, before a fit and during it.
#include <array>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>

#include "base/about_another_rank.h"
#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    a = register_module("a", torch::nn::Linear(4, 4));
    bn = register_module("bn", torch::nn::BatchNorm1d(4));
    b = register_module("b", torch::nn::Linear(4, 1));
    at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
  }
  at::Tensor forward(const at::Tensor& x) { return b(bn(a(x))); }
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::BatchNorm1d bn{nullptr};
};
TORCH_MODULE(Net);

class NetTask final : public Task {
 public:
  explicit NetTask(OptimizerSpec optimizer = adamw({.lr = 0.05})) : optimizer_(std::move(optimizer)) {}
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerSpec> optimizers() override { return {optimizer_}; }
  StepOutput training_step(const Batch& batch) override { return at::mse_loss(net(batch.input), batch.target); }
  Net net{};

 private:
  OptimizerSpec optimizer_;
};

Plan plan_of(int ranks, TrainConfig config) {
  config.batch_size = 16 / ranks;
  return plan_for(ranks, config);
}

void freeze(torch::nn::Module& module, bool frozen) {
  for (auto& parameter : module.parameters()) {
    parameter.set_requires_grad(!frozen);
  }
}

std::map<std::string, at::Tensor> values_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> values;
  for (const auto& item : module.named_parameters()) {
    values[item.key()] = item.value().detach().clone();
  }
  for (const auto& item : module.named_buffers()) {
    values[item.key()] = item.value().clone();
  }
  return values;
}

// Every combination of what a program may do with a part, before fit() or in its first callback.
TEST(Modes, OfEverySubmoduleAreKeptThroughValidations) {
  for (const int ranks : {1, 2}) {
    for (const bool in_callback : {false, true}) {
      for (const bool eval : {false, true}) {
        for (const bool frozen : {false, true}) {
          SCOPED_TRACE(testing::Message() << ranks << " ranks, " << (in_callback ? "callback" : "before") << ", "
                                          << (eval ? "eval" : "train") << (frozen ? ", frozen" : ""));
          thread_world(ranks, [&](World& world) {
            const Plan plan = plan_of(ranks, in_memory({.max_epochs = 3}));
            NetTask task;
            const auto before = values_of(*task.net);
            const auto set = [&] {
              task.net->bn->train(!eval);
              freeze(*task.net->bn, frozen);
            };
            if (!in_callback) {
              set();
            }
            Trainer trainer(plan, world);
            trainer.add(
                at_stage(Stage::fit_start | Stage::step_end | Stage::validation_end, [&](const StageContext& context) {
                  if (context.stage == Stage::fit_start && in_callback) {
                    set();
                  }
                  ASSERT_EQ(task.net->bn->is_training(), !eval) << context.state.step;
                  ASSERT_TRUE(task.net->a->is_training());
                  ASSERT_TRUE(task.net->is_training());
                }));
            DataLoader data(tiny_data(32), plan.loader, world);
            DataLoader validation(tiny_data(8), plan.eval_loader, world);
            ASSERT_EQ(trainer.fit(task, data, &validation).state.step, 6);
            const auto after = values_of(*task.net);
            ASSERT_EQ(at::equal(after.at("bn.weight"), before.at("bn.weight")), frozen);
            ASSERT_EQ(at::equal(after.at("bn.running_mean"), before.at("bn.running_mean")), eval);
            ASSERT_FALSE(at::equal(after.at("a.weight"), before.at("a.weight")));
          });
        }
      }
    }
  }
}

/// Freezes `a` for the epochs 1 and 2 (from 0), by epoch: the same when a run is resumed.
std::shared_ptr<Callback> freezer(NetTask& task) {
  return at_stage(Stage::fit_start | Stage::epoch_end, [&](const StageContext& context) {
    freeze(*task.net->a, context.state.epoch == 1 || context.state.epoch == 2);
  });
}

TEST(Freezing, InACallbackTrainsTheOthersFromTheNextStepOn) {
  std::map<std::string, at::Tensor> one;
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 5, .global_batch_size = 12});
      const Plan plan = plan_for(ranks, config);
      NetTask task;
      task.net->bn->eval();  // its statistics would be each rank's own
      std::vector<at::Tensor> weights;
      Trainer trainer(plan, world);
      trainer.add(freezer(task));
      trainer.add(at_stage(
          Stage::epoch_end, [&](const StageContext&) { weights.push_back(task.net->a->weight.detach().clone()); },
          "look"));
      DataLoader data(tiny_data(24), plan.loader, world);
      trainer.fit(task, data);
      ASSERT_EQ(weights.size(), 5U);
      ASSERT_TRUE(at::equal(weights[0], weights[1])) << "frozen";
      ASSERT_TRUE(at::equal(weights[1], weights[2]));
      ASSERT_FALSE(at::equal(weights[2], weights[3])) << "trained again";
      if (ranks == 1) {
        one = values_of(*task.net);
      }
      for (const auto& [name, value] : values_of(*task.net)) {
        ASSERT_LE(largest_difference(value, one.at(name)), 1e-5) << name;
      }
    });
  }
}

TEST(Freezing, OnOneRankAloneIsNamed) {
  std::array<bool, 2> is_about_another_rank{};
  const auto error = error_of<CommError>([&] {
    thread_world(2, [&](World& world) {
      const Plan plan = plan_of(2, in_memory({.max_epochs = 3}));
      NetTask task;
      Trainer trainer(plan, world);
      trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
        if (context.state.step == 2 && context.world.rank() == 1) {
          task.net->b->bias.set_requires_grad(false);
        }
      }));
      DataLoader data(tiny_data(32), plan.loader, world);
      try {
        trainer.fit(task, data);
      } catch (const CommError& failure) {
        const auto rank = static_cast<std::size_t>(world.rank());
        is_about_another_rank[rank] = dynamic_cast<const AboutAnotherRank*>(&failure) != nullptr;
        throw;
      }
    });
  });
  EXPECT_EQ(error.exit_code(), ExitCode::disagree);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 freezes other parameters"), HasSubstr("b.bias (frozen)")));
  EXPECT_THAT(is_about_another_rank, testing::ElementsAre(true, false)) << "rank 1 is the cause";
}

// Stopped in each epoch and resumed: the state of what is frozen is in the checkpoints.
TEST(Freezing, ByEpochIsResumedExactly) {
  for (const int ranks : {1, 2}) {
    for (const bool frozen_by_program : {false, true}) {
      std::map<std::string, at::Tensor> straight;
      for (int stop = 0; stop <= 4; ++stop) {
        const TempDir dir;
        thread_world(ranks, [&](World& world) {
          TrainConfig config{.compute_setup = ComputeSetup::cpu, .max_epochs = 5, .run_dir = dir.path() / "run"};
          std::map<std::string, at::Tensor> end;
          for (const int epochs : {stop, 5}) {
            if (epochs == 0) {
              continue;
            }
            config.max_epochs = epochs;
            const Plan plan = plan_of(ranks, config);
            NetTask task;
            freeze(*task.net->a, frozen_by_program);  // the callback knows better
            Trainer trainer(plan, world);
            trainer.add(freezer(task));
            DataLoader data(tiny_data(32), plan.loader, world);
            trainer.fit(task, data);
            end = values_of(*task.net);
          }
          if (world.is_main()) {
            if (stop == 0) {
              straight = end;
            }
            for (const auto& [name, value] : end) {
              EXPECT_TRUE(at::equal(value, straight.at(name)))
                  << name << " at " << ranks << " ranks, stopped after epoch " << stop;
            }
          }
        });
      }
    }
  }
}

TEST(Freezing, OfAWholeGroupIsAllowed) {
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 8}));
  OptimizerSpec spec(adamw({.lr = 0.05}));
  spec.groups = {{.select = [](std::string_view name, const at::Tensor&) { return name.starts_with("a."); }}, {}};
  NetTask task(spec);
  freeze(*task.net->a, true);
  const auto before = values_of(*task.net);
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
  const auto after = values_of(*task.net);
  EXPECT_TRUE(at::equal(after.at("a.weight"), before.at("a.weight")));
  EXPECT_FALSE(at::equal(after.at("b.weight"), before.at("b.weight")));
}

TEST(Freezing, OfEverythingIsRefused) {
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 8}));
  NetTask task;
  freeze(*task.net, true);
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  EXPECT_THROW(Trainer(session).fit(task, data), ConfigError);
}

}  // namespace
}  // namespace lockstep
