#include "config/check_config.h"

#include <cmath>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>

#include "base/metric_prefixes.h"
#include "base/paths.h"
#include "base/run_pattern.h"
#include "base/text.h"
#include "config/field_value.h"
#include "config/name_template.h"
#include "config/shown_value.h"
#include "config/without_files.h"

namespace lockstep {
namespace {

class Checker {
 public:
  Checker(const TrainConfig& config, const std::map<std::string, std::string>& labels,
          const std::set<std::string, std::less<>>& unknown)
      : config_(config), labels_(labels), unknown_(unknown) {}

  std::vector<Problem> run() {
    check_ranges();
    check_devices();
    check_names();
    check_checkpoints();
    check_schedule();
    check_contradictions();
    return std::move(problems_);
  }

 private:
  /// A setting and its value.
  struct Given {
    template <class T>
    Given(std::string_view of, const T& value) : field(of), text(shown_value(to_text(value))) {}
    std::string_view field;
    std::string text;
  };

  std::string label(const Given& given) const {
    const auto found = labels_.find(std::string(given.field));
    return found != labels_.end() ? found->second
                                  : fmt::format("--{} {}", given.field, given.text.empty() ? "\"\"" : given.text);
  }

  template <class T>
  std::string label(std::string_view field, const T& value) const {
    return label(Given(field, value));
  }

  /// Refuses two settings that contradict each other.
  void refuse(const Given& one, const Given& other, const std::string& why, std::string hint) {
    if (!unknown_.contains(one.field) && !unknown_.contains(other.field)) {
      refuse(fmt::format("{} with {}: {}", label(one), label(other), why), std::move(hint));
    }
  }

  void refuse(const std::string& what, std::string hint) { problems_.push_back({what, std::move(hint)}); }

  void check_ranges() {
    visit_fields(config_, [this](const FieldInfo& info, const auto& value) {
      if (const Refusal refusal = check_range(info, value)) {
        refuse(fmt::format("{}: {}", label(info.name, value), refusal->what),
               fmt::format("{}: {}", info.name, info.help));
      }
    });
  }

  void check_devices() {
    using Kind = DeviceSpec::Kind;
    const DeviceSpec& devices = config_.devices;
    for (const Problem& problem : devices.problems()) {
      // The problem begins with "--devices <text>"; replace it if the value came from elsewhere.
      const std::string shown = devices.text().empty() ? "\"\"" : shown_value(devices.text());
      const auto prefix = fmt::format("--devices {}", shown).size();
      const auto found = labels_.find("devices");
      refuse(found == labels_.end() ? problem.what : found->second + problem.what.substr(prefix), problem.hint);
    }
    if (!devices.problems().empty()) {
      return;
    }
    const bool names_gpus = devices.kind() == Kind::indices || devices.kind() == Kind::all ||
                            devices.kind() == Kind::usable || devices.kind() == Kind::most_free;
    const Given asked("devices", devices);
    const Given setup("compute_setup", config_.compute_setup);
    if (config_.compute_setup == ComputeSetup::cpu && names_gpus) {
      refuse(asked, setup, "these devices are GPUs",
             "use --compute_setup gpu, or a number such as --devices 2 for two CPU ranks");
    }
    if (config_.compute_setup == ComputeSetup::gpu && devices.kind() == Kind::cpu) {
      refuse(asked, setup, "the CPU is not a GPU", "use --compute_setup cpu, or --devices auto");
    }
    if (config_.backend == Backend::nccl) {
      if (config_.compute_setup == ComputeSetup::cpu) {
        refuse_nccl(setup);
      } else if (devices.kind() == Kind::cpu && config_.compute_setup == ComputeSetup::automatic) {
        refuse_nccl(asked);
      }
    }
  }

  void refuse_nccl(const Given& cpu) {
    refuse({"backend", config_.backend}, cpu, "NCCL needs GPUs", "use --backend gloo (or auto) on the CPU");
  }

