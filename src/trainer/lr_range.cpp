#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/trainer/lr_range.h>
#include <lockstep/trainer/trainer.h>

#include "base/option_check.h"
#include "base/text.h"
#include "config/without_files.h"
#include "report/curve_picture.h"
#include "trainer/in_precision.h"
#include "trainer/kept_state.h"
#include "trainer/run_checkpoints.h"
#include "trainer/times_count.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

void check_range_options(const LrRangeOptions& options) {
  OptionCheck("find_lr")
      .expect("min_lr", options.min_lr, options.min_lr > 0, "a number above 0")
      .expect("max_lr", options.max_lr, options.max_lr > options.min_lr, "more than min_lr")
      .expect("steps", options.steps, options.steps >= 2, "2 or more")
      .expect_share("smoothing", options.smoothing)
      .expect("stop_factor", options.stop_factor, options.stop_factor == 0 || options.stop_factor > 1,
              "0, or more than 1")
      .throw_problems();
}

/// The rate of a step, as a part of max_lr.
double factor_of(const LrRangeOptions& options, std::int64_t step) {
  const double done = static_cast<double>(step) / static_cast<double>(options.steps - 1);
  return std::pow(options.min_lr / options.max_lr, 1 - done);
}

/// A short training whose rate grows, and which leaves no files.
Plan plan_of_range(Plan plan, const LrRangeOptions& options) {
  TrainConfig& config = plan.config;
  config.max_epochs = config.min_epochs = config.min_steps = 0;
  config.max_steps = options.steps;
  config.max_time_s = 0;
  config.optim.lr = options.max_lr;
  config.optim.lr_scaling = LrScaling::none;
  config.optim.non_finite = NonFinitePolicy::warn;
  config.spike = {};
  config.plateau = {};
  config.early_stop = {};
  config.checkpoint.monitor.clear();
  config.report.every_steps = 0;
  config.report.every_s = 0;
  write_no_files(config);
  config.optim.schedule =
      LrSchedule("range test", [options](const ScheduleStep& at) { return factor_of(options, at.step); });
  return plan;
}

/// The task without the schedules of its groups, which would replace that of the test.
class RangeTask final : public Task {
 public:
  explicit RangeTask(Task& task) : task_(task) {}

  torch::nn::Module& module() override { return task_.module(); }
  std::vector<OptimizerSpec> optimizers() override {
    std::vector<OptimizerSpec> optimizers = task_.optimizers();
    for (OptimizerSpec& optimizer : optimizers) {
      for (GroupSpec& group : optimizer.groups) {
        group.schedule = {};
      }
    }
    return optimizers;
  }
  StepOutput training_step(const Batch& batch) override { return task_.training_step(batch); }
  std::vector<metrics::NamedMetric> metrics() override { return task_.metrics(); }
  void optimize(Step& step) override { task_.optimize(step); }

 private:
  Task& task_;
};

constexpr std::size_t kFewest = 10;  // losses: the average or the slope of fewer is mostly that of their noise

class RangeRecorder final : public Callback {
 public:
  /// `losses`: of the steps, not averaged.
  RangeRecorder(const LrRangeOptions& options, LrRange& range, std::vector<double>& losses)
      : options_(options), range_(range), losses_(losses) {}

  std::string name() const override { return "lr_range"; }
  std::uint32_t stages() const override { return Stage::step_start | Stage::step_end; }
  bool is_light() const override { return true; }

  void on(const StageContext& context) override {
    if (context.stage == Stage::step_start) {
      samples_ = context.batches->local_samples;
      return;
    }
    const double loss = mean_loss(context);
    sum_ = options_.smoothing * sum_ + (1 - options_.smoothing) * loss;
    weight_ = options_.smoothing * weight_ + (1 - options_.smoothing);
    // That of --optim.lr: context.step.lr is that of the first group, which may have a rate of its own.
    range_.lrs.push_back(options_.max_lr * factor_of(options_, context.state.step - 1));
    range_.losses.push_back(sum_ / weight_);
    losses_.push_back(loss);
    if (!std::isfinite(loss) || diverges()) {
      context.control.request_stop("the loss grows");
    }
  }

 private:
  bool diverges() {
    if (losses_.size() < kFewest) {
      return false;
    }
    smallest_ = std::min(smallest_, range_.losses.back());
    return options_.stop_factor > 0 && range_.losses.back() > options_.stop_factor * smallest_;
  }

