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
  std::vector<int> missing{};        ///< ranks of recorded steps that have no file in the directory; ascending
};

/// `path`: the directory of a run, or one file of records. Throws: ConfigError (not found), DataError, IoError.
RunRecords read_run_records(FileSystem& fs, const std::filesystem::path& path);

struct RecordDifference {
  struct Field {
    /// "samples", "loss", "parameters" or "epoch"; after these "update" if only one of the runs left out the update of
    /// the step, or put weights of before back
    std::string name{};
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

/// A hash of all records of a run up to a step: each one is mixed with the hash of those before it. It does not depend
/// on the number of ranks, nor on the steps at which the run was resumed.
struct RecordChain {
  std::int64_t steps = 0;
  std::int64_t last_step = 0;
  std::uint64_t hash = 0;
};

/// Ends before the first step of which a rank has no record.
RecordChain chain_of(const RunRecords& run);

}  // namespace lockstep
