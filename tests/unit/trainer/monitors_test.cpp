// Callbacks that measure, and the learning-rate range test.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/trainer/lr_range.h>
#include <lockstep/trainer/monitors.h>

#include "base/json.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

using Rows = std::vector<std::map<std::string, double>>;

TrainConfig monitored(std::int64_t steps) {
  TrainConfig config = in_memory({.max_steps = steps, .global_batch_size = 12});
  config.max_epochs = 0;
  config.report.every_steps = 4;
  return config;
}

/// The reports of rank 0.
Rows reports(int ranks, const TrainConfig& config, const std::function<void(Trainer&)>& add,
             const std::function<std::unique_ptr<Task>()>& make = std::make_unique<TinyTask>) {
  Rows rows;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, config);
    const auto task = make();
    DataLoader data(tiny_data(60), plan.loader, world);
    Trainer trainer(plan, world);
    add(trainer);
    trainer.on(Stage::report, [&](const StageContext& at) {
      if (world.is_main()) {
        rows.emplace_back(at.metrics->begin(), at.metrics->end());
      }
    });
    trainer.fit(*task, data);
  });
  return rows;
}

TEST(LearningRateMonitor, ReportsEveryGroup) {
  TrainConfig config = monitored(8);
  config.optim.schedule = "linear:for=16";
  const Rows rows = reports(2, config, [](Trainer& trainer) { trainer.add(std::make_shared<LearningRateMonitor>()); });
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("lr_0_0"), rows[0].at("lr"));
  EXPECT_LT(rows[1].at("lr_0_0"), rows[0].at("lr_0_0"));
  EXPECT_FALSE(rows[0].contains("momentum_0_0")) << "only on request";
}

/// Two layers, each with a group or with an optimizer of its own.
class TwoRates final : public Task {
 public:
  explicit TwoRates(bool has_two_optimizers) : has_two_optimizers_(has_two_optimizers) {
    net_->push_back("a", a_);
    net_->push_back("b", b_);
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec first = sgd({.lr = 0.5});
    if (!has_two_optimizers_) {
      first.groups = {
          {.select = [](std::string_view name, const at::Tensor&) { return name.starts_with("b"); }, .lr_scale = 0.25},
          {}};
      return {first};
    }
    OptimizerSpec second = sgd({.lr = 0.25});
    first.module = a_.get();
    second.module = b_.get();
    return {first, second};
  }
  StepOutput training_step(const Batch& batch) override {
    return at::mse_loss(a_(batch.input) + b_(batch.input), batch.target);
  }
  void optimize(Step& step) override {
    if (!has_two_optimizers_) {
      Task::optimize(step);
      return;
    }
    update_with(0, step, [&](const Batch& b) { return at::mse_loss(a_(b.input), b.target); });
    update_with(1, step, [&](const Batch& b) { return at::mse_loss(b_(b.input), b.target); });
  }

 private:
  bool has_two_optimizers_;
  torch::nn::Linear a_{4, 1};
  torch::nn::Linear b_{4, 1};
  torch::nn::Sequential net_{};
};

TEST(LearningRateMonitor, NumbersOptimizersAndTheirGroups) {
  for (const bool has_two_optimizers : {false, true}) {
    const Rows rows = reports(
        2, monitored(4), [](Trainer& trainer) { trainer.add(std::make_shared<LearningRateMonitor>()); },
        [&] { return std::make_unique<TwoRates>(has_two_optimizers); });
    ASSERT_EQ(rows.size(), 1U);
    std::map<std::string, double> rates;
    std::ranges::copy_if(rows[0], std::inserter(rates, rates.end()),
                         [](const auto& metric) { return metric.first.starts_with("lr_"); });
    using Rates = std::map<std::string, double>;
    EXPECT_EQ(rates, has_two_optimizers ? (Rates{{"lr_0_0", 0.5}, {"lr_1_0", 0.25}})
                                        : (Rates{{"lr_0_0", 0.125}, {"lr_0_1", 0.5}}));
  }
}

