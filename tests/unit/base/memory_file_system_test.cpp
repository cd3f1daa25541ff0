#include "support/memory_file_system.h"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(MemoryFileSystem, LosesUnsyncedData) {
  MemoryFileSystem fs;
  fs.create_directories("/run");
  fs.sync_directory("/");
  const auto file = fs.create("/run/a");
  file->append(bytes("one"));
  file->sync();
  file->append(bytes("two"));
  EXPECT_THAT(fs.after_power_loss()->list("/run"), IsEmpty())
      << "a synced file has no name before its directory is synced";
  fs.sync_directory("/run");
  const auto disk = fs.after_power_loss();
  EXPECT_EQ(read_file(*disk, "/run/a"), "one");
  EXPECT_EQ(read_file(*fs.after_power_loss(Unsynced::all_kept), "/run/a"), "onetwo");
  EXPECT_EQ(read_file(fs, "/run/a"), "onetwo");
}

TEST(MemoryFileSystem, LosesDirectoriesAndRenamesUntilTheParentIsSynced) {
  MemoryFileSystem fs;
  fs.create_directories("/run/tmp");
  EXPECT_THAT(fs.after_power_loss()->list("/"), IsEmpty());
  fs.sync_directory("/");
  fs.sync_directory("/run");
  fs.rename("/run/tmp", "/run/final");
  EXPECT_THAT(fs.after_power_loss()->list("/run"), ElementsAre("tmp"));
  EXPECT_THAT(fs.after_power_loss(Unsynced::entries_kept)->list("/run"), ElementsAre("final"));
  fs.sync_directory("/run");
  EXPECT_THAT(fs.after_power_loss()->list("/run"), ElementsAre("final"));
  fs.remove_all("/run/final");
  EXPECT_THAT(fs.after_power_loss()->list("/run"), ElementsAre("final"))
      << "a removal is a change of the directory, too";
}

TEST(MemoryFileSystem, FailsAtTheGivenOperation) {
  MemoryFileSystem fs;
  fs.fail_at(1, ENOSPC);
  const auto file = fs.create("/a");
  const auto error = error_of<IoError>([&] { file->append(bytes("abcd")); });
  EXPECT_STREQ(error.what(), "cannot write /a: No space left on device");
  EXPECT_EQ(error.hint(), "free space there, or write to another file system");
  EXPECT_EQ(read_file(fs, "/a"), "ab") << "half of it was written";
  file->append(bytes("ef"));
  EXPECT_EQ(read_file(fs, "/a"), "abef");
  EXPECT_THAT(fs.trace(), ElementsAre("create /a", "write /a", "write /a"));
}

TEST(MemoryFileSystem, NeverMakesAFileDurableAfterAFailedSync) {
  MemoryFileSystem fs;
  const auto file = fs.create("/a");
  fs.sync_directory("/");
  file->append(bytes("data"));
  fs.fail_at(fs.operations(), EIO);
  EXPECT_THROW(file->sync(), IoError);
  EXPECT_NO_THROW(file->sync()) << "as Linux does: the error is told once";
  EXPECT_EQ(read_file(*fs.after_power_loss(), "/a"), "");
}

TEST(MemoryFileSystem, FailsEveryOperationAfterPowerLoss) {
  MemoryFileSystem fs;
  fs.lose_power_at(1);
  const auto file = fs.create("/a");
  EXPECT_THROW(file->append(bytes("x")), PowerLost);
  EXPECT_THROW(fs.sync_directory("/"), PowerLost);
  EXPECT_EQ(fs.operations(), 1);
}

/// Every crash point of write_file leaves the old or the new text. A known-bad protocol is the control of the sweep.
template <class Write>
std::vector<std::string> texts_after_a_crash(Write&& write) {
  std::vector<std::string> found;
  for (const Unsynced unsynced : {Unsynced::lost, Unsynced::entries_kept, Unsynced::all_kept}) {
    for (int operation = 0;; ++operation) {
      MemoryFileSystem fs;
      write_file(fs, "/a", "old");
      fs.lose_power_at(fs.operations() + operation);
      bool finished = false;
      try {
        write(fs);
        finished = true;
      } catch (const PowerLost&) {
      }
      found.push_back(read_file(*fs.after_power_loss(unsynced), "/a"));
      if (finished) {
        EXPECT_GT(operation, 3);
        break;
      }
    }
  }
  return found;
}

TEST(WriteFile, LeavesTheOldTextOrTheNewOneAtEveryCrashPoint) {
  const auto found = texts_after_a_crash([](FileSystem& fs) { write_file(fs, "/a", "new text"); });
  EXPECT_THAT(found, testing::Each(testing::AnyOf("old", "new text")));
  EXPECT_THAT(found, testing::Contains("new text"));
  EXPECT_EQ(found.back(), "new text");
}

TEST(WriteFile, WithoutSyncWouldLoseTheText) {
  const auto found = texts_after_a_crash([](FileSystem& fs) {
    const auto file = fs.create("/a.tmp");
    file->append(bytes("new text"));
    file->close();
    fs.replace("/a.tmp", "/a");
    fs.sync_directory("/");
  });
  EXPECT_THAT(found, testing::Contains(""));
}

TEST(WriteFile, LeavesNoTemporaryFileWhenTheDiskIsFull) {
  for (int operation = 0; operation < 5; ++operation) {
    MemoryFileSystem fs;
    write_file(fs, "/a", "old");
    fs.fail_at(fs.operations() + operation, ENOSPC);
    EXPECT_THROW(write_file(fs, "/a", "new"), IoError) << operation;
    EXPECT_EQ(read_file(fs, "/a"), "old") << operation;
    EXPECT_THAT(fs.list("/"), ElementsAre("a")) << operation;
  }
}

TEST(MemoryFileSystem, CorruptsOneBit) {
  MemoryFileSystem fs;
  write_file(fs, "/a", "abc");
  fs.corrupt("/a", 1);
  EXPECT_EQ(read_file(fs, "/a"), "acc");
}

}  // namespace
}  // namespace lockstep
