#include "config/without_files.h"

namespace lockstep {

void write_no_files(TrainConfig& config) {
  config.checkpoint.enabled = config.report.jsonl = config.report.csv = config.report.tensorboard = false;
  config.report.prometheus = config.report.step_times = false;
  config.report.command.clear();
  config.report.log_dir.clear();
  config.report.record = 0;
  config.resume = "never";
  config.fresh = false;
}

}  // namespace lockstep
