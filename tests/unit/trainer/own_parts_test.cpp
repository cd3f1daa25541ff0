// Parts that a program gives to its Trainer: a strategy, a hook for the reduction, a sink of metrics. And the exact
// resume of gradients that are rounded at random.
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/strategy.h>
#include <lockstep/report/metric_sink.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Passes every call on and counts the steps.
class CountingStrategy final : public Strategy {
 public:
  CountingStrategy(std::unique_ptr<Strategy> inner, std::vector<std::int64_t>& steps)
      : inner_(std::move(inner)), steps_(steps) {}
  void prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) override {
    inner_->prepare(module, optimizers);
  }
  void prepare_again() override { inner_->prepare_again(); }
  void begin_step(std::int64_t number, StepRequests mine) override {
    steps_.push_back(number);
    inner_->begin_step(number, mine);
  }
  StepRequests agreed() override { return inner_->agreed(); }
  std::size_t optimizer_count() const noexcept override { return inner_->optimizer_count(); }
  StrategyOptimizer& optimizer(std::size_t index) override { return inner_->optimizer(index); }
  void end_forward(bool ran) override { inner_->end_forward(ran); }
  NamedTensors optimizer_state() const override { return inner_->optimizer_state(); }
  void load_optimizer_state(const NamedTensors& state) override { inner_->load_optimizer_state(state); }
  std::shared_ptr<void> evaluation_scope() override { return inner_->evaluation_scope(); }
  void keep_evaluation_values() override { inner_->keep_evaluation_values(); }

 private:
  std::unique_ptr<Strategy> inner_;
  std::vector<std::int64_t>& steps_;
};

TEST(OwnStrategy, IsUsedInEachFit) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, in_memory({.max_steps = 3, .batch_size = 4}));
      TinyTask expected;
      DataLoader same_data(tiny_data(32), plan.loader, world);
      Trainer(plan, world).fit(expected, same_data);

      TinyTask task;
      DataLoader data(tiny_data(32), plan.loader, world);
      std::vector<std::int64_t> steps;
      Trainer trainer(plan, world);
      trainer.use_strategy(
          [&](const Plan& p, World& w) { return std::make_unique<CountingStrategy>(make_strategy(p, w), steps); });
      trainer.fit(task, data);
      ASSERT_THAT(steps, ElementsAre(0, 1, 2));
      ASSERT_TRUE(are_equal(weights_of(task), weights_of(expected)));
    });
  }
}

TEST(OwnStrategy, HasToExist) {
  Session session = Session::single(in_memory({.max_steps = 1}));
  Trainer trainer(session);
  EXPECT_THAT(message_of([&] { trainer.use_strategy({}); }), HasSubstr("use_strategy: the function is missing"));
  trainer.use_strategy([](const Plan&, World&) { return std::unique_ptr<Strategy>(); });
  TinyTask task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_THAT(message_of([&] { trainer.fit(task, data); }), HasSubstr("returned no strategy"));
}

TEST(OwnHook, TrainsLikeTheReductionThatItReplaces) {
  thread_world(2, [&](World& world) {
    const Plan plan = plan_for(2, in_memory({.max_epochs = 2, .global_batch_size = 6}));
    TinyTask expected;
    DataLoader same_data(tiny_data(19), plan.loader, world);  // the last step has one sample, so rank 1 is idle
    Trainer(plan, world).fit(expected, same_data);

    TinyTask task;
    DataLoader data(tiny_data(19), plan.loader, world);
    const auto hook = [](const GradientBucket& bucket, World& w) {
      bucket.gradients.mul_(1.0 / w.size());
      w.all_reduce(bucket.gradients, Reduce::sum);
    };
    Trainer trainer(plan, world);
    trainer.use_strategy([&](const Plan& p, World& w) { return make_strategy(p, w, hook); });
    trainer.fit(task, data);
    ASSERT_TRUE(are_equal(weights_of(task), weights_of(expected)));
  });
}

struct Row {
  std::int64_t step = 0;
  std::map<std::string, double> values{};
};

class CollectingSink final : public MetricSink {
 public:
  CollectingSink(std::vector<Row>& rows, int fails_at) : rows_(rows), fails_at_(fails_at) {}
  void write(std::int64_t step, std::span<const MetricValue> metrics) override {
    if (static_cast<int>(rows_.size()) == fails_at_) {
      throw IoError("the database is full");
    }
    Row& row = rows_.emplace_back(Row{step});
    for (const MetricValue& metric : metrics) {
      row.values.emplace(metric.name, metric.value);
    }
  }

 private:
  std::vector<Row>& rows_;
  const int fails_at_;
};

