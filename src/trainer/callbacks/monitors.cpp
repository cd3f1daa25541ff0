#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/log.h>
#include <lockstep/config/config_io.h>
#include <lockstep/trainer/monitors.h>

#include "base/mapped.h"
#include "base/option_check.h"
#include "base/text.h"
#include "environment/nvml.h"
#include "optim/option_values.h"
#include "trainer/callbacks/monitored_metric.h"
#include "trainer/output/metric_names.h"
#include "world/warn_on_main.h"
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

/// Processor time of all threads of this process.
double process_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

constexpr const char* kGpuPercent = "gpu_percent";

/// LibTorch does not say whether it could write a trace, which is a JSON object.
bool is_whole(const std::filesystem::path& trace) {
  std::ifstream file(trace, std::ios::binary);
  std::string last(2, '\0');
  return file.seekg(-2, std::ios::end) && file.read(last.data(), 2) && last.find('}') != std::string::npos;
}

}  // namespace

void LearningRateMonitor::on(const StageContext& context) {
  for (std::size_t i = 0; i < context.strategy->optimizer_count(); ++i) {
    auto& groups = context.strategy->optimizer(i).torch_optimizer().param_groups();
    for (std::size_t group = 0; group < groups.size(); ++group) {
      torch::optim::OptimizerOptions& options = groups[group].options();
      context.log(fmt::format("lr_{}_{}", i, group), options.get_lr());
      const OptionValues values = option_values(options);
      if (values.momentum && options_.momentum) {
        context.log(fmt::format("momentum_{}_{}", i, group), *values.momentum);
      }
      if (values.weight_decay != nullptr && options_.weight_decay) {
        context.log(fmt::format("weight_decay_{}_{}", i, group), *values.weight_decay);
      }
    }
  }
}

SmoothedMetric::SmoothedMetric(std::string metric, double decay)
    : metric_(std::move(metric)), name_("smoothed_" + metric_), decay_(decay) {
  OptionCheck("SmoothedMetric").expect_share("decay", decay).throw_problems();
}

void SmoothedMetric::on(const StageContext& context) {
  if (context.stage == Stage::fit_start) {
    if (context.state.step == 0) {
      load({});  // another training of this process
    }
    return;
  }
  const double* value = find_metric(*context.metrics, metric_);
  double sum = sum_;
  double weight = weight_;
  if (value != nullptr && std::isfinite(*value)) {
    sum = decay_ * sum_ + (1 - decay_) * *value;
    weight = decay_ * weight_ + (1 - decay_);
  }
  if (weight > 0) {
    context.log(metric_ + "_smoothed", sum / weight);
  }
  if (context.ends_window) {
    sum_ = sum;
    weight_ = weight;
  }
}

NamedTensors SmoothedMetric::save() const {
  return {{"sum", at::scalar_tensor(sum_, at::kDouble)}, {"weight", at::scalar_tensor(weight_, at::kDouble)}};
}

void SmoothedMetric::load(const NamedTensors& state) {
  sum_ = weight_ = 0;
  for (const auto& [name, value] : state) {
    (name == "sum" ? sum_ : weight_) = value.item<double>();
  }
}

ThroughputMonitor::ThroughputMonitor(ThroughputMonitorOptions options) : options_(std::move(options)) {
  OptionCheck("ThroughputMonitor")
      .expect("units_per_sample", options_.units_per_sample, options_.units_per_sample >= 0, "0 or more")
      .refuse_if(options_.units_per_sample > 0 && options_.unit.empty(),
                 "units_per_sample is set, and the unit has no name", "set unit, for example to tokens")
      .throw_problems();
}

// samples_per_s of the same report has the time: of the main rank, from the end of the first step, without validations.
void ThroughputMonitor::on(const StageContext& context) {
  if (context.stage == Stage::fit_start) {
    before_.reset();
    return;
  }
  if (context.stage == Stage::step_end && before_) {
    count_step(context);
    return;
  }
  const double* speed = context.stage == Stage::report ? find_metric(*context.metrics, kSpeed) : nullptr;
  if (speed != nullptr && before_) {
    report(context, *speed);
  }
  before_ = context.state;
  units_.reset();
}

