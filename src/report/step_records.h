// records-<rank>.bin: the result of each step in 64 bytes per step and rank, so that two runs can be compared bit by
// bit. docs/checkpoint_format.md "Records" describes the format. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/base/file_system.h>

#include "base/report_file.h"

namespace lockstep {

/// One rank's part of one step; unknown or disabled fields are empty.
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t samples = 0;                         ///< this rank's
  std::optional<std::uint64_t> sample_digest{};     ///< sum of sample_digest() over this rank's samples
  std::optional<std::uint64_t> loss_bits{};         ///< of this rank's loss as a double
  std::optional<std::uint64_t> parameter_digest{};  ///< after the step
  bool left_out = false;                            ///< an update of this step (spike.policy, optim.non_finite)
  bool rolled_back = false;  ///< weights of before were put back between the last record and this
  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

/// The contribution of one sample to a digest. `position` is its place in the step's global batch, from 0: the digests
/// of all ranks add up (mod 2^64) to that of the global batch, with any number of ranks.
std::uint64_t sample_digest(std::int64_t position, std::int64_t id) noexcept;

std::string record_file_name(int rank);  ///< "records-0.bin"

/// How far the file of one rank leads.
struct RecordsEnd {
  std::int64_t step = 0;   ///< the file is complete up to it
  std::uint64_t hash = 0;  ///< of its records up to this step, each mixed with the hash of those before it; 0: none
  friend bool operator==(const RecordsEnd&, const RecordsEnd&) = default;
};

class RecordWriter {
 public:
  static constexpr std::size_t kBuffered = 64;  ///< steps per write(2)

  /// Appends to `file`, which is created if missing. Earlier records of steps after `from` no longer count: {} for a
  /// new run, what end() was at the checkpoint for a resumed run. A failed write is a warning (ReportFile).
  RecordWriter(FileSystem& fs, const std::filesystem::path& file, int rank, int ranks, const RecordsEnd& from);
  ~RecordWriter();  ///< writes the buffer
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  void add(const StepRecord& record);               ///< steps must ascend; writes after every kBuffered calls
  RecordsEnd end() const noexcept { return end_; }  ///< of the file, without the buffer
  void flush();  ///< call it before a checkpoint is reported as saved: a run that resumes there needs the records

 private:
  bool begin(WritableFile& file, const RandomAccessFile& content);

  int rank_;
  int ranks_;
  RecordsEnd end_;
  std::int64_t last_;  // last step in the buffer
  std::vector<std::byte> buffer_{};
  ReportFile file_;
};

/// The valid steps of one file: those of a resumed run replace those of the abandoned attempt.
struct RankRecords {
  struct Entry {
    StepRecord record{};
    int ranks = 0;           ///< number of ranks of the run when it was written
    std::uint64_t hash = 0;  ///< of this record and all before it, as in RecordsEnd
  };
  int rank = 0;
  int ranks = 0;                 ///< of the last process that wrote to the file
  std::vector<Entry> entries{};  ///< ascending steps
};

/// Ignores an incomplete record at the end of an attempt, also if a resumed run follows it. Throws: DataError naming
/// file and record if other data are damaged; IoError.
RankRecords read_records(FileSystem& fs, const std::filesystem::path& file);

/// Before a run that resumes at `step` goes on with the file of `rank`, which was at `end` when the checkpoint was
/// written: renames a file that is damaged or has other records up to there, with a warning. False: the records are
/// missing. Throws: IoError.
bool resume_records(FileSystem& fs, const std::filesystem::path& file, int rank, const RecordsEnd& end,
                    std::int64_t step);

}  // namespace lockstep
