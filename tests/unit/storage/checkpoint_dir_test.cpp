#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "storage/steps_to_delete.h"
#include "support/forwarding_file_system.h"
#include "support/memory_file_system.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {
namespace {

using namespace testing_storage;
using testing::ElementsAre;
using testing::HasSubstr;
using Path = std::filesystem::path;

const Path kDirectory = "/checkpoints";

TEST(CheckpointDir, IsEmptyBeforeTheFirstSave) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  EXPECT_THAT(directory.steps(), ElementsAre());
  EXPECT_FALSE(newest_valid(directory));
  EXPECT_THAT(directory.remove_incomplete(), ElementsAre());
  EXPECT_EQ(fs.operations(), 0) << "looking changes nothing";
}

TEST(CheckpointDir, ReadsSavedFiles) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run 7", 3);
  save(directory, 500, sample_contents(500));
  save(directory, 1000, sample_contents(1000));
  EXPECT_THAT(directory.steps(), ElementsAre(500, 1000));
  EXPECT_EQ(directory.path(500), kDirectory / "step-0000000500");
  const auto newest = newest_valid(directory);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 1000);
  EXPECT_EQ(newest->run_id, "run 7");
  EXPECT_EQ(newest->restart, 3);
  EXPECT_EQ(newest->format, kCheckpointFormat);
  EXPECT_EQ(load(directory, *newest), sample_contents(1000));
}

TEST(CheckpointDir, ReplacesAStepAndLeavesNothingBehind) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 500, sample_contents(500, 0));
  save(directory, 500, sample_contents(500, 1));
  EXPECT_EQ(load(directory, directory.verify(500)), sample_contents(500, 1));
  EXPECT_THAT(fs.list(kDirectory), ElementsAre("step-0000000500"));
}

TEST(CheckpointDir, ReadsACheckpointThatIsOnlyMovedAside) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 500, sample_contents(500));
  const Path aside = kDirectory / "step-0000000500.old.0123456789abcdef";
  fs.rename(directory.path(500), aside);
  EXPECT_THAT(directory.steps(), ElementsAre(500));
  EXPECT_EQ(directory.path(500), aside);
  EXPECT_EQ(load(directory, directory.verify(500)), sample_contents(500));
  EXPECT_THAT(directory.remove_incomplete(), ElementsAre());
  EXPECT_THAT(fs.list(kDirectory), ElementsAre("step-0000000500")) << "put back";
  EXPECT_EQ(load(directory, directory.verify(500)), sample_contents(500));
}

TEST(CheckpointDir, ReadsAManifestWithoutListingAllCheckpoints) {
  class Counting final : public ForwardingFileSystem {
   public:
    using ForwardingFileSystem::ForwardingFileSystem;
    std::vector<std::string> list(const Path& path) override {
      ++lists;
      return inner_.list(path);
    }
    int lists = 0;
  };
  MemoryFileSystem memory;
  Counting fs(memory);
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 100, sample_contents(100));
  fs.lists = 0;
  EXPECT_EQ(directory.manifest(100).step, 100);
  EXPECT_EQ(fs.lists, 0);
}

TEST(CheckpointDir, RemovesLeftOversAndNothingElse) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 500, sample_contents(500));
  const std::vector<std::string> ours = {"step-0000000500.old.0123456789abcdef",
                                         "step-0000000900.tmp.0123456789abcdef"};
  const std::vector<std::string> others = {"step-0000000900.tmp",
                                           "step-0000000900.tmp.0123",
                                           "step-900.tmp.0123456789abcdef",
                                           "step-0000000900.bak.0123456789abcdef",
                                           "step--000000001",
                                           "step-+000000001",
                                           "step-",
                                           "best",
                                           "step-00000000500"};
  for (const std::string& name : ours) {
    fs.create_directories(kDirectory / name);
  }
  for (const std::string& name : others) {
    fs.create_directories(kDirectory / name);
  }
  EXPECT_THAT(directory.steps(), ElementsAre(500));
  EXPECT_EQ(directory.remove_incomplete(), ours);
  std::vector<std::string> expected = others;
  expected.emplace_back("step-0000000500");
  EXPECT_THAT(fs.list(kDirectory), testing::UnorderedElementsAreArray(expected));
  EXPECT_THAT(directory.remove_incomplete(), ElementsAre());
}

