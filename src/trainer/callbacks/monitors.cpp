#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/config/config_io.h>
#include <lockstep/trainer/monitors.h>

#include "optim/option_values.h"
#include "trainer/callbacks/monitored_metric.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

/// Resident memory of this process in MiB.
double process_memory() {
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  double resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMib;
}

}  // namespace

void LearningRateMonitor::on(const StageContext& context) {
  for (std::size_t i = 0; i < context.strategy->optimizer_count(); ++i) {
    auto& groups = context.strategy->optimizer(i).torch_optimizer().param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group) {
      torch::optim::OptimizerOptions& options = groups[group].options();
      context.log(fmt::format("lr_{}_{}", i, group), options.get_lr());
      if (const auto momentum = momentum_of(options); momentum && options_.momentum) {
        context.log(fmt::format("momentum_{}_{}", i, group), *momentum);
      }
      if (const double* decay = find_weight_decay(options); decay != nullptr && options_.weight_decay) {
        context.log(fmt::format("weight_decay_{}_{}", i, group), *decay);
      }
    }
  }
}

SmoothedMetric::SmoothedMetric(std::string metric, double decay)
    : metric_(std::move(metric)), name_("smoothed_" + metric_), decay_(decay) {
  if (!(decay >= 0 && decay < 1)) {
    throw ConfigError(fmt::format("SmoothedMetric: decay is {}, expected 0 or more and less than 1", decay));
  }
}

void SmoothedMetric::on(const StageContext& context) {
  const auto found = std::ranges::find(*context.metrics, metric_, [](const auto& metric) { return metric.first; });
  double sum = sum_;
  double weight = weight_;
  if (found != context.metrics->end() && std::isfinite(found->second)) {
    sum = decay_ * sum_ + (1 - decay_) * found->second;
    weight = decay_ * weight_ + (1 - decay_);
  }
  if (weight > 0) {
    context.log(metric_ + "_smoothed", sum / weight);
  }
  if (!is_early_report(context)) {
    sum_ = sum;
    weight_ = weight;
  }
}

NamedTensors SmoothedMetric::save() const {
  return {{"sum", at::scalar_tensor(sum_, at::kDouble)}, {"weight", at::scalar_tensor(weight_, at::kDouble)}};
}

void SmoothedMetric::load(const NamedTensors& state) {
  for (const auto& [name, value] : state) {
    (name == "sum" ? sum_ : weight_) = value.item<double>();
  }
}

void ThroughputMonitor::on(const StageContext& context) {
  const auto now = Clock::now();
  double seconds = std::chrono::duration<double>(now - last_).count();
  const std::int64_t steps = context.state.step - state_.step;
  const auto samples = static_cast<double>(context.state.samples - state_.samples);
  last_ = now;
  state_ = context.state;
  if (context.stage != Stage::report || steps == 0) {
    return;
  }
  const at::Tensor of_main = at::full({}, seconds, at::device(context.world.device()).dtype(at::kDouble));
  context.world.broadcast(of_main);
  seconds = WorldAccess::on_host(context.world, of_main).item<double>();
  context.log("step_ms", 1000 * seconds / static_cast<double>(steps));
  if (options_.flops_per_sample > 0) {
    const double flops = options_.flops_per_sample * samples / seconds / context.world.size();
    context.log("tflops_per_s", flops / 1e12);
    if (options_.peak_flops_per_second > 0) {
      context.log("mfu", flops / options_.peak_flops_per_second);
    }
  }
}

void MemoryMonitor::on(const StageContext& context) {
  const c10::Device device = context.world.device();
  std::vector<std::pair<const char*, double>> found{{"memory_mib", process_memory()}};
  if (device.is_cuda()) {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto bytes = at::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kAll];
    found.emplace_back("gpu_memory_mib", static_cast<double>(bytes.current) / kMib);
    found.emplace_back("gpu_memory_peak_mib", static_cast<double>(bytes.peak) / kMib);
  }
  for (const auto& [name, value] : found) {
    const at::Tensor largest = at::full({}, value, at::device(device).dtype(at::kDouble));
    context.world.all_reduce(largest, Reduce::max);
    context.log(name, WorldAccess::on_host(context.world, largest).item<double>());
  }
}

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {
  std::vector<Problem> problems;
  if (options_.first_step < 0) {
    problems.push_back({fmt::format("Profiler: first_step is {}, expected 0 or more", options_.first_step)});
  }
  if (options_.steps < 1) {
    problems.push_back({fmt::format("Profiler: steps is {}, expected 1 or more", options_.steps)});
  }
  if (!problems.empty()) {
    throw ConfigError(std::move(problems));
  }
}

Profiler::~Profiler() {
  if (is_recording_) {
    torch::autograd::profiler::disableProfiler();
  }
}

void Profiler::on(const StageContext& context) {
  const std::int64_t step = context.state.step;
  switch (context.stage) {
    case Stage::fit_start: {
      const std::filesystem::path directory =
          options_.directory.empty() ? run_directory(context.plan.config) : options_.directory.string();
      std::filesystem::create_directories(directory);
      file_ = directory / fmt::format("trace-rank-{}.json", context.world.rank());
      first_ = step + options_.first_step;
      break;
    }
    case Stage::step_start:
      if (step == first_) {
        start(context);
      }
      break;
    case Stage::step_end:
      if (is_recording_ && step == first_ + options_.steps) {
        finish();
      }
      break;
    default:
      if (is_recording_) {
        finish();
      }
  }
}

void Profiler::start(const StageContext& context) {
  using torch::autograd::profiler::ActivityType;
  std::set<ActivityType> activities{ActivityType::CPU};
  if (context.world.device().is_cuda()) {
    activities.insert(ActivityType::CUDA);
  }
  const torch::autograd::profiler::ProfilerConfig config(torch::autograd::profiler::ProfilerState::KINETO,
                                                         options_.shapes, options_.memory);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(
      config, activities, {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
  is_recording_ = true;
}

void Profiler::finish() {
  is_recording_ = false;
  const auto result = torch::autograd::profiler::disableProfiler();
  result->save(file_.string());
  log_info(fmt::format("recorded {} operations in {}", result->events().size(), file_.string()));
}

}  // namespace lockstep