// The sum stays on the device, so that no step waits for it.
void ThroughputMonitor::count_step(const StageContext& context) {
  if (const at::Tensor& count = context.step.count; counts_units() && count.defined()) {
    const at::NoGradGuard no_grad;
    units_ = units_.defined() ? units_ + count : count.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
}

void ThroughputMonitor::report(const StageContext& context, double samples_per_s) {
  const auto samples = static_cast<double>(context.state.samples - before_->samples);
  const double seconds = samples / samples_per_s;
  context.log("step_ms", 1000 * seconds / static_cast<double>(context.state.step - before_->step));
  if (options_.flops_per_sample > 0) {
    const double flops = options_.flops_per_sample * samples_per_s / context.world.size();
    context.log("tflops_per_s", flops / 1e12);
    if (options_.peak_flops_per_second > 0) {
      context.log("mfu", flops / options_.peak_flops_per_second);
    }
  }
  if (!options_.unit.empty()) {
    const double units = counts_units() ? counted_units(context.world) : options_.units_per_sample * samples;
    context.log(options_.unit + "_per_s", units / seconds);
  }
}

double ThroughputMonitor::counted_units(World& world) {
  // The units of all ranks, and the number of ranks that counted some.
  const at::Tensor sums = at::zeros({2}, at::device(world.device()).dtype(at::kDouble));
  if (units_.defined()) {
    sums[0].copy_(units_);
    sums[1].fill_(1);
  }
  world.all_reduce(sums, Reduce::sum);
  const at::Tensor host = WorldAccess::on_host(world, sums);
  has_counted_ = has_counted_ || host[1].item<double>() > 0;
  if (!has_counted_) {
    throw Error(fmt::format("ThroughputMonitor: no step has a count of its {}", options_.unit),
                "set StepOutput::count, or ThroughputMonitorOptions::units_per_sample");
  }
  return host[0].item<double>();
}

struct DeviceMonitor::Impl {
  std::optional<GpuLoadReader> driver{};
  double cpu_seconds = 0;
  std::chrono::steady_clock::time_point measured{};

  /// 100: one core was busy since the last call.
  double cpu_percent() {
    const auto now = std::chrono::steady_clock::now();
    const double cpu = process_seconds();
    const double passed = std::chrono::duration<double>(now - std::exchange(measured, now)).count();
    return 100 * (cpu - std::exchange(cpu_seconds, cpu)) / passed;
  }
};

DeviceMonitor::DeviceMonitor() : impl_(std::make_unique<Impl>()) {}
DeviceMonitor::~DeviceMonitor() = default;

void DeviceMonitor::on(const StageContext& context) {
  const c10::Device device = context.world.device();
  const double cpu_percent = impl_->cpu_percent();
  if (context.stage == Stage::fit_start) {
    if (device.is_cuda()) {
      const auto local = static_cast<std::size_t>(context.world.local_rank());
      impl_->driver.emplace(context.plan.local_devices.at(local).uuid);
    }
    return;
  }
  // A rank that does not know a value must not win. The maximum of -value is the smallest value.
  constexpr double kUnknown = -std::numeric_limits<double>::infinity();
  std::vector<std::pair<const char*, double>> largest{{"memory_mib", process_memory()}, {"cpu_percent", cpu_percent}};
  if (device.is_cuda()) {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto bytes = at::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kAll];
    const GpuLoad load = impl_->driver->read();
    largest.emplace_back("gpu_memory_mib", static_cast<double>(bytes.current) / kMib);
    largest.emplace_back("gpu_memory_peak_mib", static_cast<double>(bytes.peak) / kMib);
    largest.emplace_back("gpu_power_w", load.power_w.value_or(kUnknown));
    largest.emplace_back("gpu_celsius", load.celsius.value_or(kUnknown));
    largest.emplace_back(kGpuPercent, load.percent ? -*load.percent : kUnknown);
  }
  const auto values = mapped(largest, [](const auto& value) { return value.second; });
  const at::Tensor of_all = at::tensor(values, at::kDouble).to(device);
  context.world.all_reduce(of_all, Reduce::max);
  const at::Tensor host = WorldAccess::on_host(context.world, of_all);
  for (std::size_t i = 0; i < largest.size(); ++i) {
    const double value = host.const_data_ptr<double>()[i];
    if (value != kUnknown) {
      context.log(largest[i].first, largest[i].first == kGpuPercent ? -value : value);
    }
  }
}

Profiler::Profiler(ProfilerOptions options) : options_(std::move(options)) {
  OptionCheck("Profiler")
      .expect("skip_steps", options_.skip_steps, options_.skip_steps >= 0, "0 or more")
      .expect("steps", options_.steps, options_.steps >= 1, "1 or more")
      .throw_problems();
}

Profiler::~Profiler() {
  try {
    if (is_recording_) {
      torch::autograd::profiler::disableProfiler();
    }
  } catch (...) {  // LibTorch finds it neither in another thread nor after another profiler's recording
  }
}

void Profiler::on(const StageContext& context) {
  const std::int64_t step = context.state.step;
  switch (context.stage) {
    case Stage::fit_start: {
      const std::filesystem::path directory =
          options_.directory.empty() ? WorldAccess::start_directory(context.world) / run_directory(context.plan.config)
                                     : std::filesystem::absolute(options_.directory);
      const bool leaves_no_files = context.plan.config.fast_dev_run > 0 || context.plan.config.barebones;
      if (options_.directory.empty() && leaves_no_files) {
        first_ = -1;
        break;
      }
      file_ = directory / fmt::format("trace-rank-{}.json", context.world.rank());
      first_ = step + options_.skip_steps;
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
      } else if (const std::int64_t steps = step - first_ + options_.skip_steps;
                 context.stage == Stage::fit_end && steps > 0 && step <= first_) {
        warn_on_main(context.world, fmt::format("{}: nothing was recorded: the fit had {}, and skip_steps is {}",
                                                options_.name, counted(steps, "step"), options_.skip_steps));
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
  std::error_code failure;  // a report never ends a run
  std::filesystem::create_directories(file_.parent_path(), failure);
  if (!failure) {
    std::filesystem::remove(file_, failure);  // that of an earlier start
  }
  if (failure) {
    log_warning(fmt::format("cannot write the trace {}: {}", file_.string(), failure.message()));
    return;
  }
  result->save(file_.string());
  if (!is_whole(file_)) {
    std::filesystem::remove(file_, failure);
    std::filesystem::remove(file_.string() + ".tmp", failure);  // what LibTorch could write of it
    log_warning(fmt::format("cannot write the trace {}: the directory is full or may not be written", file_.string()));
    return;
  }
  log_info(fmt::format("recorded {} operations in {}", result->events().size(), file_.string()));
}

}  // namespace lockstep
