// Callbacks, metrics and streams have on a GPU the values that they have on the CPU.
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/file_system.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/stream.h>
#include <lockstep/metrics/aggregation.h>
#include <lockstep/metrics/classification.h>
#include <lockstep/metrics/regression.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/monitors.h>

#include "gpu/device_tests.h"
#include "gpu/small_net.h"
#include "report/metric_rows.h"
#include "support/at_stage.h"
#include "support/temp_dir.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

LOCKSTEP_DEVICE_TEST(Averages, AreThoseOfTheWeights) {
  for (const bool on_cpu : {false, true}) {
    SCOPED_TRACE(on_cpu ? "in host memory" : "on the device");
    TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 12, .batch_size = 8});
    config.compute_setup = where;
    Session session = Session::single(config);
    DataLoader data(small_images(45), session.plan.loader, session.world);
    DataLoader validation(small_images(9), session.plan.eval_loader, session.world);
    SmallTask task;
    const auto average = std::make_shared<WeightAverage>(
        WeightAverageOptions{.decay = 0.75, .on_cpu = on_cpu, .at_end = true, .batch_norm_steps = 2});
    at::Tensor expected;
    const auto watch = at_stage(Stage::step_end, [&](const StageContext& context) {
      const at::Tensor weight = context.module.named_parameters()["wide.weight"].detach().cpu().clone();
      expected = expected.defined() ? expected * 0.75 + weight * 0.25 : weight;
    });
    Trainer(session).add(average).add(watch).fit(task, data, &validation);
    const at::Tensor found = task.module().named_parameters()["wide.weight"].detach();
    EXPECT_EQ(found.is_cuda(), where == ComputeSetup::gpu);
    EXPECT_TRUE(at::allclose(found.cpu(), expected, /*rtol=*/1e-5, /*atol=*/1e-6));
  }
}

// A device without an index means the current one, as for tensors.
LOCKSTEP_DEVICE_TEST(Worlds, HaveTheDeviceOfTheirTensors) {
  const c10::Device any(where == ComputeSetup::gpu ? c10::kCUDA : c10::kCPU);
  World world = World::single(any);
  EXPECT_EQ(world.device(), at::zeros({1}, at::device(any)).device());
  DataLoader data(small_images(8), {.batch = {.batch_size = 8, .global_batch_size = 8}}, world);
  EXPECT_EQ(data.next()->micro.front().input.device(), world.device());
}

/// The values of metrics after three updates on the device.
std::map<std::string, at::Tensor> metric_values(ComputeSetup where) {
  using namespace metrics;
  const c10::Device device = where == ComputeSetup::gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  World world = World::single(device);
  Accuracy accuracy({.classes = 5, .top_k = 2});
  F1Score f1({.classes = 5, .average = Average::macro});
  ConfusionMatrix confusion({.classes = 5});
  AUROC auroc({.task = Classification::multiclass, .classes = 5});
  Perplexity perplexity;
  MeanMetric mean;
  MaxMetric largest;
  Quantile quantile({0.1, 0.9});
  R2Score r2;
  MeanSquaredError squared;
  const std::vector<std::pair<std::string, Metric*>> all{{"accuracy", &accuracy},
                                                         {"f1", &f1},
                                                         {"confusion", &confusion},
                                                         {"auroc", &auroc},
                                                         {"perplexity", &perplexity},
                                                         {"mean", &mean},
                                                         {"largest", &largest},
                                                         {"quantile", &quantile},
                                                         {"r2", &r2},
                                                         {"squared", &squared}};
  for (const auto& [name, metric] : all) {
    metric->to(device);
  }
  for (int update = 0; update < 3; ++update) {
    const at::Tensor numbers = at::arange(32 * 5, at::device(device).dtype(at::kFloat)) + 100 * update;
    const at::Tensor scores = at::sin(numbers * 0.7).view({32, 5});
    const at::Tensor classes = at::arange(32, at::device(device)).mul(update + 3).remainder(5);
    accuracy.update(scores, classes);
    f1.update(scores, classes);
    confusion.update(scores, classes);
    auroc.update(scores.softmax(1), classes);
    perplexity.update(scores, classes);
    mean.update(scores);
    largest.update(scores);
    quantile.update(scores.abs());
    r2.update(scores.flatten(), scores.flatten() * 0.9 + 0.01);
    squared.update(scores, scores * 0.9);
  }
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, metric] : all) {
    values[name] = metric->value(world);
    EXPECT_TRUE(values[name].is_cpu()) << name;
  }
  return values;
}

LOCKSTEP_DEVICE_TEST(Metrics, AreThoseOfTheCpu) {
  const auto expected = metric_values(ComputeSetup::cpu);
  for (const auto& [name, value] : metric_values(where)) {
    EXPECT_TRUE(at::allclose(value.to(at::kDouble), expected.at(name).to(at::kDouble), /*rtol=*/1e-5, /*atol=*/1e-7))
        << name << ": " << value << " is not " << expected.at(name);
  }
  EXPECT_FALSE(at::equal(expected.at("mean"), expected.at("squared")));  // control
}