  /// Over all ranks, weighted by their counts or samples.
  double mean_loss(const StageContext& context) const {
    const c10::NoGradGuard no_grad;
    const at::Tensor sums = at::zeros({2}, at::device(context.world.device()).dtype(at::kDouble));
    const StepResult& step = context.step;
    if (step.count.defined()) {
      sums[0] = times_count(step.loss, step.count);
      sums[1] = step.count;
    } else if (step.loss.defined()) {
      sums[0] = step.loss.detach().to(at::kDouble) * samples_;
      sums[1] = samples_;
    }
    context.world.all_reduce(sums, Reduce::sum);
    const at::Tensor host = WorldAccess::on_host(context.world, sums);
    return host[0].item<double>() / host[1].item<double>();
  }

  const LrRangeOptions options_;
  LrRange& range_;
  std::vector<double>& losses_;
  std::int64_t samples_ = 0;  // of this rank in this step
  double sum_ = 0;
  double weight_ = 0;
  double smallest_ = std::numeric_limits<double>::infinity();
};

struct Slope {
  double value = 0;  // per step: the logarithm of the rate grows evenly
  double error = 0;  // standard error
};

/// By least squares.
Slope slope_of(std::span<const double> losses) {
  const auto count = static_cast<double>(losses.size());
  const auto each = [&](const auto& visit) {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      visit(static_cast<double>(i) - (count - 1) / 2, losses[i] - losses.front());
    }
  };
  double mean = 0;
  double squares = 0;
  double products = 0;
  each([&](double x, double y) {
    mean += y / count;
    squares += x * x;
    products += x * y;
  });
  const double slope = products / squares;
  double residuals = 0;
  each([&](double x, double y) { residuals += std::pow(y - mean - slope * x, 2); });
  return {.value = slope, .error = std::sqrt(residuals / (count - 2) / squares)};
}

/// The middle of the steps in which the losses fall fastest, of those until the average is smallest: behind it they
/// grow. Losses that only vary fall by 3.5 standard errors somewhere in 1 to 2 of 100 tests.
std::optional<double> steepest(const LrRange& range, std::span<const double> losses, std::int64_t steps) {
  constexpr double kClear = 3.5;
  const std::size_t window = std::max(kFewest, static_cast<std::size_t>(steps) / 3);
  if (losses.size() < kFewest) {
    return std::nullopt;
  }
  const auto smallest = std::min_element(range.losses.begin() + kFewest - 1, range.losses.end());
  const auto end = static_cast<std::size_t>(smallest - range.losses.begin()) + 1;
  double fastest = 0;
  std::optional<double> lr;
  for (std::size_t i = 0; i + window <= end; ++i) {
    const Slope slope = slope_of(losses.subspan(i, window));
    if (slope.value < fastest && slope.value < -kClear * slope.error) {
      fastest = slope.value;
      lr = range.lrs[i + window / 2];
    }
  }
  return lr;
}

}  // namespace

LrRange find_lr(const Plan& plan, World& world, Task& task, BatchSource& train, const LrRangeOptions& options) {
  check_range_options(options);
  place_module(task.module(), world.device(), plan.config);  // as the training below does
  const LoaderPosition position = train.position();
  LrRange range;
  Plan of_range = plan_of_range(plan, options);
  if (!plan.config.init_weights.empty() && would_resume(plan, world)) {
    of_range.config.init_weights.clear();  // they may be gone
  }
  Trainer trainer(of_range, world, TrainControl());
  std::vector<double> losses;
  trainer.add(std::make_shared<RangeRecorder>(options, range, losses));
  RangeTask range_task(task);
  with_state_kept(task.module(), world.device(), [&] { trainer.fit(range_task, train); });
  train.seek(position);
  range.suggestion = steepest(range, losses, options.steps);
  if (!range.suggestion && world.is_main()) {
    log_warning(fmt::format(
        "find_lr: no learning rate is suggested: the loss of {} does not fall clearly more than it varies from step to "
        "step; use other limits, more steps, or a larger batch",
        counted(std::ssize(range.losses), "step")));
  }
  return range;
}

void write_svg(const LrRange& range, const std::filesystem::path& file) {
  write_file(real_file_system(), file,
             svg_of({.x = range.lrs,
                     .y = range.losses,
                     .x_name = "learning rate",
                     .y_name = "loss",
                     .marked_x = range.suggestion}));
}

void write_csv(const LrRange& range, const std::filesystem::path& file) {
  std::string text = "lr,loss\n";
  for (std::size_t i = 0; i < range.lrs.size(); ++i) {
    text += fmt::format("{},{}\n", range.lrs[i], range.losses[i]);
  }
  write_file(real_file_system(), file, text);
}

}  // namespace lockstep