  void check_names() {
    const std::string& name = config_.run_name;
    constexpr std::size_t kLongest = 200;  // bytes; a directory that --fresh renames has a longer name
    const bool only_blanks = !name.empty() && trim(name).empty();
    if (only_blanks || name == "." || name == ".." || name.find('/') != std::string::npos || printable(name) != name) {
      refuse(fmt::format("{}: expected the name of one directory", label("run_name", name)),
             "use letters, digits, - and _; a path is for --run_dir");
    } else if (name.size() > kLongest) {
      refuse(fmt::format("{}: has {} bytes, the limit is {}", label("run_name", name), name.size(), kLongest),
             "use a shorter name");
    }
    if (!config_.run_dir.empty() && (trim(config_.run_dir).empty() || printable(config_.run_dir) != config_.run_dir)) {
      refuse(fmt::format("{}: expected a directory", label("run_dir", config_.run_dir)),
             "use for example runs/first; a name is UTF-8 and has no control characters");
    }
    check_pattern("run_dir", config_.run_dir);
    check_pattern("run_name", name);
    if (trim(config_.resume).empty()) {
      refuse(fmt::format("{}: expected auto, never, last, best or a directory", label("resume", config_.resume)),
             "use --resume auto to continue an earlier run if there is one");
    } else if (const std::string word = to_lower(config_.resume); word != config_.resume && resumes_itself(word)) {
      refuse(fmt::format("{}: expected lower case", label("resume", config_.resume)),
             fmt::format("use {} (or ./{} for a directory)", word, config_.resume));
    }
  }

  void check_pattern(std::string_view setting, const std::string& directory) {
    if (const auto fault = find_pattern_fault(directory)) {
      refuse(fmt::format("{}: {}", label(setting, directory), *fault),
             "use for example runs/{n} for a number, or runs/{time}, so that each start begins a run of its own");
    } else if (config_.fresh && parse_run_pattern(directory)) {
      refuse(fmt::format("--fresh true with {}: each start begins a run of its own already", label(setting, directory)),
             "leave out --fresh");
    } else if (config_.checkpoint.per_node && parse_run_pattern(directory)) {
      // Rank 0 chooses the directory by what is on its disk, which may be new.
      refuse({"checkpoint.per_node", config_.checkpoint.per_node}, {setting, directory},
             "the nodes may have different runs", "name a directory, for example --run_dir runs/first");
    }
  }

  void check_checkpoints() {
    const CheckpointConfig& c = config_.checkpoint;
    if (const auto fault = find_name_fault(c.name)) {
      refuse(fmt::format("{}: {}", label("checkpoint.name", c.name), *fault),
             "use for example epoch{epoch}-{val_loss:.3f}");
    }
  }

  void check_schedule() {
    const LrSchedule& schedule = config_.optim.schedule;
    for (const Problem& problem : schedule.problems()) {
      refuse(fmt::format("{}: {}", label("optim.schedule", schedule), problem.what), problem.hint);
    }
  }

  void check_contradictions() {
    check_limits();
    check_steps_of_an_epoch();
    check_begin();
    check_clipping();
    check_metrics_that_decide();
    check_barebones();
    check_modes();
    check_dist();
    check_weights_only();
    check_requeue();
    check_resume();
    check_spikes();
    check_logs();
  }

  void check_limits() {
    const TrainConfig& c = config_;
    if (c.max_epochs == 0 && c.max_steps == 0 && c.max_time_s == 0) {
      refuse({"max_epochs", c.max_epochs}, {"max_steps", c.max_steps}, "the run would never end",
             "set a limit, for example --max_epochs 1, or --max_time_s 1h");
    }
    if (c.max_steps > 0 && c.min_steps > c.max_steps) {
      refuse({"min_steps", c.min_steps}, {"max_steps", c.max_steps}, "the run ends earlier",
             "the minimum is at most the maximum");
    }
    if (c.max_epochs > 0 && c.min_epochs > c.max_epochs) {
      refuse({"min_epochs", c.min_epochs}, {"max_epochs", c.max_epochs}, "the run ends earlier",
             "the minimum is at most the maximum");
    }
  }

  void check_steps_of_an_epoch() {
    const TrainConfig& c = config_;
    if (const double epochs = c.validate.every_epochs; epochs > 1 && epochs != std::floor(epochs)) {
      refuse(fmt::format("{}: expected a whole number, or a part of an epoch such as 0.25",
                         label("validate.every_epochs", epochs)),
             "for any number of steps use --validate.every_steps");
    }
    if (const StepCount steps = c.data.steps_per_epoch;
        c.data.min_steps_per_epoch > 0 && !steps.is_all() && !steps.is_part()) {
      refuse({"data.min_steps_per_epoch", c.data.min_steps_per_epoch}, {"data.steps_per_epoch", steps},
             "each epoch has the given number of steps", "remove one of them; a part such as 10% may have a minimum");
    }
  }

