// Two runs side by side, step by step: where they part. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/file_system.h>

#include "report/step_records.h"

namespace lockstep {

/// Every rank's records of one run, without those of ranks that a smaller, resumed run no longer had.
struct RunRecords {
  std::vector<RankRecords> ranks{};  ///< ascending
};

/// `path`: a run's directory, or one file of records. Throws: ConfigError (no such thing), DataError, IoError.
RunRecords read_run_records(FileSystem& fs, const std::filesystem::path& path);

struct RecordDifference {
  struct Field {
    std::string name{};  ///< "samples", "loss", "parameters" or "epoch"
    std::string a{};
    std::string b{};
  };
  std::int64_t step = 0;
  std::optional<int> rank{};  ///< none: of all ranks together, because the runs have different ranks in this step
  std::vector<Field> fields{};
};

struct RecordComparison {
  std::int64_t common_steps = 0;  ///< recorded in both runs, up to the first difference
  std::int64_t first_step = 0;    ///< of those
  std::int64_t last_step = 0;
  std::optional<RecordDifference> difference{};  ///< lowest step, then lowest rank
};

/// Steps that only one of them recorded do not count. In a step of equal ranks each rank is compared: epoch, samples,
/// loss, parameters; otherwise what does not depend on their number: epoch, the global batch, rank 0's parameters.
RecordComparison compare_records(const RunRecords& a, const RunRecords& b);

}  // namespace lockstep