TEST(LearningRateMonitor, ReportsMomentumAndWeightDecayOnRequest) {
  const Rows rows = reports(2, monitored(4), [](Trainer& trainer) {
    trainer.add(
        std::make_shared<LearningRateMonitor>(LearningRateMonitorOptions{.momentum = true, .weight_decay = true}));
    trainer.on(Stage::fit_start, [](const StageContext& at) {
      auto& options = at.strategy->optimizer().torch_optimizer().param_groups().front().options();
      auto& sgd = dynamic_cast<torch::optim::SGDOptions&>(options);
      sgd.momentum(0.75);
      sgd.weight_decay(0.125);
    });
  });
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0].at("momentum_0_0"), 0.75);
  EXPECT_EQ(rows[0].at("weight_decay_0_0"), 0.125);
}

TEST(SmoothedMetric, IsAnAverageThatContinuesInAResumedRun) {
  const auto add = [](Trainer& trainer) { trainer.add(std::make_shared<SmoothedMetric>("loss", 0.5)); };
  const Rows rows = reports(1, monitored(12), add);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_DOUBLE_EQ(rows[0].at("loss_smoothed"), rows[0].at("loss"));
  EXPECT_NEAR(rows[1].at("loss_smoothed"), (rows[0].at("loss") + 2 * rows[1].at("loss")) / 3, 1e-12);

  const TempDir dir;
  TrainConfig config = monitored(8);
  config.checkpoint.enabled = true;
  config.run_dir = (dir.path() / "run").string();
  reports(1, config, add);
  config.max_steps = 12;
  EXPECT_DOUBLE_EQ(reports(1, config, add).back().at("loss_smoothed"), rows[2].at("loss_smoothed"));
  EXPECT_THAT(message_of([] { SmoothedMetric("loss", 1); }), HasSubstr("decay is 1"));
}

/// Time makes a report after each step, and nothing else does.
TrainConfig reported_by_time(std::int64_t steps) {
  TrainConfig config = monitored(steps);
  config.report.every_steps = 0;
  config.report.every_s = 1e-9;
  return config;
}

TEST(SmoothedMetric, IsAnAverageOverReportsByTime) {
  const Rows rows = reports(1, reported_by_time(3),
                            [](Trainer& trainer) { trainer.add(std::make_shared<SmoothedMetric>("loss", 0.5)); });
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_NEAR(rows[2].at("loss_smoothed"), (rows[0].at("loss") + 2 * rows[1].at("loss") + 4 * rows[2].at("loss")) / 7,
              1e-12);
}

TEST(SmoothedMetric, OfTheSpeedIsTheSameOnAllRanks) {
  std::vector<std::vector<Metrics>> of_ranks(2);
  thread_world(2, [&](World& world) {
    const Plan plan = plan_for(2, monitored(12));
    TinyTask task;
    DataLoader data(tiny_data(60), plan.loader, world);
    Trainer trainer(plan, world);
    trainer.add(std::make_shared<SmoothedMetric>("samples_per_s", 0.5));
    trainer.on(Stage::report, [&](const StageContext& at) {
      of_ranks[static_cast<std::size_t>(world.rank())].push_back(*at.metrics);
    });
    trainer.fit(task, data);
  });
  ASSERT_EQ(of_ranks[0].size(), 3U);
  EXPECT_EQ(of_ranks[0], of_ranks[1]);
  EXPECT_THAT(of_ranks[0].back(), testing::Contains(testing::Key("samples_per_s_smoothed")));
}

TEST(SmoothedMetric, LeavesOutAValueThatIsNotFinite) {
  const Rows rows = reports(1, monitored(12), [](Trainer& trainer) {
    trainer.on(Stage::report, [](const StageContext& at) { at.log("extra", at.state.step == 4 ? std::nan("") : 3); });
    trainer.add(std::make_shared<SmoothedMetric>("extra", 0.5));
  });
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_DOUBLE_EQ(rows.back().at("extra_smoothed"), 3);
}

TEST(ThroughputMonitor, ComputesUtilizationFromTheSamples) {
  const auto add = [](Trainer& trainer) {
    trainer.add(std::make_shared<ThroughputMonitor>(
        ThroughputMonitorOptions{.flops_per_sample = 1e6, .peak_flops_per_second = 1e12}));
  };
  const Rows rows = reports(2, monitored(8), add);
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& row : rows) {
    // 12 samples per step, half of them on each rank
    const double flops = 6 * 1e6 / (row.at("step_ms") / 1000);
    EXPECT_NEAR(row.at("tflops_per_s"), flops / 1e12, 1e-9 * flops / 1e12);
    EXPECT_NEAR(row.at("mfu"), row.at("tflops_per_s"), 1e-9 * row.at("tflops_per_s"));
  }
}

