// Runs that leave nothing behind, such as trials, range tests and measurements, and others.
#pragma once

#include <lockstep/config/train_config.h>

namespace lockstep {

/// Whether the run writes into its directory, which then has one owner.
bool writes_files(const TrainConfig& config);

/// The run writes no file and reads no checkpoint.
void write_no_files(TrainConfig& config);

/// With `barebones`: what is left is the work of the steps, and the report at the end of the run.
TrainConfig with_barebones(TrainConfig config);

/// Calls `visit(name, value, off)` for each setting that `barebones` excludes: a decision by what a run reports, or a
/// restart from what it saves. `dist.requeue` is not among them: it contradicts every run without checkpoints.
template <class Config, class Visit>
void visit_excluded_by_barebones(Config& config, const Visit& visit) {
  const TrainConfig off;
  visit("fast_dev_run", config.fast_dev_run, off.fast_dev_run);
  visit("spike.z_score", config.spike.z_score, off.spike.z_score);
  visit("plateau.metric", config.plateau.metric, off.plateau.metric);
  visit("early_stop.metric", config.early_stop.metric, off.early_stop.metric);
  visit("checkpoint.monitor", config.checkpoint.monitor, off.checkpoint.monitor);
  visit("dist.max_restarts", config.dist.max_restarts, off.dist.max_restarts);
}

}  // namespace lockstep
