// Metrics of Task::metrics in reports, validations, tests and checkpoints.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/metrics/aggregation.h>
#include <lockstep/metrics/regression.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class MeteredTask final : public TinyTask {
 public:
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor predicted = net_(batch.input);
    r2_.update(predicted, batch.target);
    inputs_.update(batch.input.abs());
    batches_.update(at::ones({}));
    return at::mse_loss(predicted, batch.target);
  }
  StepOutput validation_step(const Batch& batch) override {
    const at::Tensor predicted = net_(batch.input);
    r2_.update(predicted, batch.target);
    only_validation_.update(predicted);
    return at::mse_loss(predicted, batch.target);
  }
  std::vector<metrics::NamedMetric> metrics() override {
    return {{"r2", r2_}, {"input", inputs_}, {"largest", only_validation_}, {"batches", batches_}};
  }

 private:
  metrics::R2Score r2_{};
  metrics::Quantile inputs_{{0.1, 0.9}};
  metrics::MaxMetric only_validation_{};
  metrics::SumMetric batches_{};
};

using Rows = std::vector<std::pair<std::int64_t, Metrics>>;

double value_of(const Metrics& metrics, const std::string& name) {
  const auto found = std::ranges::find(metrics, name, [](const auto& metric) { return metric.first; });
  return found == metrics.end() ? std::nan("") : found->second;
}

TrainConfig metered_config(std::int64_t steps) {
  TrainConfig config = in_memory({.max_steps = steps, .global_batch_size = 12});
  config.max_epochs = 0;
  config.report.every_steps = 4;
  config.validate.every_steps = 6;
  config.validate.every_epochs = 0;
  return config;
}

/// The rows of a run of the main rank.
Rows rows_of(int ranks, const TrainConfig& config) {
  Rows rows;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    MeteredTask task;
    DataLoader train(tiny_data(60), plan.loader, world);
    DataLoader validation(tiny_data(7), plan.eval_loader, world);
    Trainer trainer(plan, world);
    trainer.on(Stage::report | Stage::validation_end, [&](const StageContext& at) {
      if (world.is_main()) {
        rows.emplace_back(at.state.step, *at.metrics);
      }
    });
    trainer.fit(task, train, &validation);
  });
  return rows;
}

TEST(MetricsOfTasks, AreTheSameOnAnyNumberOfRanks) {
  const Rows one = rows_of(1, metered_config(12));
  ASSERT_EQ(one.size(), 5U);  // reports at 4, 8, 12; validations at 6, 12
  for (const int ranks : {2, 3, 4}) {
    const Rows several = rows_of(ranks, metered_config(12));
    ASSERT_EQ(several.size(), one.size());
    for (std::size_t row = 0; row < one.size(); ++row) {
      EXPECT_EQ(several[row].first, one[row].first);
      for (const char* name : {"r2", "input_p10", "input_p90", "val_r2", "val_largest"}) {
        const double expected = value_of(one[row].second, name);
        const double found = value_of(several[row].second, name);
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(found) : std::abs(found - expected) < 1e-5)
            << ranks << " ranks, row " << row << ", " << name << ": " << found << " and " << expected;
      }
      EXPECT_TRUE(std::isnan(value_of(several[row].second, "largest"))) << "is not updated in the training";
    }
  }
}

TEST(MetricsOfTasks, BeginAgainAfterAReportAndNotAfterAValidation) {
  const Rows rows = rows_of(1, metered_config(8));
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(value_of(rows[0].second, "batches"), 4);
  EXPECT_TRUE(std::isnan(value_of(rows[1].second, "val_batches")));
  EXPECT_EQ(value_of(rows[2].second, "batches"), 4) << "the validation at step 6 must not count, nor reset";
}

TEST(MetricsOfTasks, ContinueInAResumedRunOnAnyNumberOfRanks) {
  const auto config = [](const TempDir& dir, std::int64_t steps) {
    TrainConfig made = metered_config(steps);
    made.checkpoint.enabled = true;
    made.run_dir = (dir.path() / "run").string();
    return made;
  };
  const TempDir whole;
  const Rows straight = rows_of(2, config(whole, 8));
  for (const int ranks : {1, 2, 3}) {
    const TempDir dir;
    rows_of(2, config(dir, 6));  // ends in the middle of a window
    const Rows rest = rows_of(ranks, config(dir, 8));
    const Metrics& found = rest.back().second;
    const Metrics& expected = straight.back().second;
    EXPECT_EQ(rest.back().first, 8);
    for (const char* name : {"r2", "input_p10", "input_p90"}) {
      const double tolerance = ranks == 2 ? 0 : 1e-5;  // the same number of ranks: bit for bit
      EXPECT_LE(std::abs(value_of(found, name) - value_of(expected, name)), tolerance) << ranks << " ranks, " << name;
    }
  }
}

TEST(MetricsOfTasks, CanBeMonitored) {
  const TempDir dir;
  TrainConfig config = metered_config(12);
  config.checkpoint.enabled = true;
  config.checkpoint.monitor = "val_r2";
  config.checkpoint.mode = MonitorMode::max;
  config.run_dir = (dir.path() / "run").string();
  EXPECT_NO_THROW(rows_of(2, config));
}

TEST(MetricsOfTasks, AreReturnedByValidateAndTest) {
  for (const int ranks : {1, 3}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, metered_config(1));
      MeteredTask task;
      DataLoader data(tiny_data(7), plan.eval_loader, world);
      Trainer trainer(plan, world);
      const double first = value_of(trainer.validate(task, data), "r2");
      EXPECT_FALSE(std::isnan(first));
      EXPECT_NEAR(value_of(trainer.test(task, data), "r2"), first, 1e-9) << "each call begins again";
    });
  }
}

TEST(MetricsOfTasks, NeedNamesOfTheirOwn) {
  class Twice final : public TinyTask {
   public:
    std::vector<metrics::NamedMetric> metrics() override { return {{"mean", mean_}, {"mean", mean_}}; }

   private:
    metrics::MeanMetric mean_{};
  };
  Session session = Session::single(metered_config(1));
  Twice task;
  DataLoader data(tiny_data(8), session.plan.loader, session.world);
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }), HasSubstr("the name 'mean' for two metrics"));
}

TEST(MetricsOfTasks, WithTheNameOfTheLossAreRefused) {
  class Loss final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      mean_.update(batch.input);
      return TinyTask::training_step(batch);
    }
    std::vector<metrics::NamedMetric> metrics() override { return {{"loss", mean_}}; }

   private:
    metrics::MeanMetric mean_{};
  };
  Session session = Session::single(metered_config(4));
  Loss task;
  DataLoader data(tiny_data(60), session.plan.loader, session.world);
  EXPECT_THAT(message_of([&] { Trainer(session).fit(task, data); }), HasSubstr("loss"));
}

}  // namespace
}  // namespace lockstep
