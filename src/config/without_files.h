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

}  // namespace lockstep