TEST(CheckpointDir, KeepsTheNewest) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  for (const std::int64_t step : {50, 900, 7, 100}) {
    save(directory, step, sample_contents(step));
  }
  directory.retain(3, 900);
  EXPECT_THAT(directory.steps(), ElementsAre(50, 100, 900));
  directory.retain(2, 900);
  EXPECT_THAT(fs.list(kDirectory), ElementsAre("step-0000000100", "step-0000000900"));
  directory.retain(2, 900);
  EXPECT_THAT(directory.steps(), ElementsAre(100, 900));
}

// Resumed below two damaged checkpoints, a run must not delete what it saves.
TEST(CheckpointDir, KeepsCheckpointsSavedBelowDamagedOnes) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  for (const std::int64_t step : {100, 200, 900, 950}) {
    save(directory, step, sample_contents(step));
  }
  save(directory, 300, sample_contents(300));
  directory.retain(2, 300);
  EXPECT_THAT(directory.steps(), ElementsAre(200, 300, 900, 950));
}

TEST(CheckpointDir, KeepsTheGivenSteps) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  for (const std::int64_t step : {10, 20, 30, 40, 50}) {
    save(directory, step, sample_contents(step));
  }
  const std::vector<std::int64_t> best = {20, 50};
  directory.retain(2, 50, best);
  EXPECT_THAT(directory.steps(), ElementsAre(20, 40, 50));
  for (const std::int64_t step : directory.steps()) {
    EXPECT_EQ(load(directory, directory.verify(step)), sample_contents(step));
  }
}

TEST(CheckpointDir, RemovesLinksToDeletedCheckpoints) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  for (const std::int64_t step : {10, 20, 30}) {
    save(directory, step, sample_contents(step));
    directory.link("epoch=" + std::to_string(step / 10), step);
    directory.link("last", step);
  }
  fs.replace_link(kDirectory / "mine", "elsewhere");
  EXPECT_EQ(fs.read_link(kDirectory / "last"), "step-0000000030");
  EXPECT_THAT(directory.steps(), ElementsAre(10, 20, 30)) << "links are never read";
  directory.retain(2, 30);
  EXPECT_THAT(fs.list(kDirectory),
              ElementsAre("epoch=2", "epoch=3", "last", "mine", "step-0000000020", "step-0000000030"));
}

TEST(CheckpointDir, RejectsInvalidLinkNames) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 10, sample_contents(10));
  for (const std::string name :
       {"", ".", "..", ".lock", "a/b", "/a", "a b", "step-0000000020", "step-0000000020.tmp.0123456789abcdef"}) {
    EXPECT_THROW(directory.link(name, 10), CheckpointError) << name;
  }
  EXPECT_THROW(directory.link(std::string(129, 'a'), 10), CheckpointError);
  directory.link("step-20,loss=0.5", 10);
  EXPECT_THAT(directory.steps(), ElementsAre(10));
}

TEST(CheckpointDir, ReadsOneSmallFile) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 10, sample_contents(10));
  const Path folder = directory.path(10);
  const auto message = [&](const std::string& name, std::int64_t max_bytes) -> std::string {
    try {
      return directory.read(10, name, max_bytes);
    } catch (const CheckpointError& error) {
      return error.what();
    }
  };
  fs.corrupt(folder / "weights.bin", 3);  // damage of another file is not checked
  EXPECT_EQ(message("state.json", 1000), sample_contents(10).at("state.json"));
  EXPECT_EQ(message("state.json", 10), "step-0000000010/state.json: found 23 bytes, expected at most 10");
  EXPECT_EQ(message("other.json", 1000), "step-0000000010/other.json: not in the manifest");
  EXPECT_EQ(message("../state.json", 1000), "step-0000000010/../state.json: not in the manifest");
  fs.corrupt(folder / "state.json", 3);
  EXPECT_THAT(message("state.json", 1000), HasSubstr("step-0000000010/state.json chunk 0 (offset 0 MiB): checksum"));
  fs.corrupt(folder / "MANIFEST.json", 3);
  EXPECT_EQ(message("state.json", 1000), "step-0000000010/MANIFEST.json: its checksum does not match its text");
}

TEST(CheckpointDir, LoadsAndChecksInOnePass) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  const std::string large(9'000'000, 'x');
  save(directory, 10, {{"large.bin", large}});
  const Manifest::File file = directory.manifest(10).files.at(0);
  std::string bytes(large.size(), '\0');
  directory.read(10, file, std::as_writable_bytes(std::span(bytes)));
  EXPECT_TRUE(bytes == large);
  fs.corrupt(directory.path(10) / "large.bin", 5'000'000);
  EXPECT_THAT(message_of<CheckpointError>([&] { directory.read(10, file, std::as_writable_bytes(std::span(bytes))); }),
              HasSubstr("step-0000000010/large.bin chunk 1 (offset 4 MiB): checksum"));
}

