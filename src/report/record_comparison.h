// Compares two runs step by step and finds their first difference. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/file_system.h>

#include "report/step_records.h"

namespace lockstep {

/// The records of all ranks of a run, without ranks that a resumed run with fewer ranks no longer had.
struct RunRecords {
  std::vector<RankRecords> ranks{};  ///< ascending
};

/// `path`: the directory of a run, or one file of records. Throws: ConfigError (not found), DataError, IoError.
RunRecords read_run_records(FileSystem& fs, const std::filesystem::path& path);

struct RecordDifference {
  struct Field {
    std::string name{};  ///< "samples", "loss", "parameters" or "epoch"
    std::string a{};
    std::string b{};
  };
  std::int64_t step = 0;
  std::optional<int>
      rank{};  ///< nullopt: all ranks together, because the runs have different numbers of ranks in this step
  std::vector<Field> fields{};
};

struct RecordComparison {
  std::int64_t common_steps = 0;  ///< recorded in both runs, up to the first difference
  std::int64_t first_step = 0;    ///< of the common steps
  std::int64_t last_step = 0;
  std::optional<RecordDifference> difference{};  ///< the lowest step, then the lowest rank
};

/// Ignores steps that only one run recorded. With the same number of ranks in a step it compares each rank: epoch,
/// samples, loss, parameters; else only what does not depend on that number: epoch, global batch, rank 0's parameters.
RecordComparison compare_records(const RunRecords& a, const RunRecords& b);

}  // namespace lockstep