  void check_begin() {
    const TrainConfig& c = config_;
    if (c.fresh && (c.resume == "last" || c.resume == "best")) {
      refuse({"fresh", c.fresh}, {"resume", c.resume}, "a fresh run cannot resume", "remove one of them");
    }
    if (c.resume == "best" && c.checkpoint.monitor.empty()) {
      refuse({"resume", c.resume}, {"checkpoint.monitor", c.checkpoint.monitor},
             "there is no metric that defines the best checkpoint",
             "set the metric, for example --checkpoint.monitor val_loss");
    }
    if (!c.init_weights.empty() && !resumes_itself(c.resume)) {
      refuse({"init_weights", c.init_weights}, {"resume", c.resume}, "both say with which weights the run begins",
             "remove one of them; a resumed run also continues with the optimizers and the place in the data");
    }
  }

  void check_clipping() {
    const TrainConfig& c = config_;
    if (c.optim.max_grad_norm > 0 && c.optim.max_grad_value > 0) {
      refuse({"optim.max_grad_norm", c.optim.max_grad_norm}, {"optim.max_grad_value", c.optim.max_grad_value},
             "gradients are clipped in one way", "remove one of them");
    }
  }

  void check_metrics_that_decide() {
    const TrainConfig& c = config_;
    check_that_it_is_measured("plateau.metric", c.plateau.metric);
    check_that_it_is_measured("early_stop.metric", c.early_stop.metric);
    if (!(c.plateau.factor > 0 && c.plateau.factor < 1)) {
      refuse(fmt::format("{}: expected a number between 0 and 1", label("plateau.factor", c.plateau.factor)),
             "the learning rates are multiplied by it");
    }
  }

  void check_modes() {
    const TrainConfig& c = config_;
    if (c.optim.stochastic_rounding && (c.precision == Precision::fp64 || c.precision == Precision::fp16)) {
      refuse({"optim.stochastic_rounding", c.optim.stochastic_rounding}, {"precision", c.precision},
             "it is for updates of bfloat16 parameters", "remove it, or use --precision bf16");
    }
    if (c.benchmark && c.deterministic != Determinism::off) {
      refuse({"benchmark", c.benchmark}, {"deterministic", c.deterministic},
             "the fastest algorithm may be another one in each run", "remove one of them");
    }
    if (c.cuda_graphs && c.detect_anomaly) {
      refuse({"cuda_graphs", c.cuda_graphs}, {"detect_anomaly", c.detect_anomaly},
             "a graph does not look at the values of its operations", "remove one of them");
    }
  }

  void check_dist() {
    const TrainConfig& c = config_;
    if (c.dist.heartbeat_timeout_s > 0 && c.dist.heartbeat_timeout_s < 2) {
      refuse(fmt::format("{}: expected 0, or 2 or more", label("dist.heartbeat_timeout_s", c.dist.heartbeat_timeout_s)),
             "each machine sends a heartbeat every second");
    }
    if (c.dist.find_unused_parameters && c.dist.static_graph) {
      refuse({"dist.find_unused_parameters", c.dist.find_unused_parameters}, {"dist.static_graph", c.dist.static_graph},
             "a static graph does not change its unused parameters",
             "remove one of them; static_graph alone also allows parameters that are never used");
    }
  }

  // Metrics come from reports, from the means of epochs, or from validations.
  void check_that_it_is_measured(const char* field, const std::string& metric) {
    const TrainConfig& c = config_;
    const bool of_epoch = c.report.epoch_means && metric.starts_with(kEpochPrefix);
    if (!metric.empty() && !metric.starts_with(kValidationPrefix) && !of_epoch && c.report.every_steps == 0 &&
        c.fast_dev_run == 0) {
      refuse({field, metric}, {"report.every_steps", c.report.every_steps},
             c.report.every_s > 0 ? "reports by time decide nothing" : "the metric is never measured",
             "report in between, for example --report.every_steps 20");
    }
    const ValidateConfig& validate = c.validate;
    if (metric.starts_with(kValidationPrefix) && validate.every_s > 0 && validate.every_epochs == 0 &&
        validate.every_steps == 0 && c.fast_dev_run == 0) {
      refuse({field, metric}, {"validate.every_s", validate.every_s}, "validations by time decide nothing",
             "validate in between, for example --validate.every_epochs 1");
    }
  }