// The verbs of what `change` does to the disk.
template <typename Function>
std::vector<std::string> verbs(const MemoryFileSystem& fs, const Function& change) {
  const auto before = fs.operations();
  change();
  std::vector<std::string> trace = fs.trace();
  trace.erase(trace.begin(), trace.begin() + before);
  for (std::string& line : trace) {
    line = line.substr(0, line.find(' '));
  }
  return trace;
}

TEST(CheckpointDir, DeletesOnlyAfterARename) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  for (const std::int64_t step : {1, 2, 3, 4}) {
    save(directory, step, sample_contents(step));
  }
  EXPECT_THAT(verbs(fs, [&] { directory.retain(2, 4); }), ElementsAre("rename", "rename", "sync", "remove", "remove"));
}

TEST(CheckpointDir, DropsOldOnesBeforeTheyAreRemoved) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  for (const std::int64_t step : {1, 2, 3, 4}) {
    save(directory, step, sample_contents(step));
    directory.link("step=" + std::to_string(step), step);
  }
  std::vector<std::filesystem::path> dropped;
  EXPECT_THAT(verbs(fs, [&] { dropped = directory.drop(2, 4); }),
              ElementsAre("rename", "rename", "sync", "remove", "remove"))
      << "the links are removed, the directories are not";
  ASSERT_EQ(dropped.size(), 2U);
  EXPECT_TRUE(fs.exists(dropped[0]));
  EXPECT_THAT(directory.steps(), ElementsAre(3, 4));
  EXPECT_EQ(newest_valid(directory)->step, 4);
  EXPECT_TRUE(directory.drop(2, 4).empty()) << "once";
  EXPECT_THAT(verbs(fs, [&] { directory.remove(dropped); }), ElementsAre("remove", "remove"));
  EXPECT_THAT(fs.list(kDirectory), ElementsAre("step-0000000003", "step-0000000004", "step=3", "step=4"));
}

TEST(CheckpointDir, CleansUpOnlyAfterASync) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 500, sample_contents(500));
  fs.create_directories(kDirectory / "step-0000000500.old.0123456789abcdef");
  EXPECT_THAT(verbs(fs, [&] { directory.remove_incomplete(); }), ElementsAre("sync", "remove", "sync"));
}

TEST(CheckpointDir, RefusesInvalidNumbers) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 1, sample_contents(1));
  EXPECT_EQ(message_of<ConfigError>([&] { directory.retain(1, 1); }),
            "deleting old checkpoints: keep_last is 1, expected 2 or more");
  EXPECT_EQ(message_of<ConfigError>([&] { directory.begin(-1); }),
            "saving a checkpoint: step is -1, expected 0 or more");
  EXPECT_EQ(message_of<ConfigError>([] {
              steps_to_delete({1, 2}, -1);
            }),
            "steps_to_delete: keep_last is -1, expected 0 or more");
  EXPECT_THAT(directory.steps(), ElementsAre(1));
}

TEST(StepsToDelete, AreTheOldest) {
  EXPECT_THAT(steps_to_delete({}, 2), ElementsAre());
  EXPECT_THAT(steps_to_delete({5}, 2), ElementsAre());
  EXPECT_THAT(steps_to_delete({9, 5, 7}, 2), ElementsAre(5));
  EXPECT_THAT(steps_to_delete({1, 2, 3, 4}, 3), ElementsAre(1));
  const std::vector<std::int64_t> keep = {2, 4, 99};
  EXPECT_THAT(steps_to_delete({5, 4, 3, 2, 1}, 1, keep), ElementsAre(1, 3));
}

TEST(CheckpointDir, ReportsMissingSpaceBeforeItWrites) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 850, sample_contents(850));
  fs.set_free_bytes(std::int64_t{1} << 30);
  EXPECT_NO_THROW(directory.begin(900, std::int64_t{1} << 30));
  const auto names = fs.list(kDirectory);
  const auto error =
      error_of<IoError>([&] { directory.begin(900, (std::int64_t{1} << 30) + (std::int64_t{1} << 29)); });
  EXPECT_STREQ(error.what(), "cannot save step-0000000900: found 1.0 GiB free in /checkpoints, need 1.5 GiB");
  EXPECT_FALSE(error.hint().empty());
  EXPECT_EQ(fs.list(kDirectory), names);
  EXPECT_TRUE(newest_valid(directory));
}

