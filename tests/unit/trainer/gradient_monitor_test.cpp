#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/trainer/monitors.h>

#include "support/at_stage.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Reports = std::map<std::int64_t, std::map<std::string, double>>;  // by step

struct MonitoredRun {
  GradientMonitorOptions monitor{};
  std::int64_t batch_size = 0;  // 0: the whole share of a rank
  bool shards = false;
  Precision precision = Precision::fp64;
  std::int64_t report_every = 1;
  std::string run_dir{};
  std::vector<std::int64_t> max_steps{4};  // of each fit; the later ones resume
};

constexpr std::int64_t kGlobalBatch = 8;

TrainConfig config_of(const MonitoredRun& setup, int ranks) {
  TrainConfig config = in_memory({.max_epochs = 0});
  config.precision = setup.precision;
  config.global_batch_size = kGlobalBatch;
  config.batch_size = setup.batch_size > 0 ? setup.batch_size : kGlobalBatch / ranks;
  config.sampler.shuffle = false;
  config.dist.shard_optimizer = setup.shards && ranks > 1;
  config.report.every_steps = setup.report_every;
  config.optim.max_grad_norm = 0.1;  // measured before
  config.checkpoint.enabled = !setup.run_dir.empty();
  config.run_dir = setup.run_dir;
  return config;
}

/// The gradient metrics of the reports of each rank.
std::vector<Reports> train(const MonitoredRun& setup, int ranks = 1) {
  std::vector<Reports> found(static_cast<std::size_t>(ranks));
  for (const std::int64_t steps : setup.max_steps) {
    TrainConfig config = config_of(setup, ranks);
    config.max_steps = steps;
    const Plan plan = plan_for(ranks, config);
    thread_world(ranks, [&](World& world) {
      TinyTask task(adamw({.lr = 0.05}));
      DataLoader data(tiny_data(3 * kGlobalBatch), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.add(std::make_shared<GradientMonitor>(setup.monitor));
      trainer.add(at_stage(Stage::report, [&](const StageContext& context) {
        for (const auto& [name, value] : *context.metrics) {
          if (name.find('/') != std::string::npos) {
            found[static_cast<std::size_t>(world.rank())][context.state.step][name] = value;
          }
        }
      }));
      trainer.fit(task, data);
    });
  }
  return found;
}

/// Gradients of the first step, calculated here.
std::map<std::string, double> first_gradients(const std::vector<std::string>& parameters, const std::string& group) {
  TinyTask task;
  task.module().to(at::kDouble);
  const Batch batch = tiny_data(kGlobalBatch)->get(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, {});
  Batch in_double = batch;
  in_double.input = batch.input.to(at::kDouble);
  in_double.target = batch.target.to(at::kDouble);
  task.training_step(in_double).loss.backward();
  std::vector<at::Tensor> all;
  for (const std::string& name : parameters) {
    all.push_back(task.module().named_parameters()[name].grad().flatten());
  }
  const at::Tensor gradient = at::cat(all);
  return {{"grad_mean/" + group, gradient.mean().item<double>()},
          {"grad_std/" + group, gradient.std(/*unbiased=*/false).item<double>()},
          {"grad_min/" + group, gradient.min().item<double>()},
          {"grad_max/" + group, gradient.max().item<double>()},
          {"grad_norm/" + group, gradient.norm().item<double>()}};
}

void expect_near(const std::map<std::string, double>& found, const std::map<std::string, double>& wanted,
                 double tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_NEAR(found.at(name), value, tolerance) << name;
  }
}

TEST(GradientMonitor, MeasuresEachParameter) {
  const Reports reports = train({.monitor = {.every_steps = 1}}).front();
  ASSERT_EQ(reports.size(), 4U);
  auto wanted = first_gradients({"weight"}, "weight");
  wanted.merge(first_gradients({"bias"}, "bias"));
  expect_near(reports.at(1), wanted, 1e-12);
  EXPECT_GT(std::abs(reports.at(2).at("grad_norm/weight") - wanted.at("grad_norm/weight")), 1e-3) << "control";
}

TEST(GradientMonitor, MeasuresGroups) {
  const GradientMonitorOptions options{.every_steps = 1,
                                       .groups = {{"all", {}}, {"matrix", matching("w.*t")}, {"rest", named("b*")}}};
  const Reports reports = train({.monitor = options}).front();
  auto wanted = first_gradients({"weight", "bias"}, "all");
  wanted.merge(first_gradients({"weight"}, "matrix"));
  wanted.merge(first_gradients({"bias"}, "rest"));
  expect_near(reports.at(1), wanted, 1e-12);
}

TEST(GradientMonitor, IsEqualOnRanksWithAccumulationAndShards) {
  const GradientMonitorOptions options{.every_steps = 1};
  const Reports one = train({.monitor = options}).front();
  for (const int ranks : {2, 4}) {
    for (const bool shards : {false, true}) {
      for (const std::int64_t batch_size : {0, 1}) {
        const auto found = train({.monitor = options, .batch_size = batch_size, .shards = shards}, ranks);
        for (const Reports& rank : found) {
          EXPECT_EQ(rank, found.front());
          ASSERT_EQ(rank.size(), one.size());
          for (const auto& [step, metrics] : one) {
            expect_near(rank.at(step), metrics, 1e-10);
          }
        }
      }
    }
  }
}

TEST(GradientMonitor, ReportsTheLastMeasurement) {
  const Reports every = train({.monitor = {.every_steps = 1}, .max_steps = {6}}).front();
  const Reports seldom = train({.monitor = {.every_steps = 3}, .report_every = 2, .max_steps = {6}}).front();
  EXPECT_FALSE(seldom.contains(2));  // nothing was measured
  EXPECT_EQ(seldom.at(4), every.at(3));
  EXPECT_EQ(seldom.at(6), every.at(6));
  EXPECT_NE(every.at(3), every.at(4));  // control
}

