// What the files of a run directory say about a run: for `lockstep list`, `report` and `top`. Reading changes nothing
// in the directory, so a run can be read while it trains. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "report/metric_rows.h"
#include "storage/checkpoint_files.h"

namespace lockstep {

enum class RunState {
  running,   ///< a process holds the lock of the directory
  finished,  ///< the last training came to its end, or the program ended it
  stopped,   ///< saved on request; the same command continues
  failed,    ///< it failed, or ended without its last event, as after SIGKILL or a power loss
  unknown,   ///< the last start has written no event
};
std::string_view to_string(RunState state) noexcept;

/// One line of events.jsonl.
struct RunEvent {
  double time = 0;  ///< in seconds since 1970
  std::string name{};
  std::optional<std::int64_t> step{};
  Json fields{};  ///< the others, without "v"
};

/// Only committed checkpoints with a valid manifest; their files are not read.
struct RunCheckpointFacts {
  std::vector<std::int64_t> steps{};  ///< ascending
  std::int64_t bytes = 0;             ///< of all of them
  std::string monitor{};              ///< the metric that decides which one is best; "": none
  std::optional<std::int64_t> best{};
  double best_value = 0;
};

using Texts = std::vector<std::pair<std::string, std::string>>;

struct RunData {
  std::filesystem::path directory{};
  std::string name{};
  RunState state = RunState::unknown;
  std::string why{};               ///< of the end or the failure; "": none is known
  std::int64_t last_step = 0;      ///< of rows, checkpoints, and the events since the last start
  std::int64_t planned_steps = 0;  ///< as the last start or a later checkpoint says; 0: not known
  std::optional<double> epoch{};   ///< the last one that was reported
  double step_s = 0;               ///< mean time of a step in the last rows since the last start; 0: not known
  double started = 0;              ///< the first event; 0: not known
  double last_activity = 0;        ///< the last event or row; 0: not known
  RunCheckpointFacts checkpoints{};
  MetricRows metrics{};
  std::vector<RunEvent> events{};
  std::vector<RankTimes> times{};    ///< only if all metrics are read
  Texts settings{};                  ///< config.toml and the program's own flags, "optim.lr" -> "0.001"
  Texts environment{};               ///< program, launcher, ranks and others
  std::vector<std::string> notes{};  ///< what is damaged or missing
};

/// state.json of a checkpoint; an empty object: there is none, or another program wrote it.
Json read_state(const CheckpointFiles& files);

/// True if the directory has a file that only a run writes.
bool is_run(FileSystem& fs, const std::filesystem::path& directory);

/// Throws: ConfigError that names them if runs are directly in this directory.
void refuse_folder_of_runs(FileSystem& fs, const std::filesystem::path& directory);

/// Throws: ConfigError if it is no run.
void require_run(FileSystem& fs, const std::filesystem::path& directory);

/// Reads at most `last_bytes` of the metrics; kWholeFile: all, and the times of the ranks. Damaged and missing files
/// become notes. Throws: ConfigError if the directory is no run, IoError.
RunData read_run(FileSystem& fs, const std::filesystem::path& directory, std::int64_t last_bytes = kWholeFile);

/// Its fields: "rank 1 was killed, attempt 1".
std::string event_text(const RunEvent& event);

/// For ages: "50 s", "3 min", "2 h", "5 d".
std::string rough_duration(double seconds);

}  // namespace lockstep
