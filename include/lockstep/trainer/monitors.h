// lockstep/trainer/monitors.h
//
// Callbacks that measure a training and change nothing in it. Their metrics are in the reports.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/trainer/callback.h>

namespace [[gnu::visibility("default")]] lockstep {

/// What else LearningRateMonitor reports.
struct LearningRateMonitorOptions {
  bool momentum = false;      ///< "momentum_0_1": of SGD and others with a momentum; the first beta of Adam and others
  bool weight_decay = false;  ///< "weight_decay_0_1", where the optimizer has one
};

/// Learning rate of every parameter group: "lr_0_1" is that of group 1 of optimizer 0.
class LearningRateMonitor final : public Callback {
 public:
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {}) : options_(options) {}

  std::string name() const override { return "learning_rate_monitor"; }
  std::uint32_t stages() const override { return Stage::report; }
  bool is_light() const override { return true; }
  void on(const StageContext& context) override;

 private:
  LearningRateMonitorOptions options_;
};

/// Exponential moving average of a metric of reports, such as the loss: "loss_smoothed". It is in the checkpoints.
class SmoothedMetric final : public Callback {
 public:
  /// `decay`: weight of the average so far, from 0 to below 1. The first values are corrected for the zero at which the
  /// average begins (Kingma and Ba, 2015, section 3). Throws: ConfigError.
  explicit SmoothedMetric(std::string metric, double decay = 0.9);

  std::string name() const override { return name_; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::report; }
  bool is_light() const override { return true; }
  void on(const StageContext& context) override;
  NamedTensors save() const override;
  void load(const NamedTensors& state) override;

 private:
  std::string metric_;
  std::string name_;
  double decay_;
  double sum_ = 0;
  double weight_ = 0;
};

/// What ThroughputMonitor cannot know itself.
struct ThroughputMonitorOptions {
  double flops_per_sample = 0;       ///< of forward and backward of one sample; 0: not known
  double peak_flops_per_second = 0;  ///< of one device in the precision of the training; 0: not known
  /// What else is counted, such as "tokens" for "tokens_per_s" of all ranks together; "": nothing.
  std::string unit{};
  double units_per_sample = 0;  ///< 0: their number is StepOutput::count, also where samples have different lengths
};

/// Since the last report, in the time of its "samples_per_s": "tflops_per_s" of one rank, "mfu" (model FLOPs
/// utilization, Chowdhery et al. 2022: the share of the peak), "step_ms", and the units of all ranks per second. Time
/// in saves counts; the first step of a fit and validations do not.
class ThroughputMonitor final : public Callback {
 public:
  /// Throws: ConfigError (units_per_sample without a unit, or below 0).
  explicit ThroughputMonitor(ThroughputMonitorOptions options = {});

  std::string name() const override { return "throughput_monitor"; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::step_end | Stage::report; }
  bool is_light() const override { return true; }
  /// Throws: Error at a report, if the units are to be counted and the outputs of the steps have no count.
  void on(const StageContext& context) override;

 private:
  bool counts_units() const noexcept { return !options_.unit.empty() && options_.units_per_sample == 0; }
  void count_step(const StageContext& context);
  void report(const StageContext& context, double samples_per_s);
  double counted_units(World& world);

  ThroughputMonitorOptions options_;
  std::optional<TrainState> before_{};  // at the last report, or after the first step; nullopt: before it
  bool has_counted_ = false;            // any rank, in any step
  at::Tensor units_{};                  // of this rank since then, 0-dim on the device; undefined: no step had a count
};

/// Load and memory, at each report, of all ranks: "memory_mib" (largest) and "cpu_percent" (largest; 100: one core,
/// since the last report) of the process. With a GPU "gpu_memory_mib" and "gpu_memory_peak_mib" (largest) of LibTorch's
/// tensors, and from the driver, where it tells them: "gpu_percent" (smallest; share of the time in which the GPU
/// computed, over the last second or less), "gpu_power_w" and "gpu_celsius" (largest).
class DeviceMonitor final : public Callback {
 public:
  DeviceMonitor();
  ~DeviceMonitor() override;