  // A run that starts again continues from its newest checkpoint, which needs the state of the optimizers.
  void check_weights_only() {
    const TrainConfig& c = config_;
    if (!c.checkpoint.weights_only) {
      return;
    }
    const auto refuse_with = [&](const Given& other) {
      refuse({"checkpoint.weights_only", c.checkpoint.weights_only}, other,
             "a run cannot continue from checkpoints that hold only weights", "remove one of them");
    };
    if (c.dist.max_restarts > 0) {
      refuse_with({"dist.max_restarts", c.dist.max_restarts});
    }
    if (c.dist.requeue) {
      refuse_with({"dist.requeue", c.dist.requeue});
    }
    if (c.memory.halve_batch) {
      refuse_with({"memory.halve_batch", c.memory.halve_batch});
    }
  }

  // A job that is queued again would start over each time.
  void check_requeue() {
    const TrainConfig& c = config_;
    const auto refuse_with = [&](bool is_set, const Given& other) {
      if (c.dist.requeue && is_set) {
        refuse({"dist.requeue", c.dist.requeue}, other, "a run without checkpoints cannot continue",
               "remove one of them");
      }
    };
    refuse_with(!c.checkpoint.enabled, {"checkpoint.enabled", c.checkpoint.enabled});
    refuse_with(c.fast_dev_run > 0, {"fast_dev_run", c.fast_dev_run});
    refuse_with(c.barebones, {"barebones", c.barebones});
  }

  // Without checkpoints a run does not look for one either.
  void check_resume() {
    const TrainConfig& c = config_;
    if (c.resume == "auto" || c.resume == "never") {
      return;
    }
    const auto refuse_with = [&](bool is_set, const Given& other) {
      if (is_set) {
        refuse({"resume", c.resume}, other, "a run without checkpoints cannot resume",
               "remove one of them; --init_weights PATH begins with the weights of a file");
      }
    };
    refuse_with(!c.checkpoint.enabled, {"checkpoint.enabled", c.checkpoint.enabled});
    refuse_with(c.fast_dev_run > 0, {"fast_dev_run", c.fast_dev_run});
    refuse_with(c.barebones, {"barebones", c.barebones});
  }

  void check_spikes() {
    const TrainConfig& c = config_;
    if (c.spike.z_score == 0) {
      return;
    }
    if (c.spike.policy == SpikePolicy::lower_lr && c.report.every_steps == 0) {
      refuse({"spike.policy", c.spike.policy}, {"report.every_steps", c.report.every_steps},
             "learning rates are lowered at reports", "report in between, for example --report.every_steps 20");
    }
  }

  // The launcher opens the logs before a rank renames the old run.
  void check_logs() {
    const TrainConfig& c = config_;
    const std::string& logs = c.report.log_dir;
    if (c.fresh && !logs.empty() && is_inside(logs, run_directory(c))) {
      refuse({"report.log_dir", logs}, c.run_dir.empty() ? Given("run_name", c.run_name) : Given("run_dir", c.run_dir),
             "--fresh renames this run, and the new logs would go with the old one",
             "use a directory that is not in that of the run, for example --report.log_dir logs");
    }
  }

  // A run that reports nothing cannot decide by what it reports.
  void check_barebones() {
    const TrainConfig& c = config_;
    if (!c.barebones) {
      return;
    }
    visit_excluded_by_barebones(c, [&](const char* name, const auto& value, const auto& off) {
      if (value != off) {
        refuse({"barebones", c.barebones}, {name, value}, "such a run neither reports, validates nor saves",
               "remove one of them");
      }
    });
  }

  const TrainConfig& config_;
  const std::map<std::string, std::string>& labels_;
  const std::set<std::string, std::less<>>& unknown_;
  std::vector<Problem> problems_{};
};

}  // namespace

bool resumes_itself(std::string_view resume) {
  return resume == "auto" || resume == "never" || resume == "last" || resume == "best";
}

std::vector<Problem> check_config(const TrainConfig& config, const std::map<std::string, std::string>& labels,
                                  const std::set<std::string, std::less<>>& unknown) {
  return Checker(config, labels, unknown).run();
}

std::vector<Problem> check_config(const TrainConfig& config) { return check_config(config, {}, {}); }

}  // namespace lockstep
