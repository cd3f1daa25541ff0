// Damaged checkpoints: none is accepted, none crashes the reader.

#include <cerrno>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "support/failing_reads.h"
#include "support/memory_file_system.h"
#include "support/message_of.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {
namespace {

using namespace testing_storage;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using Path = std::filesystem::path;

const Path kDirectory = "/checkpoints";
const Path kNewest = kDirectory / "step-0000000900";

// Two checkpoints; the newer one is damaged in many ways.
class Corruption : public testing::Test {
 protected:
  void SetUp() override {
    save(directory_, 850, sample_contents(850));
    save(directory_, 900, sample_contents(900));
  }

  std::string text(const std::string& name) { return read_all(*fs_.open(kNewest / name)); }

  // Whether the damage was found and named, and the previous checkpoint was used.
  bool refused() {
    std::vector<std::string> messages;
    const auto newest = newest_valid(directory_, &messages);
    return newest && newest->step == 850 && messages.size() == 1 && messages[0].starts_with("step-0000000900");
  }

  std::string damage() {
    return message_of<CheckpointError>([&] { directory_.verify(900); });
  }

  MemoryFileSystem fs_;
  CheckpointDir directory_{fs_, kDirectory, "run", 0};
};

TEST_F(Corruption, IsNotReportedForIntactFiles) {
  std::vector<std::string> messages;
  const auto newest = newest_valid(directory_, &messages);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 900);
  EXPECT_THAT(messages, ElementsAre());
  EXPECT_EQ(load(directory_, *newest), sample_contents(900));
}

TEST_F(Corruption, IsFoundInEveryBitOfEveryFile) {
  int points = 0, accepted = 0;
  for (const std::string& name : fs_.list(kNewest)) {
    const std::string good = text(name);
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      overwrite(fs_, kNewest / name, bad);
      ++points;
      accepted += refused() ? 0 : 1;
    }
    overwrite(fs_, kNewest / name, good);
  }
  std::cout << points << " points, " << accepted << " accepted\n";
  EXPECT_EQ(accepted, 0);
  EXPECT_GT(points, 3000);
  EXPECT_FALSE(refused()) << "the control: restored, it is accepted";
}

TEST_F(Corruption, IsFoundAtEveryLength) {
  int points = 0, accepted = 0;
  const auto count = [&] {
    ++points;
    accepted += refused() ? 0 : 1;
  };
  for (const std::string& name : fs_.list(kNewest)) {
    const std::string good = text(name);
    for (std::size_t length = 0; length < good.size(); ++length) {
      overwrite(fs_, kNewest / name, good.substr(0, length));
      count();
    }
    for (const std::string& tail : {std::string(1, '\0'), std::string("\n"), good + good + "x"}) {
      overwrite(fs_, kNewest / name, good + tail);
      count();
    }
    fs_.remove_all(kNewest / name);
    count();
    fs_.create_directories(kNewest / name);
    count();
    fs_.remove_all(kNewest / name);
    overwrite(fs_, kNewest / name, good);
  }
  std::cout << points << " points, " << accepted << " accepted\n";
  EXPECT_EQ(accepted, 0);
  EXPECT_FALSE(refused()) << "the control: restored, it is accepted";
}

TEST_F(Corruption, IsFoundWhenFilesOfTwoCheckpointsAreMixed) {
  const std::vector<std::string> names = {"MANIFEST.json", "weights.bin", "state.json"};
  for (const std::string& name : names) {
    const std::string good = text(name);
    overwrite(fs_, kNewest / name, read_all(*fs_.open(directory_.path(850) / name)));
    EXPECT_TRUE(refused()) << name;
    overwrite(fs_, kNewest / name, good);
  }
  for (const std::string& name : fs_.list(kNewest)) {  // a whole checkpoint under another step's name
    overwrite(fs_, kNewest / name, read_all(*fs_.open(directory_.path(850) / name)));
  }
  EXPECT_TRUE(refused());
  EXPECT_EQ(damage(), "step-0000000900/MANIFEST.json: found step 850, expected 900");
}