/// Has padding: as many tokens as the number of each sample says, none in the first.
class PaddedTask final : public TinyTask {
 public:
  StepOutput training_step(const Batch& batch) override {
    StepOutput output = TinyTask::training_step(batch);
    output.count = at::tensor(batch.ids).sum();
    return output;
  }
};

TEST(ThroughputMonitor, CountsUnitsOfAllRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto rows = [&](const ThroughputMonitorOptions& options,
                          const std::function<std::unique_ptr<Task>()>& make = std::make_unique<TinyTask>) {
      TrainConfig config = monitored(12);
      config.global_batch_size = 3;  // with 4 ranks one has no samples
      config.sampler.shuffle = false;
      return reports(
          ranks, config, [&](Trainer& trainer) { trainer.add(std::make_shared<ThroughputMonitor>(options)); }, make);
    };
    const auto in_window = [](const std::map<std::string, double>& row) {
      return row.at("tokens_per_s") * 4 * row.at("step_ms") / 1000;
    };
    const Rows given = rows({.unit = "tokens", .units_per_sample = 64});
    ASSERT_EQ(given.size(), 3U);
    for (const auto& row : given) {
      EXPECT_NEAR(in_window(row), 4 * 3 * 64, 1e-6) << ranks;
    }
    const Rows counted = rows({.unit = "tokens"}, std::make_unique<PaddedTask>);
    ASSERT_EQ(counted.size(), 3U);
    EXPECT_NEAR(in_window(counted[0]), 63 * 4 / 3, 1e-6)
        << ranks << ": samples 3 to 11, without those of the first step";
    EXPECT_NEAR(in_window(counted[1]), 210, 1e-6) << ranks << ": samples 12 to 23";
    EXPECT_NEAR(in_window(counted[2]), 354, 1e-6) << ranks << ": samples 24 to 35";
    const Rows none = rows({});
    ASSERT_EQ(none.size(), 3U);
    EXPECT_FALSE(none[0].contains("tokens_per_s"));
  }
}

// Both leave out validations and the first step.
TEST(ThroughputMonitor, HasTheTimeOfTheSamplesPerSecond) {
  for (const int ranks : {1, 2}) {
    Rows rows;
    thread_world(ranks, [&](World& world) {
      TrainConfig config = monitored(12);
      config.validate.every_steps = 2;
      const Plan plan = plan_for(ranks, config);
      TinyTask task;
      DataLoader data(tiny_data(60), plan.loader, world);
      DataLoader validation(tiny_data(60), plan.eval_loader, world);
      Trainer trainer(plan, world);
      trainer.add(std::make_shared<ThroughputMonitor>());
      trainer.on(Stage::report, [&](const StageContext& at) {
        if (world.is_main()) {
          rows.emplace_back(at.metrics->begin(), at.metrics->end());
        }
      });
      trainer.fit(task, data, &validation);
    });
    ASSERT_EQ(rows.size(), 3U);
    for (const auto& row : rows) {
      EXPECT_NEAR(row.at("step_ms") / 1000 * row.at("samples_per_s"), 12, 1e-6) << ranks;
    }
  }
}

TEST(ThroughputMonitor, RefusesUnitsThatItCannotCount) {
  EXPECT_EQ(message_of([] { ThroughputMonitor({.units_per_sample = 64}); }),
            "ThroughputMonitor: units_per_sample is set, and the unit has no name | set unit, for example to tokens");
  EXPECT_EQ(message_of([] { ThroughputMonitor({.unit = "tokens", .units_per_sample = -1}); }),
            "ThroughputMonitor: units_per_sample is -1, expected 0 or more");
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, monitored(8));
      TinyTask task;
      DataLoader data(tiny_data(60), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.add(std::make_shared<ThroughputMonitor>(ThroughputMonitorOptions{.unit = "tokens"}));
      EXPECT_EQ(message_of([&] { trainer.fit(task, data); }),
                "ThroughputMonitor: no step has a count of its tokens | set StepOutput::count, or "
                "ThroughputMonitorOptions::units_per_sample");
    });
  }
}