TEST(OwnSink, GetsTheRowsOnTheMainRank) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.max_steps = 6, .batch_size = 4});
      config.report.every_steps = 2;
      const Plan plan = plan_for(ranks, config);
      TinyTask task;
      DataLoader data(tiny_data(64), plan.loader, world);
      std::vector<Row> rows;
      std::vector<Row> until_full;
      std::vector<std::int64_t> made;
      Trainer trainer(plan, world);
      trainer
          .add_sink([&](std::int64_t resume_step) {
            made.push_back(resume_step);
            return std::make_unique<CollectingSink>(rows, -1);
          })
          .add_sink([&](std::int64_t) { return std::make_unique<CollectingSink>(until_full, 1); })
          .add_sink([](std::int64_t) { return std::unique_ptr<MetricSink>(); });
      trainer.fit(task, data);
      ASSERT_EQ(made.size(), world.is_main() ? 1U : 0U);
      ASSERT_EQ(rows.size(), world.is_main() ? 3U : 0U);
      ASSERT_EQ(until_full.size(), world.is_main() ? 1U : 0U) << "it gets no more rows after its failure";
      if (world.is_main()) {
        ASSERT_EQ(made.front(), -1);
        ASSERT_EQ(rows.back().step, 6);
        ASSERT_GT(rows.front().values.at("loss"), rows.back().values.at("loss"));
        ASSERT_EQ(rows.front().values.at("lr"), 0.1);
      }
    });
  }
}

TEST(OwnSink, KeepsWhatACallbackMakesInItsTest) {
  class Texts final : public MetricSink {
   public:
    void write(std::int64_t, std::span<const MetricValue>) override {}
    void write_text(std::int64_t step, std::string_view name, std::string_view text) override {
      found.push_back(fmt::format("{} {} {}", step, name, text));
    }
    std::vector<std::string> found{};
  } texts;
  Session session = Session::single(in_memory({.max_steps = 2, .batch_size = 4}));
  TinyTask task;
  DataLoader data(tiny_data(64), session.plan.loader, session.world);
  Trainer trainer(session);
  trainer.on(Stage::step_end, [&](const StageContext& at) {
    EXPECT_EQ(at.media, nullptr) << "nothing keeps texts in this run";
    at.log_text("note", "is dropped");
    StageContext context = at;
    context.media = &texts;
    context.log_text("note", "is kept");
  });
  trainer.fit(task, data);
  EXPECT_THAT(texts.found, ElementsAre("1 note is kept", "2 note is kept"));
}

TEST(OwnSink, ThatFailsOtherwiseEndsTheRun) {
  class Broken final : public MetricSink {
    void write(std::int64_t, std::span<const MetricValue>) override { throw std::logic_error("not a report"); }
  };
  TrainConfig config = in_memory({.max_steps = 2, .batch_size = 4});
  config.report.every_steps = 1;
  Session session = Session::single(config);
  TinyTask task;
  DataLoader data(tiny_data(64), session.plan.loader, session.world);
  Trainer trainer(session);
  EXPECT_THAT(message_of([&] { trainer.add_sink({}); }), HasSubstr("add_sink: the function is missing"));
  trainer.add_sink([](std::int64_t) { return std::make_unique<Broken>(); });
  EXPECT_THAT(message_of<std::exception>([&] { trainer.fit(task, data); }), HasSubstr("not a report"));
}

// Neither the steps before nor the start of a process decide how gradients are rounded.
TEST(StochasticCompression, ContinuesExactlyAfterAResume) {
  struct Case {
    GradCompression compression;
    Precision precision;
    bool sharded;
  };
  for (const Case& c : {Case{GradCompression::bf16_stochastic, Precision::fp32, false},
                        Case{GradCompression::fp32_stochastic, Precision::bf16, false},
                        Case{GradCompression::fp32_stochastic, Precision::bf16, true}}) {
    const TempDir dir;
    const auto train = [&](const std::string& run, std::int64_t steps, std::uint64_t seed = 42) {
      TrainConfig config{.compute_setup = ComputeSetup::cpu,
                         .precision = c.precision,
                         .seed = seed,
                         .max_epochs = 0,
                         .max_steps = steps,
                         .global_batch_size = 6,
                         .run_dir = (dir.path() / run).string()};
      config.sampler.shuffle = false;
      config.dist.compression = c.compression;
      config.dist.shard_optimizer = c.sharded;
      config.dist.check_replicas = true;
      config.report.every_steps = 2;
      const Plan plan = plan_for(2, config);
      std::vector<at::Tensor> weights;
      thread_world(2, [&](World& world) {
        TinyTask task(sgd({.lr = 0.05, .momentum = 0.9}));
        DataLoader data(tiny_data(19), plan.loader, world);
        Trainer(plan, world).fit(task, data);
        if (world.is_main()) {
          weights = weights_of(task);
        }
      });
      return weights;
    };
    const auto straight = train("straight", 11);
    train("resumed", 5);
    EXPECT_TRUE(are_equal(train("resumed", 11), straight));
    EXPECT_FALSE(are_equal(train("other seed", 11, 45), straight)) << "control: nothing was random";
  }
}

}  // namespace
}  // namespace lockstep
