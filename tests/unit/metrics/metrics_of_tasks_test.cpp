// Metrics of Task::metrics in reports, validations, tests and checkpoints.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/metrics/aggregation.h>
#include <lockstep/metrics/regression.h>
#include <lockstep/trainer/callbacks.h>

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
    errors_.update(at::zeros({}));
    return at::mse_loss(predicted, batch.target);
  }
  StepOutput validation_step(const Batch& batch) override {
    const at::Tensor predicted = net_(batch.input);
    r2_.update(predicted, batch.target);
    only_validation_.update(predicted);
    return at::mse_loss(predicted, batch.target);
  }
  std::vector<metrics::NamedMetric> metrics() override {
    return {{"r2", r2_}, {"input", inputs_}, {"largest", only_validation_}, {"batches", batches_}, {"errors", errors_}};
  }

 private:
  metrics::R2Score r2_{};
  metrics::Quantile inputs_{{0.1, 0.9}};
  metrics::MaxMetric only_validation_{};
  metrics::SumMetric batches_{};
  metrics::SumMetric errors_{};
};

/// Only a validation updates its metric, which has more values than a report takes.
class LargeMetricTask final : public TinyTask {
 public:
  std::vector<metrics::NamedMetric> metrics() override { return {{"quantiles", quantiles_}}; }

 private:
  static std::vector<double> thousandths() {
    std::vector<double> quantiles;
    for (int i = 0; i <= 1000; ++i) {
      quantiles.push_back(i / 1000.0);
    }
    return quantiles;
  }

  metrics::Quantile quantiles_{thousandths()};
};

TEST(MetricsOfTasks, ThatAreTooLargeForAReportAreRefusedBeforeTheFirstStep) {
  const TrainConfig config = in_memory({.max_steps = 4, .global_batch_size = 12});
  World world = World::single(c10::Device(c10::kCPU));
  const Plan plan = plan_for(1, config);
  LargeMetricTask task;
  DataLoader data(tiny_data(60), plan.loader, world);
  Trainer trainer(plan, world);
  std::int64_t steps = 0;
  trainer.on(Stage::step_end, [&](const StageContext&) { ++steps; });
  EXPECT_THAT(message_of<ConfigError>([&] { trainer.fit(task, data); }), HasSubstr("'quantiles' has 1001 values"));
  EXPECT_EQ(steps, 0);
}

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

TEST(MetricsOfTasks, ReportAnExtremeThatIsInfinite) {
  class Infinite final : public TinyTask {
   public:
    StepOutput training_step(const Batch& batch) override {
      smallest_.update(at::full({}, HUGE_VAL));
      largest_.update(at::full({}, -HUGE_VAL));
      return TinyTask::training_step(batch);
    }
    std::vector<metrics::NamedMetric> metrics() override { return {{"smallest", smallest_}, {"largest", largest_}}; }

   private:
    metrics::MinMetric smallest_{};
    metrics::MaxMetric largest_{};
  } task;
  World world = World::single(c10::Device(c10::kCPU));
  const Plan plan = plan_for(1, metered_config(4));
  DataLoader data(tiny_data(60), plan.loader, world);
  const FitResult result = Trainer(plan, world).fit(task, data);
  EXPECT_EQ(value_of(result.metrics, "smallest"), HUGE_VAL);
  EXPECT_EQ(value_of(result.metrics, "largest"), -HUGE_VAL);
}

TEST(MetricsOfTasks, ReportASumOfZero) {
  EXPECT_EQ(value_of(rows_of(2, metered_config(4)).front().second, "errors"), 0);
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

/// The rows of the epochs, 5 steps each, while reports come every 4 steps.
Rows epochs_of(int ranks, TrainConfig config) {
  config.report.epoch_means = true;
  Rows rows;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    MeteredTask task;
    DataLoader train(tiny_data(60), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.on(Stage::epoch_report, [&](const StageContext& at) {
      if (world.is_main()) {
        rows.emplace_back(at.state.step, *at.metrics);
      }
    });
    trainer.fit(task, train);
  });
  return rows;
}

constexpr const char* kMeasured[] = {"loss", "r2", "input_p10", "input_p90"};

TEST(EpochMeans, AreThoseOfReportsThatEndWithTheEpoch) {
  TrainConfig config = metered_config(17);
  config.validate.every_steps = 0;
  const Rows windows = rows_of(1, config);
  config.report.every_steps = 5;
  const Rows expected = rows_of(1, config);  // reports at 5, 10, 15 and 17
  config.report.every_steps = 4;
  for (const int ranks : {1, 2, 3, 4}) {
    const Rows epochs = epochs_of(ranks, config);
    ASSERT_EQ(epochs.size(), 3U) << "an epoch that did not end has no row";
    for (std::size_t epoch = 0; epoch < epochs.size(); ++epoch) {
      EXPECT_EQ(epochs[epoch].first, 5 * static_cast<std::int64_t>(epoch + 1));
      for (const char* name : kMeasured) {
        EXPECT_NEAR(value_of(epochs[epoch].second, fmt::format("epoch_{}", name)),
                    value_of(expected[epoch].second, name), 1e-5)
            << ranks << " ranks, epoch " << epoch << ", " << name;
      }
      EXPECT_EQ(value_of(epochs[epoch].second, "epoch_batches"), 5 * ranks);
    }
  }
  config.report.epoch_means = true;
  const Rows same = rows_of(1, config);
  ASSERT_EQ(same.size(), windows.size());
  for (std::size_t row = 0; row < same.size(); ++row) {
    for (const char* name : kMeasured) {
      EXPECT_NEAR(value_of(same[row].second, name), value_of(windows[row].second, name), 1e-12) << row << " " << name;
    }
  }
}