TEST(CheckpointDir, ReportsFreeAndNeededSpaceOnAFullDisk) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  fs.set_free_bytes(3000);
  const auto writer = directory.begin(900, 2048);
  fs.set_free_bytes(1024);
  const auto error = error_of<IoError>([&] {
    writer->add(
        "weights.bin", [](const auto& append) { append(as_bytes("12")); }, 2000);
  });
  EXPECT_THAT(error.what(), testing::StartsWith("cannot save step-0000000900: cannot reserve 2000 bytes for /checkpo"));
  EXPECT_THAT(error.what(), testing::EndsWith("weights.bin: No space left on device (free 1.0 KiB, needed 2.0 KiB)"));
  EXPECT_EQ(error.number(), ENOSPC);
}

TEST(CheckpointDir, RemovesALinkThatWasBeingReplaced) {
  const TempDir temp;
  CheckpointDir directory(real_file_system(), temp.path(), "run", 0);
  save(directory, 50, sample_contents(50));
  std::filesystem::create_symlink("step-0000000050", temp.path() / "last.tmp.0123456789abcdef");
  std::filesystem::create_symlink("step-0000000050", temp.path() / "mine.tmp");
  write_file(real_file_system(), temp.path() / "mine.tmp.0123456789abcdef", "a file");
  EXPECT_TRUE(directory.remove_incomplete().empty());
  EXPECT_THAT(real_file_system().list(temp.path()),
              ElementsAre("mine.tmp", "mine.tmp.0123456789abcdef", "step-0000000050"));
}

TEST(CheckpointDir, MakesRoomIfARunKeepsMoreThanTwo) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  for (const std::int64_t step : {10, 20, 30, 40, 50}) {
    save(directory, step, sample_contents(step));
  }
  fs.set_free_bytes(1000);
  directory.make_room(1000, [] { return std::optional<std::int64_t>(50); });
  EXPECT_THAT(directory.steps(), ElementsAre(10, 20, 30, 40, 50)) << "there is room";
  const std::vector<std::int64_t> best = {10};
  directory.make_room(
      2000, [] { return std::optional<std::int64_t>(50); }, best);
  EXPECT_THAT(directory.steps(), ElementsAre(10, 40, 50));
}

TEST(CheckpointDir, WorksOnTheRealFileSystem) {
  const TempDir temp;
  const Path path = temp.path() / "runs" / "digits" / "checkpoints";
  FileSystem& fs = real_file_system();
  CheckpointDir directory(fs, path, "run", 0);
  for (const std::int64_t step : {100, 200, 300}) {
    save(directory, step, sample_contents(step));
    directory.retain(2, step);
  }
  save(directory, 300, sample_contents(300, 1));
  { directory.begin(400); }
  EXPECT_THAT(fs.list(path), ElementsAre("step-0000000200", "step-0000000300"));
  const auto newest = newest_valid(CheckpointDir(fs, path, "another", 1));
  ASSERT_TRUE(newest);
  EXPECT_EQ(load(directory, *newest), sample_contents(300, 1));

  const Path moved = temp.path() / "moved";  // a checkpoint does not contain its path
  std::filesystem::rename(path, moved);
  EXPECT_TRUE(newest_valid(CheckpointDir(fs, moved, "run", 0)));
}

TEST(CheckpointDir, OpensNothingButRegularFilesInPlace) {
  const TempDir temp;
  FileSystem& fs = real_file_system();
  CheckpointDir directory(fs, temp.path(), "run", 0);
  save(directory, 100, sample_contents(100));
  const Path file = directory.path(100) / "state.json";
  const Path elsewhere = temp.path() / "elsewhere";
  std::filesystem::copy_file(file, elsewhere);
  const auto message = [&] {
    try {
      directory.verify(100);
      return std::string("accepted");
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(message(), "accepted");

  std::filesystem::remove(file);
  std::filesystem::create_symlink(elsewhere, file);
  EXPECT_THAT(message(), HasSubstr("step-0000000100/state.json: cannot open"));
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_THAT(message(), HasSubstr("step-0000000100/state.json: cannot open"));
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_THAT(message(), HasSubstr("step-0000000100/state.json: cannot open"));
  std::filesystem::remove(file);
  std::filesystem::copy_file(elsewhere, file);
  EXPECT_EQ(message(), "accepted");
}

}  // namespace
}  // namespace lockstep
