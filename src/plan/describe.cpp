#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <lockstep/plan/plan.h>

#include "base/duration.h"
#include "base/text.h"
#include "config/field_value.h"
#include "environment/build_info.h"
#include "plan/batch_limit.h"

namespace lockstep {
namespace {

/// "2 x NVIDIA H200 (139.8 GiB), cuda:0-1": adjacent devices of the same kind form one entry.
std::string gpu_text(const Plan& plan) {
  std::vector<std::string> groups;
  const auto& devices = plan.local_devices;
  for (std::size_t first = 0, end = 0; first < devices.size(); first = end) {
    const std::string device = device_with_memory(devices[first]);
    std::vector<int> indices;
    for (; end < devices.size() && device_with_memory(devices[end]) == device; ++end) {
      indices.push_back(devices[end].id.index);
    }
    const std::size_t members = indices.size();
    indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    groups.push_back(
        fmt::format("{}{}, cuda:{}", members > 1 ? fmt::format("{} x ", members) : "", device, format_ranges(indices)));
  }
  return join(groups, "; ");
}

std::string device_text(const Plan& plan) {
  const std::string devices = plan.gpu()                    ? gpu_text(plan)
                              : plan.local_world_size() > 1 ? counted(plan.local_world_size(), "CPU rank")
                                                            : "CPU";
  return plan.nodes > 1 ? fmt::format("{} on this node, {} nodes", devices, plan.nodes) : devices;
}

std::string limit_text(const TrainConfig& config) {
  std::vector<std::string> limits;
  if (config.max_epochs > 0) {
    limits.push_back(counted(config.max_epochs, "epoch"));
  }
  if (config.max_steps > 0) {
    limits.push_back(counted(config.max_steps, "step"));
  }
  if (config.max_time_s > 0) {
    limits.push_back(human_duration(config.max_time_s) + " of training");
  }
  return limits.empty() ? "none: until stopped" : join_or(limits) + (limits.size() > 1 ? ", whichever ends first" : "");
}

std::string job_end_text(const Plan& plan) {
  if (!plan.facts.job_end) {
    return {};
  }
  return fmt::format(", stopping before the job ends in {}",
                     human_duration(std::max(seconds_until(*plan.facts.job_end), 0.0)));
}

std::string precision_text(const TrainConfig& config) {
  std::string text = to_text(config.precision);
  if (config.matmul_precision != MatmulPrecision::highest) {
    text += fmt::format(", matrix products {}", to_text(config.matmul_precision));
  }
  if (config.deterministic != Determinism::off) {
    text += fmt::format(", deterministic {}", to_text(config.deterministic));
  }
  return text;
}

/// ", scaled by sqrt(global batch / 256)"
std::string scaling_text(LrScaling scaling, std::int64_t batch_size) {
  switch (scaling) {
    case LrScaling::none:
      break;
    case LrScaling::linear:
      return fmt::format(", scaled by global batch / {}", batch_size);
    case LrScaling::sqrt:
      return fmt::format(", scaled by sqrt(global batch / {})", batch_size);
  }
  return {};
}

std::string optimizer_text(const OptimConfig& optim) {
  const std::string lr = optim.lr > 0 ? fmt::format("learning rate {}", optim.lr) : "learning rate of the program";
  std::string text = lr + scaling_text(optim.lr_scaling, optim.lr_batch_size);
  if (optim.loss_scaling != LrScaling::none) {
    text += ", loss" + scaling_text(optim.loss_scaling, optim.lr_batch_size).substr(1);
  }
  if (optim.max_grad_norm > 0) {
    text += fmt::format(", gradient norm at most {}", optim.max_grad_norm);
  }
  if (optim.max_grad_value > 0) {
    text += fmt::format(", gradient elements at most {}", optim.max_grad_value);
  }
  return text;
}

/// "50 steps", "10% of all steps"
std::string steps_text(StepCount steps) {
  return steps.is_all()    ? ""
         : steps.is_part() ? fmt::format("{} of all steps", to_text(steps))
                           : counted(steps.number(), "step");
}

/// ", 50 steps"
std::string after_comma(const std::string& text) { return text.empty() ? "" : ", " + text; }

/// "the first 50 steps", "the first 10% of all steps"
std::string first_steps_text(StepCount steps) {
  const std::string text = steps_text(steps);
  return text.empty() ? "" : "the first " + text;
}

/// ", 50 steps per epoch", ", at least 200 steps per epoch"
std::string epoch_length_text(const DataConfig& data) {
  std::string text = after_comma(steps_text(data.steps_per_epoch));
  if (data.min_steps_per_epoch > 0) {
    text += ", at least " + counted(data.min_steps_per_epoch, "step");
  }
  return text.empty() ? "" : text + " per epoch";
}

std::string data_text(const LoaderPlan& loader) {
  const DataConfig& data = loader.data;
  return fmt::format("{} order{}{}{}, {}", loader.sampler.order == SampleOrder::keyed ? "keyed" : "PyTorch's",
                     loader.sampler.shuffle ? ", shuffled" : "", loader.sampler.drop_last ? ", last step dropped" : "",
                     epoch_length_text(data),
                     data.workers == 0 ? "built in the training thread"
                                       : fmt::format("{} per rank, {} ahead", counted(data.workers, "worker"),
                                                     counted(data.prefetch, "step")));
}

/// "every epoch and every 500 steps"
std::string interval_text(double every_epochs, std::int64_t every_steps, double every_s) {
  std::vector<std::string> parts;
  const auto add = [&](std::int64_t every, const char* noun) {
    if (every > 0) {
      parts.push_back(every == 1 ? fmt::format("every {}", noun) : fmt::format("every {}", counted(every, noun)));
    }
  };
  if (every_epochs > 0 && every_epochs < 1) {
    parts.push_back(fmt::format("every {} epochs", every_epochs));
  }
  add(static_cast<std::int64_t>(every_epochs), "epoch");
  add(every_steps, "step");
  if (every_s > 0) {
    parts.push_back("every " + human_duration(every_s));
  }
  return join(parts, " and ");
}

std::string validation_text(const ValidateConfig& validate) {
  const std::string when = interval_text(validate.every_epochs, validate.every_steps, validate.every_s);
  if (when.empty()) {
    return "never";
  }
  return fmt::format("{}{}, if fit() gets validation data", when, after_comma(steps_text(validate.max_batches)));
}

/// "val_loss (min)"
std::string metric_text(const std::string& metric, MonitorMode mode) {
  return fmt::format("{} ({})", metric, to_text(mode));
}

std::string early_stop_text(const EarlyStopConfig& early_stop) {
  return early_stop.metric.empty()
             ? ""
             : fmt::format("after {} of {} without an improvement", counted(early_stop.patience, "measurement"),
                           metric_text(early_stop.metric, early_stop.mode));
}

std::string checkpoint_text(const TrainConfig& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (!checkpoint.enabled) {
    return "off";
  }
  const std::string when =
      interval_text(static_cast<double>(checkpoint.every_epochs), checkpoint.every_steps, checkpoint.every_s);
  std::string kept = checkpoint.keep_all ? "all" : fmt::format("last {}", checkpoint.keep_last);
  if (!checkpoint.monitor.empty()) {
    kept += fmt::format("{} the best {} by {}", checkpoint.keep_all ? ", with" : " and", checkpoint.keep_best,
                        metric_text(checkpoint.monitor, checkpoint.mode));
  }
  return fmt::format("{}at the end, {} kept", when.empty() ? "" : when + " and ", kept);
}

std::string resume_text(const TrainConfig& config) {
  return !config.checkpoint.enabled ? "" : config.fresh ? "starting over (--fresh)" : config.resume;
}

}  // namespace

std::string describe(const Plan& plan) {
  const TrainConfig& config = plan.config;
  const std::vector<std::pair<std::string, std::string>> rows{
      {"launch", plan.launch},
      {"host", plan.host},
      {"devices", device_text(plan)},
      {"backend", plan.world_size == 1 ? "none (one rank)" : to_text(config.backend)},
      {"precision", precision_text(config)},
      {"seed", fmt::to_string(config.seed)},
      {"batch", plan.loader.batch.explanation},
      {"limits", limit_text(config) + job_end_text(plan)},
      {"optimizer", optimizer_text(config.optim)},
      {"schedule", config.optim.schedule.is_set() ? config.optim.schedule.text() : "schedule of the program"},
      {"data", data_text(plan.loader)},
      {"validation", validation_text(config.validate)},
      {"test", first_steps_text(config.test.max_batches)},
      {"prediction", first_steps_text(config.predict.max_batches)},
      {"early stop", early_stop_text(config.early_stop)},
      {"checkpoints", checkpoint_text(config)},
      {"resume", resume_text(config)},
      {"run", config.run_dir},
      {"threads",
       fmt::format("{} per rank{}", plan.threads_per_rank, plan.threads_are_given ? " (OMP_NUM_THREADS)" : "")},
      {"build", build_text()},
  };
  std::string text;
  for (const auto& [name, value] : rows) {
    if (!value.empty()) {
      text += fmt::format("{:<13}{}\n", name, value);
    }
  }
  for (const std::string& warning : plan.warnings) {
    text += fmt::format("warning: {}\n", warning);
  }
  for (const std::string& note : plan.notes) {
    text += fmt::format("note: {}\n", note);
  }
  return text;
}

}  // namespace lockstep