TEST(EpochMeans, ContinueInARunThatIsResumedAtAnyStep) {
  const auto config = [](const TempDir& dir, std::int64_t steps) {
    TrainConfig made = metered_config(steps);
    made.validate.every_steps = 0;
    made.checkpoint.enabled = true;
    made.run_dir = (dir.path() / "run").string();
    return made;
  };
  const TempDir whole;
  const Rows straight = epochs_of(2, config(whole, 10));
  ASSERT_EQ(straight.size(), 2U);
  for (std::int64_t stop = 1; stop < 10; ++stop) {
    for (const int ranks : {2, stop % 2 == 0 ? 1 : 4}) {
      const TempDir dir;
      Rows parts = epochs_of(2, config(dir, stop));
      for (auto& row : epochs_of(ranks, config(dir, 10))) {
        parts.push_back(std::move(row));
      }
      ASSERT_EQ(parts.size(), 2U) << "stopped after step " << stop;
      for (std::size_t epoch = 0; epoch < 2; ++epoch) {
        EXPECT_EQ(parts[epoch].first, straight[epoch].first);
        for (const char* name : kMeasured) {
          const std::string of_epoch = fmt::format("epoch_{}", name);
          const double tolerance = ranks == 2 ? 0 : 1e-5;  // the same number of ranks: bit for bit
          EXPECT_LE(std::abs(value_of(parts[epoch].second, of_epoch) - value_of(straight[epoch].second, of_epoch)),
                    tolerance)
              << "stopped after step " << stop << ", then " << ranks << " ranks, " << of_epoch;
        }
      }
    }
  }
}

TEST(EpochMeans, DecideForCheckpointsAndCallbacks) {
  const TempDir dir;
  TrainConfig config = metered_config(30);
  config.checkpoint.enabled = true;
  config.checkpoint.every_steps = 2;
  config.checkpoint.every_epochs = 1;
  config.checkpoint.monitor = "epoch_loss";
  config.run_dir = (dir.path() / "run").string();
  config.report.epoch_means = true;
  thread_world(2, [&](World& world) {
    const Plan plan = plan_for(2, config);
    MeteredTask task;
    DataLoader train(tiny_data(60), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.add(std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.metric = "epoch_loss", .stopping_threshold = 1e9}));  // reached after the first epoch
    const FitResult result = trainer.fit(task, train);
    EXPECT_EQ(result.state.step, 5);
    ASSERT_TRUE(result.best);
    EXPECT_EQ(result.best->step, 5);
    EXPECT_EQ(result.best->value, value_of(result.metrics, "epoch_loss"));
  });
  config.report.epoch_means = false;
  config.run_dir = (dir.path() / "without").string();
  EXPECT_THAT(message_of([&] { rows_of(1, config); }),
              HasSubstr("--checkpoint.monitor epoch_loss: found no such metric"));
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

TEST(MetricsOfTasks, ThatOnlyOneRankHasAreNamed) {
  class OnMainRank final : public TinyTask {
   public:
    explicit OnMainRank(bool is_main) : is_main_(is_main) {}
    std::vector<metrics::NamedMetric> metrics() override {
      return is_main_ ? std::vector<metrics::NamedMetric>{{"sum", sum_}} : std::vector<metrics::NamedMetric>{};
    }

   private:
    bool is_main_;
    metrics::SumMetric sum_{};
  };
  for (const bool in_fit : {true, false}) {
    try {
      thread_world(2, [&](World& world) {
        const Plan plan = plan_for(2, metered_config(4));
        OnMainRank task(world.is_main());
        DataLoader data(tiny_data(60), in_fit ? plan.loader : plan.eval_loader, world);
        Trainer trainer(plan, world);
        if (in_fit) {
          trainer.fit(task, data);
        } else {
          trainer.validate(task, data);
        }
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has the metric state nothing, rank 0 has sum.sum"));
      EXPECT_EQ(error.exit_code(), ExitCode::disagree);
    }
  }
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
  const char* message =
      "two metrics of an evaluation are called 'loss' | give those of Task::metrics other names than loss and those of "
      "the step";
  EXPECT_EQ(message_of([&] { Trainer(session).validate(task, data); }), message);
  EXPECT_EQ(message_of([&] { Trainer(session).test(task, data); }), message);
}

}  // namespace
}  // namespace lockstep
