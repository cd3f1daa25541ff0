#include "report/step_records.h"

#include <cerrno>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/mapped.h"
#include "support/captured_stderr.h"
#include "support/memory_file_system.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::filesystem::path kFile = "/records-1.bin";

StepRecord record(std::int64_t step, std::uint64_t version = 0) {
  return {.step = step,
          .epoch = step / 10,
          .samples = 32,
          .sample_digest = 1000 + static_cast<std::uint64_t>(step),
          .loss_bits = version,
          .parameter_digest = ~std::uint64_t{0} - static_cast<std::uint64_t>(step)};
}

void write(FileSystem& fs, std::int64_t first, std::int64_t last, std::uint64_t version = 0, int ranks = 2) {
  RecordWriter writer(fs, kFile, /*rank=*/1, ranks, {.step = first - 1});
  for (std::int64_t step = first; step <= last; ++step) {
    writer.add(record(step, version));
  }
}

std::vector<StepRecord> records(FileSystem& fs) {
  return mapped(read_records(fs, kFile).entries, [](const auto& entry) { return entry.record; });
}

std::string damage(FileSystem& fs) {
  return message_of<DataError>([&] { read_records(fs, kFile); });
}

void overwrite(FileSystem& fs, const std::string& text) {
  fs.remove_all(kFile);
  fs.create(kFile)->append(std::as_bytes(std::span(text)));
}

TEST(StepRecords, AreReadAsTheyWereWritten) {
  MemoryFileSystem fs;
  const StepRecord sparse{.step = 4, .epoch = 0, .samples = 7};
  StepRecord left_out = record(5);
  left_out.left_out = true;
  StepRecord rolled_back = record(6);
  rolled_back.rolled_back = true;
  {
    RecordWriter writer(fs, kFile, 1, 2, {});
    writer.add(record(3));
    writer.add(sparse);
    writer.add(left_out);
    writer.add(rolled_back);
  }
  EXPECT_THAT(records(fs), ElementsAre(record(3), sparse, left_out, rolled_back));
  const RankRecords read = read_records(fs, kFile);
  EXPECT_EQ(read.rank, 1);
  EXPECT_EQ(read.entries.front().ranks, 2);
}

TEST(StepRecords, CostOneWriteForManySteps) {
  MemoryFileSystem fs;
  RecordWriter writer(fs, kFile, 1, 2, {});
  const int before = fs.operations();
  for (std::int64_t step = 1; step <= 640; ++step) {
    writer.add(record(step));
  }
  EXPECT_EQ(fs.operations() - before, 10);
  writer.add(record(641));
  EXPECT_EQ(records(fs).size(), 640U);
  writer.flush();
  EXPECT_EQ(records(fs).size(), 641U);
}

TEST(StepRecords, OfAnAbandonedAttemptDoNotCount) {
  MemoryFileSystem fs;
  write(fs, 1, 5, 1);
  write(fs, 4, 4, 2);
  EXPECT_THAT(records(fs), ElementsAre(record(1, 1), record(2, 1), record(3, 1), record(4, 2)));
  write(fs, 1, 1, 3);
  EXPECT_THAT(records(fs), ElementsAre(record(1, 3)));
}

// After a crash at any byte of the last write, earlier records stay valid and a resumed run appends to them.
TEST(StepRecords, SurviveTruncationAtEveryByte) {
  MemoryFileSystem whole;
  write(whole, 1, 3);
  const std::string text = read_file(whole, kFile);
  ASSERT_EQ(text.size(), 4U * 64);
  int points = 0;
  for (std::size_t size = 64; size <= text.size(); ++size) {
    MemoryFileSystem fs;
    overwrite(fs, text.substr(0, size));
    const std::size_t left = size / 64 - 1;
    EXPECT_EQ(records(fs).size(), left) << size;
    write(fs, 2, 2, 9);
    const auto after = records(fs);
    ASSERT_EQ(after.size(), std::min<std::size_t>(left, 1) + 1) << size;
    EXPECT_EQ(after.back(), record(2, 9)) << size;
    ++points;
  }
  EXPECT_EQ(points, 193);
}

TEST(StepRecords, AreRejectedIfDamagedInTheMiddle) {
  MemoryFileSystem good;
  write(good, 1, 3);
  const std::string text = read_file(good, kFile);
  int accepted = 0;
  for (std::size_t bit = 0; bit < 3 * 64 * 8; ++bit) {  // the last record could have been torn
    std::string bad = text;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    MemoryFileSystem fs;
    overwrite(fs, bad);
    accepted += damage(fs) == "no error" ? 1 : 0;
  }
  EXPECT_EQ(accepted, 0);
  EXPECT_EQ(damage(good), "no error") << "the control";

  MemoryFileSystem fs;
  overwrite(fs, "");
  EXPECT_THAT(damage(fs), StartsWith("/records-1.bin record 0: the file has no complete record"));
  overwrite(fs, text.substr(64));
  EXPECT_THAT(damage(fs), StartsWith("/records-1.bin record 0: a step comes before format and rank"));
  overwrite(fs, text.substr(0, 128) + text.substr(64, 128));
  EXPECT_THAT(damage(fs), StartsWith("/records-1.bin record 2: its step is not higher than the previous one"));
  std::string bad = text;
  bad[70] = 'x';
  overwrite(fs, bad);
  EXPECT_THAT(damage(fs),
              StartsWith("/records-1.bin record 1: its checksum does not match, and more records follow it"));
}