/// How often the name is in the event file of the run.
int count_in_events(const std::filesystem::path& run, std::string_view name) {
  std::string bytes;
  for (const std::string& file : real_file_system().list(run)) {
    bytes += file.starts_with("events.out") ? read_file(real_file_system(), run / file) : "";
  }
  int found = 0;
  for (auto at = bytes.find(name); at != std::string::npos; at = bytes.find(name, at + 1)) {
    ++found;
  }
  return found;
}

/// What tests/parity/tensorboard_parity.py reads, as the names that are in the file.
TEST(HistogramMonitor, WritesParametersAndGradientsAndChangesNothing) {
  const TempDir dir;
  const auto weights = [&](const char* name, bool monitored_run) {
    TrainConfig config = monitored(12);
    config.run_dir = (dir.path() / name).string();
    config.report.tensorboard = monitored_run;
    at::Tensor found;
    thread_world(2, [&](World& world) {
      const Plan plan = plan_for(2, config);
      TinyTask task;
      DataLoader data(tiny_data(60), plan.loader, world);
      Trainer trainer(plan, world);
      if (monitored_run) {
        trainer.add(std::make_shared<HistogramMonitor>(HistogramMonitorOptions{.every_reports = 2}));
        trainer.on(Stage::report, [](const StageContext& at) {
          at.log_text("note", "a text");
          at.log_image("picture", at::rand({3, 4, 5}));
          EXPECT_THROW(at.world.is_main() ? at.log_image("no", at::rand({2, 4, 5})) : throw Error("as on rank 0"),
                       Error);
        });
      }
      trainer.fit(task, data);
      if (world.is_main()) {
        found = task.module().parameters()[0].detach().clone();
      }
    });
    return found;
  };
  EXPECT_TRUE(at::equal(weights("with", true), weights("without", false)));
  const auto count = [&](std::string_view name) { return count_in_events(dir.path() / "with", name); };
  EXPECT_EQ(count("parameters/weight"), 1) << "every second of three reports";
  EXPECT_EQ(count("gradients/bias"), 1);
  EXPECT_EQ(count("a text"), 3);
  EXPECT_EQ(count("picture"), 3);
  EXPECT_EQ(count("session_end_info"), 1);
  EXPECT_THROW(HistogramMonitor({.every_reports = 0}), ConfigError);
}

TEST(HistogramMonitor, CountsReportsByTime) {
  const TempDir dir;
  TrainConfig config = reported_by_time(12);
  config.run_dir = (dir.path() / "run").string();
  config.report.tensorboard = true;
  reports(1, config, [](Trainer& trainer) {
    trainer.add(std::make_shared<HistogramMonitor>(HistogramMonitorOptions{.every_reports = 5}));
  });
  EXPECT_EQ(count_in_events(dir.path() / "run", "parameters/weight"), 2);
}

TEST(DeviceMonitor, ReportsMemoryAndLoadOfTheProcess) {
  const Rows rows = reports(2, monitored(8), [](Trainer& trainer) { trainer.add(std::make_shared<DeviceMonitor>()); });
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& row : rows) {
    EXPECT_GT(row.at("memory_mib"), 20);
    EXPECT_LT(row.at("memory_mib"), 100000);
    EXPECT_GT(row.at("cpu_percent"), 0);
    EXPECT_LT(row.at("cpu_percent"), 100 * 1000);
    EXPECT_FALSE(row.contains("gpu_memory_mib"));
    EXPECT_FALSE(row.contains("gpu_percent"));
  }
}

TEST(Profiler, WritesATraceOfTheStepsThatItIsToldTo) {
  for (const std::int64_t steps : {2, 100}) {  // 100: the run ends first
    const TempDir dir;
    reports(1, monitored(8), [&](Trainer& trainer) {
      trainer.add(std::make_shared<Profiler>(
          ProfilerOptions{.skip_steps = 3, .steps = steps, .directory = dir.path() / "traces", .shapes = true}));
    });
    std::ifstream file(dir.path() / "traces" / "trace-rank-0.json");
    std::stringstream text;
    text << file.rdbuf();
    const Json trace = parse_json(text.str());
    const auto& events = trace.at("traceEvents");
    const auto forwards = std::ranges::count_if(
        events, [](const Json& event) { return event.contains("name") && event.at("name") == "aten::mse_loss"; });
    const std::int64_t recorded = std::min<std::int64_t>(steps, 5);
    EXPECT_EQ(forwards, recorded);
    const auto ranges = [&](const std::string& name) {
      return std::ranges::count_if(events, [&](const Json& event) {
        return event.value("cat", "") == "user_annotation" && event.value("name", "") == name;
      });
    };
    for (const char* phase : {"forward", "backward", "optimizer"}) {
      EXPECT_EQ(ranges(phase), recorded) << phase;
    }
    EXPECT_EQ(ranges("data"), recorded - 1) << "recording begins behind the first";
    for (std::int64_t step = 1; step <= 8; ++step) {
      EXPECT_EQ(ranges(fmt::format("step {}", step)), step > 3 && step <= 3 + recorded ? 1 : 0) << step;
    }
  }
  EXPECT_THAT(message_of([] { Profiler({.steps = 0}); }), HasSubstr("steps is 0"));
}

