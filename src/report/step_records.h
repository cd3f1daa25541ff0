// records-<rank>.bin: what each step did, in 64 bytes per step and rank, so that two runs can be compared bit by bit.
// docs/checkpoints.md "Records" is the format. Torch-free.
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

/// One rank's part of one step; what is not known or not asked for is left out.
struct StepRecord {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t samples = 0;                         ///< this rank's
  std::optional<std::uint64_t> sample_digest{};     ///< sum of sample_digest() over them
  std::optional<std::uint64_t> loss_bits{};         ///< of this rank's loss as a double
  std::optional<std::uint64_t> parameter_digest{};  ///< after the step
  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

/// One sample's share of a digest. `position` is its place in the step's global batch, from 0: digests of ranks add up
/// (mod 2^64) to the global batch's, whatever the number of ranks.
std::uint64_t sample_digest(std::int64_t position, std::int64_t id) noexcept;

std::string record_file_name(int rank);  ///< "records-0.bin"

class RecordWriter {
 public:
  static constexpr std::size_t kBuffered = 64;  ///< steps per write(2)

  /// Appends to `file`, which is made if missing. From now on what was recorded of steps above `from_step` no longer
  /// counts: 0 for a new run, the checkpoint's step for a resumed one. What cannot be written is a warning
  /// (ReportFile).
  RecordWriter(FileSystem& fs, const std::filesystem::path& file, int rank, int ranks, std::int64_t from_step);
  ~RecordWriter();  ///< writes what is buffered
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  void add(const StepRecord& record);  ///< steps ascend; every kBuffered-th call writes
  void flush();                        ///< before a checkpoint is reported saved: a run resumed there needs them

 private:
  bool begin(WritableFile& file, const RandomAccessFile& content) const;

  int rank_;
  int ranks_;
  std::int64_t written_;  // up to this step the file is as it should be
  std::int64_t last_;     // step in the buffer
  std::vector<std::byte> buffer_{};
  ReportFile file_;
};

/// What one file says of the steps that count: a resumed run's, not the attempt's that was abandoned.
struct RankRecords {
  struct Entry {
    StepRecord record{};
    int ranks = 0;  ///< of the run when it was written
  };
  int rank = 0;
  std::vector<Entry> entries{};  ///< ascending steps
};

/// A last record that a crash has torn is left out, also where a resumed run went on behind it.
/// Throws: DataError naming file and record where something else is damaged; IoError.
RankRecords read_records(FileSystem& fs, const std::filesystem::path& file);

}  // namespace lockstep
