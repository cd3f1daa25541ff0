#include "report/step_records.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/splitmix.h"

namespace lockstep {
namespace {

constexpr std::size_t kRecordBytes = 64;
constexpr std::size_t kChecksumAt = 60;
constexpr std::int64_t kFormat = 1;

using Words = std::array<std::uint64_t, kRecordBytes / 8>;

// Word 0 is the kind of a record: eight characters, or four characters and the fields that are present.
constexpr std::uint64_t kBegin = little_endian("lockstep");
constexpr std::uint64_t kStep = little_endian("step");
constexpr std::uint64_t kHasSamples = std::uint64_t{1} << 32;
constexpr std::uint64_t kHasLoss = std::uint64_t{1} << 33;
constexpr std::uint64_t kHasParameters = std::uint64_t{1} << 34;
constexpr std::uint64_t kLeftOut = std::uint64_t{1} << 35;
constexpr std::uint64_t kRolledBack = std::uint64_t{1} << 36;
constexpr std::uint64_t kAllFields = kHasSamples | kHasLoss | kHasParameters | kLeftOut | kRolledBack;

void append_record(std::vector<std::byte>& out, const Words& words) {
  const std::size_t begin = out.size();
  for (const std::uint64_t word : words) {
    append_little_endian(out, word, sizeof word);
  }
  out.resize(begin + kChecksumAt);
  append_little_endian(out, crc32c(std::span(out).subspan(begin)), kRecordBytes - kChecksumAt);
}

Words words_of(std::span<const std::byte, kRecordBytes> bytes) {
  Words words{};
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = little_endian(text.substr(8 * i, 8));
  }
  return words;
}

bool is_whole(std::span<const std::byte, kRecordBytes> bytes) {
  return crc32c(bytes.first(kChecksumAt)) == words_of(bytes).back() >> 32;
}

// The hash of a record and all before it, without the checksum.
std::uint64_t chained(std::uint64_t hash, const Words& words) {
  for (const std::uint64_t word : std::span(words).first<kRecordBytes / 8 - 1>()) {
    hash = mix(splitmix(hash) + word);
  }
  return hash;
}

// Reads the records of one file in order.
class Lineage {
 public:
  explicit Lineage(std::string name) : name_(std::move(name)) {}

  void add(std::span<const std::byte, kRecordBytes> bytes) {
    const std::int64_t index = index_++;
    if (!is_whole(bytes)) {
      require(index > 0, index, "the first record is missing; it contains format and rank");
      torn_ = torn_.value_or(index);
      return;
    }
    const Words words = words_of(bytes);
    if (words[0] == kBegin) {
      begin(words, index);
      torn_.reset();  // left by a crash; a resumed run follows
      return;
    }
    require(!torn_, torn_.value_or(0), "its checksum does not match, and more records follow it");
    require(records_.ranks > 0, index, "a step comes before format and rank");
    step(words, index);
  }

  RankRecords finish() && {
    require(records_.ranks > 0, 0, "the file has no complete record");
    return std::move(records_);
  }

 private:
  void begin(const Words& words, std::int64_t index) {
    const auto rank = static_cast<std::int64_t>(words[2] & 0xffffffffU);
    const auto ranks = static_cast<std::int64_t>(words[2] >> 32);
    if (words[3] != kFormat) {
      throw DataError(fmt::format("{}: records of format {}, this build reads {}", name_, words[3], kFormat),
                      "compare with the lockstep version that wrote them");
    }
    require(rank < ranks && ranks <= std::numeric_limits<int>::max(), index,
            "its rank is not below its number of ranks");
    require(records_.ranks == 0 || rank == records_.rank, index, "its rank differs from the first record");
    records_.rank = static_cast<int>(rank);
    records_.ranks = static_cast<int>(ranks);
    const auto from = static_cast<std::int64_t>(words[1]);
    while (!records_.entries.empty() && records_.entries.back().record.step > from) {
      records_.entries.pop_back();
    }
  }

  void step(const Words& words, std::int64_t index) {
    const std::uint64_t fields = words[0] & kAllFields;
    require(words[0] == (kStep | fields), index, "its kind is unknown");
    const auto field = [&](std::uint64_t which, std::size_t word) {
      return (fields & which) != 0 ? std::optional(words[word]) : std::nullopt;
    };
    const StepRecord record{.step = static_cast<std::int64_t>(words[1]),
                            .epoch = static_cast<std::int64_t>(words[2]),
                            .samples = static_cast<std::int64_t>(words[3]),
                            .sample_digest = field(kHasSamples, 4),
                            .loss_bits = field(kHasLoss, 5),
                            .parameter_digest = field(kHasParameters, 6),
                            .left_out = (fields & kLeftOut) != 0,
                            .rolled_back = (fields & kRolledBack) != 0};
    auto& entries = records_.entries;
    require(record.step >= 0 && (entries.empty() || entries.back().record.step < record.step), index,
            "its step is not higher than the previous one");
    entries.push_back(
        {.record = record, .ranks = records_.ranks, .hash = chained(entries.empty() ? 0 : entries.back().hash, words)});
  }

  void require(bool holds, std::int64_t index, const char* what) const {
    if (!holds) {
      throw DataError(fmt::format("{} record {}: {}", name_, index, what),
                      "the file is damaged, or was not written by lockstep");
    }
  }

  std::string name_;
  RankRecords records_{};
  std::int64_t index_ = 0;
  std::optional<std::int64_t> torn_{};  // the first incomplete one since the last complete record
};

}  // namespace

