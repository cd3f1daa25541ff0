// Runs that leave nothing behind: trials, range tests, measurements.
#pragma once

#include <lockstep/config/train_config.h>

namespace lockstep {

/// The run writes no file and reads no checkpoint.
void write_no_files(TrainConfig& config);

}  // namespace lockstep
