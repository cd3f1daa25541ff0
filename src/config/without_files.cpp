#include "config/without_files.h"

namespace lockstep {

bool writes_files(const TrainConfig& config) {
  const ReportConfig& report = config.report;
  return config.checkpoint.enabled || report.jsonl || report.csv || report.tensorboard || report.prometheus ||
         report.step_times || !report.command.empty() || report.record > 0;
}

void write_no_files(TrainConfig& config) {
  config.checkpoint.enabled = config.report.jsonl = config.report.csv = config.report.tensorboard = false;
  config.report.prometheus = config.report.step_times = false;
  config.report.command.clear();
  config.report.log_dir.clear();
  config.report.record = 0;
  config.resume = "never";
  config.fresh = false;
}

TrainConfig with_barebones(TrainConfig config) {
  if (config.barebones) {
    config.validate = {.every_epochs = 0};
    config.report.every_steps = 0;
    config.report.every_s = 0;
    config.report.epoch_means = false;
    config.report.progress = false;
    config.dist.check_replicas = false;
    // The monitor is refused as a contradiction, and init_weights may load a part of a model.
    config.checkpoint = {.monitor = config.checkpoint.monitor, .allow_partial = config.checkpoint.allow_partial};
    write_no_files(config);
  }
  return config;
}

}  // namespace lockstep