std::uint64_t sample_digest(std::int64_t position, std::int64_t id) noexcept {
  return mix(splitmix(static_cast<std::uint64_t>(position)) + static_cast<std::uint64_t>(id));
}

std::string record_file_name(int rank) { return fmt::format("records-{}.bin", rank); }

RecordWriter::RecordWriter(FileSystem& fs, const std::filesystem::path& file, int rank, int ranks,
                           const RecordsEnd& from)
    : rank_(rank),
      ranks_(ranks),
      end_(from),
      last_(from.step),
      file_(fs, file, "steps", [this](auto& out, const auto& content) { return begin(out, content); }) {
  buffer_.reserve((kBuffered + 1) * kRecordBytes);
}

RecordWriter::~RecordWriter() { flush(); }

bool RecordWriter::begin(WritableFile& file, const RandomAccessFile& content) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::vector<std::byte> bytes;
  append_record(bytes, {kBegin, static_cast<std::uint64_t>(end_.step),
                        static_cast<std::uint64_t>(rank_) | static_cast<std::uint64_t>(ranks_) << 32, kFormat});
  std::array<std::byte, kWord> first{};
  const std::span known(first.data(), static_cast<std::size_t>(std::min<std::int64_t>(content.size(), kWord)));
  content.read(0, known);
  if (!std::equal(known.begin(), known.end(), bytes.begin())) {
    return false;
  }
  if (content.size() < static_cast<std::int64_t>(kRecordBytes)) {
    end_.hash = 0;  // a new file
  }
  if (const std::int64_t torn = content.size() % static_cast<std::int64_t>(kRecordBytes); torn != 0) {
    file.truncate(content.size() - torn);  // a crash or a full disk left an incomplete record
  }
  file.append(bytes);
  return true;
}

void RecordWriter::add(const StepRecord& record) {
  last_ = record.step;
  const std::uint64_t fields = (record.sample_digest ? kHasSamples : 0) | (record.loss_bits ? kHasLoss : 0) |
                               (record.parameter_digest ? kHasParameters : 0) | (record.left_out ? kLeftOut : 0) |
                               (record.rolled_back ? kRolledBack : 0);
  append_record(buffer_,
                {kStep | fields, static_cast<std::uint64_t>(record.step), static_cast<std::uint64_t>(record.epoch),
                 static_cast<std::uint64_t>(record.samples), record.sample_digest.value_or(0),
                 record.loss_bits.value_or(0), record.parameter_digest.value_or(0)});
  if (buffer_.size() >= kBuffered * kRecordBytes) {
    flush();
  }
}

void RecordWriter::flush() {
  if (buffer_.empty()) {
    return;
  }
  const auto count = static_cast<std::int64_t>(buffer_.size() / kRecordBytes);
  if (file_.write(count, [&](WritableFile& file) { file.append(buffer_); })) {
    end_.step = last_;
    for (std::span<const std::byte> left = buffer_; !left.empty(); left = left.subspan(kRecordBytes)) {
      end_.hash = chained(end_.hash, words_of(left.first<kRecordBytes>()));
    }
  }
  buffer_.clear();
}

RankRecords read_records(FileSystem& fs, const std::filesystem::path& path) {
  const auto file = fs.open(path);
  const auto count = file->size() / static_cast<std::int64_t>(kRecordBytes);  // without an incomplete one at the end
  Lineage lineage(path.string());
  std::vector<std::byte> block;
  for (std::int64_t done = 0; done < count;) {
    constexpr std::int64_t kPerBlock = (1 << 20) / kRecordBytes;
    const std::int64_t now = std::min(count - done, kPerBlock);
    block.resize(static_cast<std::size_t>(now) * kRecordBytes);
    file->read(done * static_cast<std::int64_t>(kRecordBytes), block);
    for (std::span<const std::byte> left = block; !left.empty(); left = left.subspan(kRecordBytes)) {
      lineage.add(left.first<kRecordBytes>());
    }
    done += now;
  }
  return std::move(lineage).finish();
}

bool resume_records(FileSystem& fs, const std::filesystem::path& file, int rank, const RecordsEnd& end,
                    std::int64_t step) {
  if (!fs.exists(file) || fs.open(file)->size() < static_cast<std::int64_t>(kRecordBytes)) {
    return end.hash == 0;
  }
  std::string reason;
  try {
    const RankRecords records = read_records(fs, file);
    const auto next = std::ranges::upper_bound(records.entries, end.step, {},
                                               [](const RankRecords::Entry& entry) { return entry.record.step; });
    if (records.rank != rank) {
      reason =
          fmt::format("{} has the records of rank {}, expected those of rank {}", file.string(), records.rank, rank);
    } else if (const std::uint64_t hash = next == records.entries.begin() ? 0 : std::prev(next)->hash;
               hash != end.hash) {
      reason = fmt::format("{}: its records up to step {} are not those that led to the checkpoint", file.string(),
                           end.step);
    } else if (next != records.entries.end() && next->record.step <= step) {
      log_info(fmt::format("{}: its records from step {} on did not lead to the checkpoint of step {} and do not count",
                           file.string(), next->record.step, step));
    }
  } catch (const DataError& error) {
    reason = error.what();
  }
  if (!reason.empty()) {
    set_aside(fs, file, reason);
  }
  return true;
}

}  // namespace lockstep