// Else the wait would look like work of the backward.
TEST(Profiler, ShowsWhereARankWaitsForTheOthers) {
  const TempDir dir;
  thread_world(2, [&](World& world) {
    const Plan plan = plan_for(2, monitored(8));
    TinyTask task;
    DataLoader data(tiny_data(60), plan.loader, world);
    Trainer trainer(plan, world);
    if (world.is_main()) {
      trainer.add(std::make_shared<Profiler>(ProfilerOptions{.skip_steps = 3, .steps = 2, .directory = dir.path()}));
    }
    trainer.fit(task, data);
  });
  const Json trace = parse_json(read_file(real_file_system(), dir.path() / "trace-rank-0.json"));
  using Range = std::pair<double, double>;  // us
  const auto ranges = [&](std::string_view name) {
    std::vector<Range> found;
    for (const Json& event : trace.at("traceEvents")) {
      if (event.value("cat", "") == "user_annotation" && event.value("name", "") == name) {
        const double begin = event.at("ts").get<double>();
        found.emplace_back(begin, begin + event.at("dur").get<double>());
      }
    }
    return found;
  };
  const std::vector<Range> backwards = ranges("backward");
  const std::vector<Range> waits = ranges("communication");
  ASSERT_EQ(backwards.size(), 2U);
  ASSERT_EQ(waits.size(), 2U);
  for (std::size_t i = 0; i < waits.size(); ++i) {
    EXPECT_GT(waits[i].first, backwards[i].first);
    EXPECT_LE(waits[i].second, backwards[i].second);
  }
}

/// What a fit of 8 steps prints.
std::string printed_with(const ProfilerOptions& options) {
  CapturedStderr captured;
  reports(1, monitored(8), [&](Trainer& trainer) { trainer.add(std::make_shared<Profiler>(options)); });
  return captured.text();
}

TEST(Profiler, DoesNotEndARunWhoseTraceCannotBeWritten) {
  const TempDir dir;
  write_text(dir.path() / "file", "no directory");
  EXPECT_THAT(printed_with({.skip_steps = 3, .steps = 2, .directory = dir.path() / "file" / "traces"}),
              HasSubstr("cannot write the trace "));
}

// LibTorch writes another file first, and renames it.
TEST(Profiler, LeavesNoTraceThatIsNotWholeOrOfAnEarlierStart) {
  for (const bool is_full : {true, false}) {
    const TempDir dir;
    const auto trace = dir.path() / "trace-rank-0.json";
    const auto part = dir.path() / "trace-rank-0.json.tmp";
    write_text(trace, "of an earlier start");
    if (is_full) {
      std::filesystem::create_symlink("/dev/full", part);
    } else {
      std::filesystem::create_directory(part);  // it cannot be opened, also by root
    }
    EXPECT_THAT(printed_with({.skip_steps = 3, .steps = 2, .directory = dir.path()}),
                HasSubstr("cannot write the trace " + trace.string() + ": the directory is full or"));
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << is_full;
  }
}

TEST(Profiler, SaysThatTheFitWasTooShort) {
  const TempDir dir;
  const std::string warning = "profiler: nothing was recorded: the fit had 8 steps, and skip_steps is 8";
  EXPECT_THAT(printed_with({.skip_steps = 8, .directory = dir.path()}), HasSubstr(warning));
  EXPECT_THAT(printed_with({.skip_steps = 7, .directory = dir.path()}),
              testing::Not(HasSubstr("nothing was recorded")));
}