TEST(StepRecords, ContinueAfterAFailedWrite) {
  MemoryFileSystem fs;
  RecordWriter writer(fs, kFile, 1, 2, {});
  writer.add(record(1));
  writer.flush();
  for (std::int64_t step = 2; step <= 5; ++step) {
    writer.add(record(step));
  }
  fs.fail_at(fs.operations(), ENOSPC);  // half of four records is in the file
  CapturedStderr captured;
  writer.flush();
  EXPECT_THAT(captured.text(), testing::HasSubstr("No space left on device; the run goes on without these steps"));
  writer.add(record(6));
  CapturedStderr again;
  writer.flush();
  EXPECT_THAT(again.text(), testing::HasSubstr("is written again; missing steps: 4"));
  EXPECT_THAT(records(fs), ElementsAre(record(1), record(6)));
}

TEST(StepRecords, RenameAFileOfAnotherProgram) {
  MemoryFileSystem fs;
  overwrite(fs, "an archive of records");
  write(fs, 1, 2);
  EXPECT_THAT(records(fs), ElementsAre(record(1), record(2)));
  EXPECT_EQ(read_file(fs, kFile.string() + ".1"), "an archive of records");
}

RecordsEnd end_after(FileSystem& fs, std::int64_t first, std::int64_t last, const RecordsEnd& from) {
  RecordWriter writer(fs, kFile, 1, 2, from);
  for (std::int64_t step = first; step <= last; ++step) {
    writer.add(record(step));
  }
  writer.flush();
  return writer.end();
}

TEST(StepRecords, HaveOneHashHoweverOftenTheyAreContinued) {
  MemoryFileSystem straight;
  const RecordsEnd end = end_after(straight, 1, 200, {});
  EXPECT_EQ(end.step, 200);
  MemoryFileSystem parts;
  const RecordsEnd first = end_after(parts, 1, 70, {});
  end_after(parts, 71, 90, first);  // abandoned
  EXPECT_TRUE(resume_records(parts, kFile, 1, first, 70));
  EXPECT_EQ(end_after(parts, 71, 200, first), end);
  EXPECT_EQ(read_records(parts, kFile).entries.back().hash, end.hash);
  MemoryFileSystem changed;
  write(changed, 1, 200, /*version=*/1);
  EXPECT_NE(read_records(changed, kFile).entries.back().hash, end.hash);
}

TEST(StepRecords, AreTakenUpIfTheyLedToTheCheckpoint) {
  const auto moved = [](FileSystem& fs) { return fs.exists(kFile.string() + ".1"); };
  MemoryFileSystem none;
  EXPECT_TRUE(resume_records(none, kFile, 1, {}, 0)) << "a new run";
  EXPECT_FALSE(resume_records(none, kFile, 1, {.step = 5, .hash = 1}, 5));

  MemoryFileSystem good;
  const RecordsEnd end = end_after(good, 1, 5, {});
  EXPECT_TRUE(resume_records(good, kFile, 1, end, 5));
  EXPECT_TRUE(resume_records(good, kFile, 1, {}, 0)) << "a run that was killed before its first save";
  EXPECT_FALSE(moved(good));

  MemoryFileSystem shorter;
  write(shorter, 1, 4);
  EXPECT_TRUE(resume_records(shorter, kFile, 1, end, 5));
  EXPECT_TRUE(moved(shorter));
  MemoryFileSystem other_rank;
  { RecordWriter(other_rank, kFile, 0, 2, {}); }
  EXPECT_TRUE(resume_records(other_rank, kFile, 1, {}, 0));
  EXPECT_TRUE(moved(other_rank));
}

// What a checkpoint says of the file must be true also if writes failed, or the file was deleted.
TEST(StepRecords, HaveTheHashOfWhatIsInTheFile) {
  MemoryFileSystem fs;
  RecordWriter writer(fs, kFile, 1, 2, {});
  const auto add = [&](std::int64_t step) {
    writer.add(record(step));
    writer.flush();
    return writer.end();
  };
  const RecordsEnd one = add(1);
  fs.fail_at(fs.operations(), ENOSPC);
  EXPECT_EQ(add(2), one);
  const RecordsEnd three = add(3);
  EXPECT_EQ(three.step, 3);
  EXPECT_EQ(three.hash, read_records(fs, kFile).entries.back().hash);
  fs.remove(kFile);
  EXPECT_EQ(add(4), three);
  const RecordsEnd five = add(5);
  EXPECT_THAT(records(fs), ElementsAre(record(5)));
  EXPECT_EQ(five.hash, read_records(fs, kFile).entries.back().hash);
}

// Frozen: files of other runs are compared with these.
TEST(SampleDigest, IsFrozenAndAddsUpOverRanks) {
  EXPECT_NE(sample_digest(0, 1), sample_digest(1, 0));
  EXPECT_EQ(sample_digest(0, 0), 0x48218226ff3cd4bfU);
  EXPECT_EQ(sample_digest(3, 59'999), 0xbdf8ad5036f2f7a5U);
}

}  // namespace
}  // namespace lockstep