TEST(GradientMonitor, AResumedRunReportsTheSame) {
  const TempDir dir;
  const MonitoredRun straight{.monitor = {.every_steps = 3}, .report_every = 5, .max_steps = {10}};
  MonitoredRun resumed = straight;
  resumed.run_dir = (dir.path() / "run").string();
  resumed.max_steps = {4, 10};
  const Reports wanted = train(straight).front();
  const Reports found = train(resumed).front();
  EXPECT_EQ(found.at(5), wanted.at(5));
  EXPECT_EQ(found.at(10), wanted.at(10));
}

TEST(GradientMonitor, WorksInEveryPrecision) {
  const GradientMonitorOptions options{.every_steps = 1};
  const Reports wanted = train({.monitor = options}).front();
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::bf16_mixed}) {
    const Reports found = train({.monitor = options, .precision = precision}).front();
    expect_near(found.at(1), wanted.at(1), precision == Precision::fp32 ? 1e-5 : 0.05);
  }
  // The first scales are too large: these steps are skipped.
  const Reports scaled = train({.monitor = options, .precision = Precision::fp16_mixed, .max_steps = {12}}).front();
  EXPECT_FALSE(std::isfinite(scaled.at(1).at("grad_norm/weight")));
  EXPECT_TRUE(std::isfinite(scaled.at(12).at("grad_norm/weight")));
}

/// Two parts, each with an optimizer; the loss of the second one gives the first one gradients too.
class TwoParts final : public Task {
 public:
  TwoParts() {
    root_.register_module("a", a_);
    root_.register_module("b", b_);
  }
  torch::nn::Module& module() override { return root_; }
  std::vector<OptimizerSpec> optimizers() override {
    std::vector<OptimizerSpec> specs(2, OptimizerSpec(sgd({.lr = 0})));
    specs[0].module = a_.get();
    specs[1].module = b_.get();
    return specs;
  }
  void optimize(Step& step) override {
    for (std::size_t i = 0; i < 2; ++i) {
      OptimizerStep& optimizer = step.optimizer(i);
      optimizer.zero_grad();
      for (const Batch& batch : step.batches()) {
        optimizer.backward(optimizer.forward(batch, [&](const Batch& b) {
          const at::Tensor out = a_(b.input);
          return i == 0 ? StepOutput(out.sum()) : StepOutput((out * b_(b.input)).sum() * 100);
        }));
      }
      optimizer.update();
      norms_.push_back(root_.named_parameters()[i == 0 ? "a.weight" : "b.weight"].grad().norm().item<double>());
    }
  }
  std::vector<double> norms_{};

 private:
  torch::nn::Module root_{};
  torch::nn::Linear a_{4, 1};
  torch::nn::Linear b_{4, 1};
};

TEST(GradientMonitor, MeasuresTheParametersOfEachOptimizer) {
  TwoParts task;
  Session session = Session::single(in_memory({.max_epochs = 0, .max_steps = 1, .batch_size = 8}));
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  Trainer trainer(session);
  trainer.add(std::make_shared<GradientMonitor>(GradientMonitorOptions{
      .every_steps = 1, .groups = {{"a", named("a.weight")}, {"b", named("b.weight")}, {"both", named("*.weight")}}}));
  std::map<std::string, double> found;
  trainer.add(at_stage(Stage::report, [&](const StageContext& context) {
    found.insert(context.metrics->begin(), context.metrics->end());
  }));
  trainer.fit(task, data);
  ASSERT_EQ(task.norms_.size(), 2U);
  EXPECT_NEAR(found.at("grad_norm/a"), task.norms_[0], 1e-4);
  EXPECT_NEAR(found.at("grad_norm/b"), task.norms_[1], 1e-2);
  EXPECT_NEAR(found.at("grad_norm/both"), std::hypot(task.norms_[0], task.norms_[1]), 1e-2);
}

TEST(GradientMonitor, TwoMonitorsHaveTwoNames) {
  Session session = Session::single(in_memory({.max_epochs = 0, .max_steps = 2, .batch_size = 8}));
  DataLoader data(tiny_data(16), session.plan.loader, session.world);
  TinyTask task;
  Trainer trainer(session);
  trainer.add(std::make_shared<GradientMonitor>(GradientMonitorOptions{.every_steps = 1}));
  const auto add = [&](const std::string& name) {
    trainer.add(std::make_shared<GradientMonitor>(
        GradientMonitorOptions{.every_steps = 2, .groups = {{"all", {}}}, .name = name}));
  };
  EXPECT_THAT(message_of([&] { add("gradient_monitor"); }), HasSubstr("two callbacks have the name"));
  add("of_all");
  const FitResult result = trainer.fit(task, data);
  EXPECT_THAT(result.metrics, testing::IsSupersetOf({testing::Key("grad_norm/all"), testing::Key("grad_norm/bias")}));
}

TEST(GradientMonitor, RefusesWrongOptions) {
  EXPECT_THAT(message_of([] {
                GradientMonitor({.every_steps = 0, .groups = {{"a", {}}, {"a", {}}, {"", {}}}});
              }),
              testing::AllOf(HasSubstr("every_steps is 0"), HasSubstr("two groups have the name 'a'"),
                             HasSubstr("a group has no name")));
  EXPECT_THAT(message_of([] {
                train({.monitor = {.groups = {{"x", named("x.*")}}}});
              }),
              HasSubstr("GradientMonitor: group 'x' selects no parameter"));
  EXPECT_THAT(message_of([] { matching("a("); }), HasSubstr("'a(' is no regular expression"));
}

}  // namespace
}  // namespace lockstep
