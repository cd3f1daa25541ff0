// Names in a run directory. Torch-free.
#pragma once

namespace lockstep {

inline constexpr const char* kRunRecordName = "run.json";
inline constexpr const char* kBatchLimitName = "batch_limit.json";
inline constexpr const char* kSettingsName = "config.toml";
inline constexpr const char* kEventsName = "events.jsonl";
inline constexpr const char* kMetricLinesName = "metrics.jsonl";
inline constexpr const char* kMetricTableName = "metrics.csv";
inline constexpr const char* kCheckpointsName = "checkpoints";
/// The lock of a run directory, and of its checkpoints.
inline constexpr const char* kLockName = ".lock";
/// Of the names of the checkpoints there.
inline constexpr const char* kStepPrefix = "step-";

}  // namespace lockstep