TEST_F(Corruption, IsNamed) {
  const auto damaged = [&](const std::string& name, const std::function<void()>& harm) {
    const std::string good = text(name);
    harm();
    const std::string message = damage();
    overwrite(fs_, kNewest / name, good);
    return message;
  };
  const Path model = kNewest / "weights.bin";
  EXPECT_EQ(damaged("weights.bin", [&] { fs_.remove_all(model); }), "step-0000000900/weights.bin: missing");
  EXPECT_EQ(damaged("weights.bin", [&] { overwrite(fs_, model, "short"); }),
            "step-0000000900/weights.bin: found 5 bytes, expected 60");
  EXPECT_THAT(
      damaged("weights.bin", [&] { fs_.corrupt(model, 7); }),
      MatchesRegex("step-0000000900/weights.bin chunk 0 .offset 0 MiB.: checksum [0-9a-f]+, expected [0-9a-f]+"));
  EXPECT_EQ(damaged("MANIFEST.json", [&] { fs_.remove_all(kNewest / "MANIFEST.json"); }),
            "step-0000000900/MANIFEST.json: missing");
  EXPECT_EQ(damaged("MANIFEST.json", [&] { fs_.corrupt(kNewest / "MANIFEST.json", 7); }),
            "step-0000000900/MANIFEST.json: its checksum does not match its text");
  EXPECT_EQ(damage(), "no error");
  EXPECT_THROW(directory_.verify(901), CheckpointError);
}

// The file may be intact: a run that took an older checkpoint instead would lose steps.
TEST_F(Corruption, IsNotAnErrorThatSaysNothingOfTheContent) {
  for (const char* name : {"MANIFEST.json", "weights.bin"}) {
    FailingReads disk(fs_, kNewest / name);
    const CheckpointDir checkpoints(disk, kDirectory, "run", 0);
    for (const ReadStage stage : {ReadStage::inspect, ReadStage::open, ReadStage::read}) {
      disk.stage = stage;
      for (const int error : {EACCES, EPERM, ESTALE, EMFILE, ENFILE, ENOMEM, ETIMEDOUT}) {
        disk.error = error;
        EXPECT_EQ(error_of<IoError>([&] { checkpoints.verify(900); }).number(), error) << name;
      }
      for (const int error : {EIO, ENOENT, ENOTDIR, EISDIR, ELOOP, ENXIO, EUCLEAN, EBADMSG}) {
        disk.error = error;
        EXPECT_THAT(message_of<CheckpointError>([&] { checkpoints.verify(900); }),
                    testing::StartsWith(std::string("step-0000000900/") + name + ": cannot "));
      }
    }
    disk.error = 0;
    EXPECT_NO_THROW(checkpoints.verify(900)) << "the control";
  }
}

TEST_F(Corruption, IsLocatedInLargeFilesAndSwappedChunksAreFound) {
  constexpr auto kChunk = static_cast<std::size_t>(kChunkBytes);
  std::string large(2 * kChunk + 1000, 'a');
  for (std::size_t i = 0; i < large.size(); i += 101) {
    large[i] = static_cast<char>(i / 101 & 0x7f);
  }
  save(directory_, 900, {{"weights.bin", large}});
  const Manifest manifest = directory_.verify(900);
  ASSERT_EQ(manifest.files.size(), 1U);
  EXPECT_EQ(manifest.files[0].size, static_cast<std::int64_t>(large.size()));
  EXPECT_EQ(manifest.files[0].crc32c.size(), 3U);
  EXPECT_EQ(load(directory_, manifest).at("weights.bin"), large);

  const Path model = kNewest / "weights.bin";
  for (const std::size_t offset : {std::size_t{0}, kChunk - 1, kChunk, 2 * kChunk - 1, 2 * kChunk, large.size() - 1}) {
    fs_.corrupt(model, static_cast<std::int64_t>(offset));
    const std::size_t chunk = offset / kChunk;
    EXPECT_THAT(damage(), HasSubstr("weights.bin chunk " + std::to_string(chunk) + " (offset " +
                                    std::to_string(4 * chunk) + " MiB)"));
    fs_.corrupt(model, static_cast<std::int64_t>(offset));
  }
  overwrite(fs_, model, large.substr(kChunk, kChunk) + large.substr(0, kChunk) + large.substr(2 * kChunk));
  EXPECT_THAT(damage(), HasSubstr("chunk 0"));
  std::string zeroed = large;
  zeroed.replace(kChunk + 4096, 4096, 4096, '\0');
  overwrite(fs_, model, zeroed);
  EXPECT_THAT(damage(), HasSubstr("chunk 1"));
}

TEST_F(Corruption, OfAllCheckpointsIsReported) {
  fs_.corrupt(kNewest / "state.json", 0);
  fs_.remove_all(kDirectory / "step-0000000850" / "MANIFEST.json");
  std::vector<std::string> messages;
  EXPECT_FALSE(newest_valid(directory_, &messages));
  EXPECT_THAT(messages,
              ElementsAre(HasSubstr("step-0000000900/state.json"), HasSubstr("step-0000000850/MANIFEST.json")));
  EXPECT_THAT(directory_.steps(), ElementsAre(850, 900)) << "damaged ones are left alone";
}

}  // namespace
}  // namespace lockstep
