// schedule_free_adamw trains at y and evaluates x. tests/parity compares the update with the published formula.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/callbacks.h>

#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

constexpr double kBeta1 = 0.8;

/// Notes the weight of every validation, test and prediction.
class Evaluated final : public TinyTask {
 public:
  Evaluated() : TinyTask(schedule_free_adamw({.lr = 0.05, .beta1 = kBeta1, .weight_decay = 0.1})) {}
  StepOutput validation_step(const Batch& batch) override {
    seen.push_back(weight());
    return TinyTask::validation_step(batch);
  }
  NamedTensors predict_step(const Batch& batch) override {
    seen.push_back(weight());
    return {{"y", net_(batch.input)}};
  }
  at::Tensor weight() const { return net_->weight.detach().clone(); }

  std::vector<at::Tensor> seen{};
};

at::Tensor average_of(const at::Tensor& y, const at::Tensor& z) { return (y - (1 - kBeta1) * z) / kBeta1; }

at::Tensor find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) {
      return tensor.clone();
    }
  }
  return {};
}

/// What is seen after the steps of two epochs, each with a validation.
struct TrainedRun {
  Evaluated task{};
  std::vector<at::Tensor> y{};       // after each step
  std::vector<at::Tensor> x{};       // after each step; sharded: on the rank that keeps z
  std::vector<at::Tensor> scoped{};  // in an evaluation scope after each step
  std::shared_ptr<WeightAverage> ema{};

  void train(World& world, TrainConfig config) {
    config.batch_size = 8 / world.size();
    const Plan plan = plan_for(world.size(), config);
    DataLoader data(tiny_data(32), plan.loader, world);
    DataLoader validation(tiny_data(8), plan.eval_loader, world);
    ema = std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.5, .in_validation = false});
    Trainer trainer(plan, world);
    trainer.add(ema);
    trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
      y.push_back(task.weight());
      const at::Tensor z = find(context.strategy->optimizer_state(), "weight.z");
      x.push_back(z.defined() ? average_of(y.back(), z) : at::Tensor());
      const auto evaluated = context.strategy->evaluation_scope();
      scoped.push_back(task.weight());
    }));
    trainer.fit(task, data, &validation);
    DataLoader test(tiny_data(8), plan.eval_loader, world);
    trainer.test(task, test);
    trainer.predict(task, test);
  }
};

TEST(ScheduleFree, TrainsOnePointAndEvaluatesAnother) {
  for (const int ranks : {1, 2}) {
    for (const bool shards : {false, true}) {
      thread_world(ranks, [&](World& world) {
        TrainConfig config = in_memory({.max_epochs = 2});
        config.dist.shard_optimizer = shards && ranks > 1;
        TrainedRun run;
        run.train(world, config);
        ASSERT_EQ(run.y.size(), 8U);
        at::Tensor mean;
        for (std::size_t i = 0; i < run.y.size(); ++i) {
          if (run.x[i].defined()) {
            EXPECT_TRUE(at::allclose(run.scoped[i], run.x[i], 0, 1e-6)) << i;
          }
          EXPECT_EQ(at::allclose(run.scoped[i], run.y[i], 0, 1e-6), i == 0) << i;  // control; the first x is z
          mean = i == 0 ? run.scoped[i] : mean * 0.5 + run.scoped[i] * 0.5;
        }
        ASSERT_EQ(run.task.seen.size(), 4U);  // two validations, test, prediction
        EXPECT_TRUE(at::equal(run.task.seen[0], run.scoped[3]));
        for (std::size_t i = 1; i < 4; ++i) {
          EXPECT_TRUE(at::equal(run.task.seen[i], run.scoped[7])) << i;
        }
        EXPECT_TRUE(at::equal(run.task.weight(), run.scoped[7])) << "after the fit";
        EXPECT_TRUE(at::allclose(find(run.ema->average(), "weight"), mean, 0, 1e-6));
      });
    }
  }
}

TEST(ScheduleFree, ValidationsChangeNothing) {
  World world = World::single(c10::kCPU);
  TrainedRun with;
  with.train(world, in_memory({.max_epochs = 2}));
  Evaluated without;
  Session session = Session::single(in_memory({.max_epochs = 2, .batch_size = 8}));
  DataLoader data(tiny_data(32), session.plan.loader, session.world);
  Trainer(session).fit(without, data);
  EXPECT_TRUE(at::equal(with.task.weight(), without.weight()));
}

TEST(ScheduleFree, TheModelOfACheckpointIsTheTrainedPoint) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({.max_epochs = 2});
  config.run_dir = (dir.path() / "run").string();
  config.checkpoint.enabled = true;
  TrainedRun run;
  run.train(world, config);
  const auto checkpoint = dir.path() / "run/checkpoints/step-0000000008";
  const at::Tensor y = find(load_tensors(checkpoint / "model.safetensors"), "weight");
  const at::Tensor z = find(load_tensors(checkpoint / "optimizer.safetensors"), "weight.z");
  EXPECT_TRUE(at::equal(y, run.y.back()));
  EXPECT_TRUE(at::equal(at::lerp(y, z, 1 - 1 / kBeta1), run.task.weight()));  // as docs/training.md says

  TrainedRun finished;  // nothing is left to do, and the model is evaluated as after the training
  finished.train(world, config);
  EXPECT_TRUE(finished.y.empty());
  EXPECT_TRUE(at::equal(finished.task.weight(), run.task.weight()));
}

TEST(ScheduleFree, FrozenParametersAreEvaluatedToo) {
  World world = World::single(c10::kCPU);
  Evaluated task;
  const Plan plan = plan_for(1, in_memory({.max_epochs = 2, .batch_size = 8}));
  DataLoader data(tiny_data(32), plan.loader, world);
  at::Tensor y;
  at::Tensor x;
  Trainer trainer(plan, world);
  trainer.add(at_stage(Stage::epoch_end, [&](const StageContext& context) {
    freeze(context.module, "weight");
    y = y.defined() ? y : task.weight();
    x = average_of(y, find(context.strategy->optimizer_state(), "weight.z"));
    EXPECT_TRUE(at::equal(task.weight(), y)) << "a frozen parameter stays";
  }));
  trainer.fit(task, data);
  EXPECT_TRUE(at::allclose(task.weight(), x, 0, 1e-6));
  EXPECT_FALSE(at::allclose(task.weight(), y, 0, 1e-6));
}

TEST(ScheduleFree, OtherOptimizersHaveOnePoint) {
  TinyTask task;
  Session session = Session::single(in_memory({.max_epochs = 1, .batch_size = 8}));
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  Trainer trainer(session);
  trainer.add(at_stage(Stage::step_end,
                       [](const StageContext& context) { EXPECT_EQ(context.strategy->evaluation_scope(), nullptr); }));
  trainer.fit(task, data);
}

TEST(ScheduleFree, RefusesWrongOptions) {
  EXPECT_THAT(
      message_of([] { schedule_free_adamw({.beta1 = 0, .r = -1}); }),
      testing::AllOf(testing::HasSubstr("schedule_free_adamw: beta1 is 0, expected more than 0 and less than 1"),
                     testing::HasSubstr("r is -1, expected 0 or more")));
}

}  // namespace
}  // namespace lockstep