// Another callback fails at Stage::exception, so that the profiler does not hear of the end.
TEST(Profiler, MayEndItsRecordingInAnotherThreadThanTheFit) {
  const TempDir dir;
  auto profiler = std::make_shared<Profiler>(ProfilerOptions{.skip_steps = 1, .steps = 5, .directory = dir.path()});
  const auto train = [&] {
    reports(1, monitored(8), [&](Trainer& trainer) {
      trainer.on(Stage::step_end | Stage::exception, [](const StageContext& at) {
        if (at.state.step == 3) {
          throw Error("the first failure");
        }
      });
      trainer.add(profiler);
    });
  };
  EXPECT_THAT(message_of(train), HasSubstr("the first failure"));
  EXPECT_EQ(profiler.use_count(), 1);
  profiler.reset();
}

TEST(Profiler, LeavesNoFileAfterATrial) {
  const TempDir dir;
  TrainConfig config = monitored(8);
  config.run_dir = (dir.path() / "run").string();
  config.fast_dev_run = 8;
  reports(1, config, [&](Trainer& trainer) {
    trainer.add(std::make_shared<Profiler>(ProfilerOptions{.skip_steps = 1, .steps = 2}));
  });
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run"));
}

LrRange range_on(int ranks, const LrRangeOptions& options, bool* unchanged = nullptr) {
  LrRange range;
  thread_world(ranks, [&](World& world) {
    const Plan plan = plan_for(ranks, monitored(8));
    TinyTask task;
    const auto before = weights_of(task);
    DataLoader data(tiny_data(60), plan.loader, world);
    LrRange found = find_lr(plan, world, task, data, options);
    if (world.is_main()) {
      range = std::move(found);
      if (unchanged != nullptr) {
        *unchanged = data.position().consumed == 0 && data.position().epoch == 0;
        for (std::size_t i = 0; i < before.size(); ++i) {
          *unchanged = *unchanged && at::equal(before[i], task.module().parameters()[i]);
        }
      }
    }
  });
  return range;
}

TEST(LrRange, GrowsFromTheSmallestToTheLargestRateAndRestoresTheWeights) {
  bool unchanged = false;
  const LrRange one = range_on(1, {.min_lr = 1e-5, .max_lr = 10, .steps = 80}, &unchanged);
  EXPECT_TRUE(unchanged);
  ASSERT_GT(one.lrs.size(), 40U);
  EXPECT_LT(one.lrs.size(), 80U) << "it diverges before";
  EXPECT_NEAR(one.lrs.front(), 1e-5, 1e-12);
  EXPECT_NEAR(one.lrs[1] / one.lrs[0], std::pow(1e6, 1.0 / 79), 1e-6);
  ASSERT_TRUE(one.suggestion);
  EXPECT_GT(*one.suggestion, 1e-4);
  EXPECT_LT(*one.suggestion, 1);
  const LrRange three = range_on(3, {.min_lr = 1e-5, .max_lr = 10, .steps = 80});
  ASSERT_EQ(three.lrs.size(), one.lrs.size());
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(three.losses[i], one.losses[i], 1e-4 * std::max(1.0, one.losses[i]));
  }
  const TempDir dir;
  write_svg(one, dir.path() / "range.svg");
  EXPECT_THAT(read_file(real_file_system(), dir.path() / "range.svg"),
              HasSubstr(fmt::format(">{:.3g}</text>", *one.suggestion)));
}

/// Counts only a part of the samples: how many differs between ranks.
class CountingTask final : public TinyTask {
 public:
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor counted = (batch.target > 0).to(at::kFloat);
    StepOutput output;
    output.count = counted.sum().to(at::kLong);
    output.loss = ((net_(batch.input) - batch.target).square() * counted).sum() / output.count.clamp_min(1);
    return output;
  }
};

TEST(LrRange, WeighsLossesByTheirCounts) {
  const auto losses = [](int ranks) {
    std::vector<double> found;
    thread_world(ranks, [&](World& world) {
      const Plan plan = plan_for(ranks, monitored(8));
      CountingTask task;
      DataLoader data(tiny_data(60), plan.loader, world);
      const LrRange range = find_lr(plan, world, task, data, {.min_lr = 1e-5, .max_lr = 1e-2, .steps = 10});
      if (world.is_main()) {
        found = range.losses;
      }
    });
    return found;
  };
  const auto one = losses(1);
  for (const int ranks : {2, 3}) {
    const auto several = losses(ranks);
    ASSERT_EQ(several.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(several[i], one[i], 1e-5 * one[i]) << ranks;
    }
  }
}