  std::string name() const override { return "device_monitor"; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::report; }
  bool is_light() const override { return true; }
  void on(const StageContext& context) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Which steps Profiler records, and what of them.
struct ProfilerOptions {
  std::int64_t skip_steps = 10;       ///< of this fit, before the first one that is recorded: they warm up
  std::int64_t steps = 5;             ///< number of steps that are recorded
  std::filesystem::path directory{};  ///< "": the run directory
  bool shapes = false;                ///< record the shapes of the operations' inputs
  bool memory = false;                ///< record allocations
  /// Of the callback. Two of them need two names and two directories, and record different steps.
  std::string name = "profiler";
};

/// Records the operations of some steps with LibTorch's profiler, on the CPU and on a GPU, in one file per rank:
/// trace-rank-0.json, for chrome://tracing or Perfetto. The ranges "data", "forward", "backward" and "optimizer" show
/// the phases of a step, "copy" a batch that is sent to a GPU, "communication" in a backward on a CPU the wait for the
/// gradients of the other ranks, "graph" a forward and backward that a CUDA graph replays, "step 12" the step as the
/// metrics count it. The first step has no "data": recording begins when its batch is there. Costs nothing in other
/// steps.
class Profiler final : public Callback {
 public:
  /// Throws: ConfigError.
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  std::string name() const override { return options_.name; }
  std::uint32_t stages() const override {
    return Stage::fit_start | Stage::step_start | Stage::step_end | Stage::exception | Stage::fit_end;
  }
  bool is_light() const override { return true; }
  void on(const StageContext& context) override;

 private:
  void start(const StageContext& context);
  void finish();

  ProfilerOptions options_;
  std::filesystem::path file_{};  // of this rank while it records
  std::int64_t first_ = 0;        // step at which it begins
  bool is_recording_ = false;
};

/// Parameters whose gradients are measured together.
struct GradientGroup {
  std::string name{};        ///< in the names of the metrics
  ParameterFilter select{};  ///< empty: all
};

/// Settings of GradientMonitor.
struct GradientMonitorOptions {
  std::int64_t every_steps = 100;         ///< steps between two measurements
  std::vector<GradientGroup> groups{};    ///< a parameter may be in several; empty: each parameter alone, by its name
  std::string name = "gradient_monitor";  ///< of the callback; two of them need two names, and groups of other names
};

/// Measures gradients: the mean over the global batch, before it is clipped, in the same way on all ranks. Every report
/// has the numbers of the last measured step: "grad_mean/<group>", and so grad_std (of all elements: the mean squared
/// distance from their mean is divided by their number), grad_min, grad_max and grad_norm (2-norm). Until then they are
/// on the device. A complex number counts as two. Optimizers with a closure are not measured.
class GradientMonitor final : public Callback {
 public:
  /// Throws: ConfigError (every_steps < 1; groups without a name or with the same one).
  explicit GradientMonitor(GradientMonitorOptions options = {});

  std::string name() const override { return options_.name; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::backward_end | Stage::report; }
  bool is_light() const override { return true; }
  /// Throws: ConfigError if a group selects no parameter.
  void on(const StageContext& context) override;
  NamedTensors save() const override;
  void load(const NamedTensors& state) override { measured_ = loaded_ = state; }

 private:
  struct Group {
    std::string name{};
    std::vector<at::Tensor> parameters{};
  };

  void begin(const StageContext& context);
  void measure(const StageContext& context);
  void log(const StageContext& context) const;

  GradientMonitorOptions options_;
  std::vector<Group> groups_{};
  std::int64_t step_ = 0;    // of the last measurement
  NamedTensors measured_{};  // by group: [5], float64
  NamedTensors loaded_{};    // from a checkpoint, for the next fit
};

/// Settings of HistogramMonitor.
struct HistogramMonitorOptions {
  std::int64_t every_reports = 1;          ///< reports between two histograms
  bool parameters = true;                  ///< "parameters/<name>"
  bool gradients = true;                   ///< "gradients/<name>": of the last step, after clipping
  std::string name = "histogram_monitor";  ///< of the callback; two of them need two names
};

/// Histograms of every trained parameter and its gradient for --report.tensorboard, at reports. Only the main rank
/// measures; all ranks have the same values. Changes nothing and adds nothing to a step.
class HistogramMonitor final : public Callback {
 public:
  /// Throws: ConfigError (every_reports < 1).
  explicit HistogramMonitor(HistogramMonitorOptions options = {});

  std::string name() const override { return options_.name; }
  std::uint32_t stages() const override { return Stage::fit_start | Stage::report; }
  bool is_light() const override { return true; }
  void on(const StageContext& context) override;

 private:
  HistogramMonitorOptions options_;
  std::int64_t reports_ = 0;  // of this fit, where only time makes them
};

}  // namespace lockstep