/// 29 samples in each epoch.
std::unique_ptr<Stream> numbers() {
  return sample_stream([](std::int64_t epoch, int, int) {
    return [next = epoch * 100, end = epoch * 100 + 29]() mutable -> std::optional<Batch> {
      if (next == end) {
        return std::nullopt;
      }
      Batch sample;
      sample.input = at::full({50'000}, static_cast<double>(next), at::kFloat);
      sample.target = at::scalar_tensor(next++, at::kLong);
      return sample;
    };
  });
}

LOCKSTEP_DEVICE_TEST(Streams, GiveTheirSamples) {
  const c10::Device device = where == ComputeSetup::gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  World world = World::single(device);
  for (const int workers : {0, 1}) {
    DataLoader data(numbers(), {.batch = {.batch_size = 4, .global_batch_size = 8}, .data = {.workers = workers}},
                    world);
    at::Tensor load = at::ones({512, 512}, at::device(device));
    std::vector<at::Tensor> read;
    for (int epochs = 0; epochs < 2;) {
      const StepBatches& step = *data.next();
      for (const Batch& batch : step.micro) {
        load = load.matmul(load).sigmoid();  // the step is behind the host, as in training
        EXPECT_EQ(batch.input.device(), device);
        read.push_back(at::stack({batch.target.to(at::kFloat), batch.input.amin(1), batch.input.amax(1)}));
      }
      epochs += step.ends_epoch ? 1 : 0;
    }
    const at::Tensor found = at::cat(read, 1).cpu();
    const at::Tensor ids = at::cat({at::arange(29, at::kFloat), at::arange(29, at::kFloat) + 100});
    EXPECT_TRUE(at::equal(found, ids.expand({3, 58}))) << "workers " << workers;
  }
}

class SparseRows final : public Dataset {
 public:
  std::int64_t size() const override { return 24; }
  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    const at::Tensor rows = at::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()));
    at::Tensor input = at::zeros({rows.size(0), 1000});
    input.select(1, 7).copy_(rows + 1);
    Batch batch;
    batch.input = input.to_sparse();
    batch.target = rows;
    return batch;
  }
};

// The memory of a sparse batch is that of its indices and its values.
LOCKSTEP_DEVICE_TEST(SparseBatches, AreOnTheDevice) {
  const c10::Device device = where == ComputeSetup::gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  World world = World::single(device);
  DataLoader data(std::make_shared<SparseRows>(),
                  {.batch = {.batch_size = 4, .global_batch_size = 4}, .data = {.workers = 2}}, world);
  std::vector<at::Tensor> read;
  for (int step = 0; step < 6; ++step) {
    const Batch& batch = data.next()->micro.front();
    EXPECT_TRUE(batch.input.is_sparse());
    EXPECT_EQ(batch.input.device(), device);
    read.push_back(batch.input.to_dense().sum(1) - batch.target - 1);
  }
  EXPECT_EQ(at::cat(read).abs().max().item<float>(), 0.0F);
}

LOCKSTEP_DEVICE_TEST(Monitors, MeasureTheTraining) {
  const TempDir dir;
  TrainConfig config{.max_epochs = 0, .max_steps = 30, .batch_size = 8, .run_dir = dir.path() / "run"};
  config.compute_setup = where;
  config.report.every_steps = 10;
  config.report.tensorboard = true;
  Session session = Session::single(config);
  SmallTask task;
  DataLoader data(small_images(64), session.plan.loader, session.world);
  double norm = 0;
  Trainer(session)
      .add(std::make_shared<GradientMonitor>(GradientMonitorOptions{.every_steps = 30, .groups = {{.name = "all"}}}))
      .add(std::make_shared<HistogramMonitor>())
      .add(std::make_shared<LearningRateMonitor>())
      .add(std::make_shared<ThroughputMonitor>(ThroughputMonitorOptions{.flops_per_sample = 1e6}))
      .add(std::make_shared<DeviceMonitor>())
      .add(std::make_shared<Profiler>(ProfilerOptions{.skip_steps = 12, .steps = 3, .shapes = true, .memory = true}))
      .add(at_stage(Stage::backward_end,
                    [&](const StageContext& context) {
                      if (context.state.step == 29) {
                        for (const auto& parameter : context.module.parameters()) {
                          norm += parameter.grad().square().sum().item<double>();
                        }
                      }
                    }))
      .fit(task, data);
  const auto rows = read_metric_rows(real_file_system(), dir.path() / "run");
  ASSERT_TRUE(rows.has_value());
  ASSERT_NE(rows->find("grad_norm/all"), nullptr);
  EXPECT_NEAR(rows->find("grad_norm/all")->values.back(), std::sqrt(norm), 1e-4 * std::sqrt(norm));
  for (const char* name : {"lr_0_0", "tflops_per_s", "step_ms", "memory_mib"}) {
    ASSERT_NE(rows->find(name), nullptr) << name;
    EXPECT_GT(rows->find(name)->values.back(), 0) << name;
  }
  EXPECT_EQ(rows->find("gpu_memory_peak_mib") != nullptr, where == ComputeSetup::gpu);
  const std::string trace = read_file(real_file_system(), dir.path() / "run" / "trace-rank-0.json");
  for (const char* range : {"\"forward\"", "\"backward\"", "\"optimizer\"", "\"step 13\""}) {
    EXPECT_THAT(trace, HasSubstr(range));
  }
  if (where == ComputeSetup::gpu) {
    EXPECT_THAT(trace, HasSubstr("\"cat\": \"kernel\""));
  } else {
    EXPECT_THAT(trace, Not(HasSubstr("\"cat\": \"kernel\"")));
  }
}

}  // namespace
}  // namespace lockstep