// The first group has other ones.
TEST(LrRange, HasTheRatesOfTheSetting) {
  OptimizerSpec matrices = muon({.lr = 0.02, .adamw = {.lr = 3e-4}});
  matrices.groups = {{.select = named("bias"), .muon = false}, {}};
  OptimizerSpec scaled = sgd({.lr = 0.1});
  scaled.groups = {{.select = named("bias"), .lr_scale = 0.1}, {}};
  for (const OptimizerSpec& optimizer : {matrices, scaled}) {
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, monitored(8));
    TinyTask task(optimizer);
    DataLoader data(tiny_data(60), plan.loader, world);
    const LrRange range = find_lr(plan, world, task, data, {.min_lr = 1e-5, .max_lr = 1e-2, .steps = 10});
    ASSERT_EQ(range.lrs.size(), 10U);
    EXPECT_NEAR(range.lrs.front(), 1e-5, 1e-12);
    EXPECT_NEAR(range.lrs.back(), 1e-2, 1e-9);
  }
}

TEST(LrRange, WorksInEveryPrecision) {
  for (const Precision precision : {Precision::fp64, Precision::bf16, Precision::bf16_mixed}) {
    TrainConfig config = monitored(8);
    config.precision = precision;
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    TinyTask task;
    DataLoader data(tiny_data(60), plan.loader, world);
    EXPECT_EQ(find_lr(plan, world, task, data, {.min_lr = 1e-5, .max_lr = 1e-2, .steps = 10}).lrs.size(), 10U);
  }
}

/// The loss of a batch varies by half of it.
LrRange range_of_noisy_losses(std::uint64_t seed, const LrRangeOptions& options) {
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, monitored(8));
  at::manual_seed(seed);
  const at::Tensor x = at::randn({512, 4});
  DataLoader data(tensor_dataset(x, x.sum(1, true)), plan.loader, world);
  TinyTask task(adamw({.lr = 1e-3}));
  return find_lr(plan, world, task, data, options);
}

TEST(LrRange, SuggestsARateAtWhichNoisyLossesFall) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const LrRange range = range_of_noisy_losses(seed, {.min_lr = 1e-6, .max_lr = 10});
    EXPECT_GT(range.losses.size(), 70U) << "seed " << seed << ": the first losses are no divergence";
    ASSERT_TRUE(range.suggestion) << "seed " << seed;
    EXPECT_GT(*range.suggestion, 0.002) << "seed " << seed;  // they fall from 0.02 to 0.3
    EXPECT_LT(*range.suggestion, 1) << "seed " << seed;
  }
}

TEST(LrRange, SuggestsNothingWhereLossesOnlyVary) {
  const CapturedStderr silent;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const LrRange range = range_of_noisy_losses(seed, {.min_lr = 1e-12, .max_lr = 1e-9});
    EXPECT_EQ(range.losses.size(), 100U) << "seed " << seed;
    EXPECT_FALSE(range.suggestion) << "seed " << seed << ": " << *range.suggestion;
  }
}

TEST(LrRange, SuggestsNothingWhereTheLossDoesNotFall) {
  EXPECT_FALSE(range_on(1, {.min_lr = 1e-12, .max_lr = 1e-11, .steps = 15}).suggestion);
}

TEST(LrRange, IsWrittenAsATable) {
  const TempDir dir;
  write_csv({.lrs = {0.5, 1}, .losses = {3, 2.25}}, dir.path() / "range.csv");
  std::ifstream file(dir.path() / "range.csv");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "lr,loss\n0.5,3\n1,2.25\n");
}

TEST(LrRange, RefusesARangeThatIsNone) {
  const std::string message = message_of([] { range_on(1, {.min_lr = 0, .max_lr = -1, .steps = 1}); });
  EXPECT_THAT(message, HasSubstr("min_lr is 0"));
  EXPECT_THAT(message, HasSubstr("max_lr is -1"));
  EXPECT_THAT(message, HasSubstr("steps is 1"));
}

}  // namespace
}  // namespace lockstep
