// A disk that returns errors, becomes full, or loses power during a save.
#include <cerrno>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <lockstep/base/error.h>

#include "base/io_error.h"
#include "faults/storage/scenarios.h"
#include "support/message_of.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/sweep.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using namespace storage_faults;

// Every operation fails with every error: the error is reported with its name, and existing checkpoints stay.
TEST(RefusingDisk, IsReportedAndLosesNothing) {
  const ScratchDir scratch;
  Sweep sweep("injected errors");
  int silent = 0;
  int unnamed = 0;
  for (const Scenario& scenario : scenarios()) {
    const Path before = scratch.path() / "prepared";
    std::filesystem::remove_all(before);
    std::filesystem::create_directories(before);
    for (const Version& version : scenario.before) {
      save_version(real_file_system(), before / "checkpoints", version);
    }
    for (const int error : {ENOSPC, EDQUOT, EIO}) {
      bool finished = false;
      for (int point = 0; !finished; ++point) {
        const Path directory = scratch.fresh(before) / "checkpoints";
        int reached = 0;
        SteppedFileSystem fs(real_file_system(), [&](const char* operation, const Path& path) {
          if (reached++ == point) {
            throw_io_error(operation, path, error);
          }
        });
        try {
          save_version(fs, directory, scenario.saved);
          finished = reached <= point;
          // An abandoned writer removes its directory; a failure of that is not reported.
          silent += finished ? 0 : 1;
        } catch (const IoError& caught) {
          const std::string message = caught.what();
          const bool named = message.find(directory.parent_path().string()) != std::string::npos &&
                             message.find(std::generic_category().message(error)) != std::string::npos;
          unnamed += named ? 0 : 1;
        }
        sweep.count(survives(directory, scenario, finished));
      }
    }
  }
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_EQ(silent, 0);
  EXPECT_EQ(unnamed, 0);
  EXPECT_GE(sweep.points(), 500);
}

// After a failed fsync the kernel calls the pages clean: a second fsync of the file would say that all is well.
TEST(RefusingDisk, IsNotAskedAgainToSyncAFileThatFailed) {
  const ScratchDir scratch;
  std::vector<std::string> after;
  bool failed = false;
  SteppedFileSystem fs(real_file_system(), [&](const char* operation, const Path& path) {
    if (failed) {
      after.emplace_back(operation);
    }
    if (std::string_view(operation) == "fsync" && !failed) {
      failed = true;
      throw_io_error("sync", path, EIO);
    }
  });
  EXPECT_THROW(save_version(fs, scratch.path() / "checkpoints", {50, 0}), IoError);
  EXPECT_TRUE(failed);
  EXPECT_THAT(after, testing::Each("remove"));
}

Requirements root_with(const std::string& program) {
  Requirements needs;
  needs.that(::geteuid() == 0, "root, to mount file systems")
      .that(program.empty() || run_program({"sh", "-c", "command -v " + program}).code == 0, program);
  return needs;
}

/// Mounted while it exists.
class Mount {
 public:
  explicit Mount(Path path) : path_(std::move(path)) {}
  ~Mount() { ::umount2(path_.c_str(), MNT_DETACH); }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

 private:
  Path path_;
};

// A real file system with space for 1 to 3.5 checkpoints, and a run that saves 20 times despite errors.
TEST(FullDisk, TearsNothingAndSaysWhatIsMissing) {
  LOCKSTEP_REQUIRE(root_with(""));
  constexpr std::int64_t kBytes = 1 << 20;
  const std::string weights(kBytes, 'w');
  for (const double room : {1.0, 1.5, 2.0, 2.5, 3.5}) {
    const ScratchDir scratch;
    const auto size = static_cast<std::int64_t>(room * (kBytes + 32'768));
    const int mounted = ::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, ("size=" + std::to_string(size)).c_str());
    LOCKSTEP_REQUIRE(Requirements().that(mounted == 0, std::string("no tmpfs: ") + std::strerror(errno)));
    const Mount mount(scratch.path());
    CheckpointDir checkpoints(real_file_system(), scratch.path() / "checkpoints", "run", 0);
    std::optional<std::int64_t> acknowledged;
    int saved = 0;
    for (std::int64_t step = 1; step <= 20; ++step) {
      try {
        checkpoints.make_room(kBytes, [&] { return acknowledged; });
        const auto writer = checkpoints.begin(step, step % 2 == 0 ? kBytes : 0);  // 0: size unknown until it is written
        writer->add(
            "weights.bin", [&](const auto& append) { append(testing_storage::as_bytes(weights)); },
            step % 4 < 2 ? kBytes : 0);
        writer->commit();
        checkpoints.retain(4, step);
        acknowledged = step;
        ++saved;
      } catch (const IoError& error) {
        EXPECT_THAT(error.what(), testing::StartsWith("cannot save step-"));
        EXPECT_THAT(error.what(), testing::HasSubstr("free"));
      }
      for (const std::int64_t there : checkpoints.steps()) {
        EXPECT_NO_THROW(checkpoints.verify(there)) << there;
      }
      const auto newest = testing_storage::newest_valid(checkpoints);
      EXPECT_EQ(newest ? std::optional(newest->step) : std::nullopt, acknowledged);
    }
    std::printf("room for %.1f checkpoints: %d of 20 saved\n", room, saved);
    EXPECT_EQ(saved, room < 3 ? static_cast<int>(room) : 20);
    EXPECT_TRUE(checkpoints.remove_incomplete().empty()) << "a save that was refused leaves nothing";
  }
}

TEST(FullDisk, IsDistinguishedFromOneWithoutInodes) {
  LOCKSTEP_REQUIRE(root_with(""));
  const ScratchDir scratch;
  const int mounted = ::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=1m,nr_inodes=3");
  LOCKSTEP_REQUIRE(Requirements().that(mounted == 0, std::string("no tmpfs: ") + std::strerror(errno)));
  const Mount mount(scratch.path());
  const auto error = error_of<IoError>([&] {
    save_version(real_file_system(), scratch.path() / "checkpoints", {50, 0});
  });
  EXPECT_EQ(error.number(), ENOSPC);
  EXPECT_THAT(error.hint(), testing::HasSubstr("no free inode"));
}

/// Saves without fsync.
class HastyFileSystem final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  std::unique_ptr<WritableFile> create(const Path& path) override {
    return std::make_unique<File>(ForwardingFileSystem::create(path));
  }
  void sync_directory(const Path&) override {}

 private:
  class File final : public ForwardingFile {
   public:
    using ForwardingFile::ForwardingFile;
    void sync() override {}
  };
};

/// Saves on a separate ext4 file system, copies the disk when the save returns, and checks the copy.
bool is_on_the_disk_when_acknowledged(const Path& scratch, bool hasty, std::int64_t step) {
  const Path image = scratch / "disk.img";
  const Path copy = scratch / "copy.img";
  const Path at = scratch / "mounted";
  std::filesystem::create_directories(at);
  const auto run = [](const std::vector<std::string>& argv) {
    const auto result = run_program(argv);
    if (result.code != 0) {
      throw std::runtime_error(argv[0] + ": " + result.err);
    }
  };
  if (!std::filesystem::exists(image)) {
    run({"truncate", "-s", "16M", image.string()});
    run({"mkfs.ext4", "-q", "-F", image.string()});
  }
  run({"mount", "-o", "loop", image.string(), at.string()});
  {
    const Mount mount(at);
    HastyFileSystem quick(real_file_system());
    FileSystem& fs = hasty ? static_cast<FileSystem&>(quick) : real_file_system();
    save_version(fs, at / "checkpoints", {step, 1});
    run({"cp", "--sparse=always", image.string(), copy.string()});  // power loss
  }
  run({"mount", "-o", "loop", copy.string(), at.string()});
  const Mount mount(at);
  const CheckpointDir checkpoints(real_file_system(), at / "checkpoints", "run", 1);
  const auto newest = testing_storage::newest_valid(checkpoints);
  return newest && newest->step == step &&
         testing_storage::load(checkpoints, *newest) == testing_storage::sample_contents(step, 1);
}

TEST(PowerCut, LosesNothingThatWasAcknowledged) {
  LOCKSTEP_REQUIRE(root_with("mkfs.ext4").that(run_program({"losetup", "--find"}).code == 0, "no free loop device"));
  const TempDir scratch;
  EXPECT_FALSE(is_on_the_disk_when_acknowledged(scratch.path(), /*hasty=*/true, 1))
      << "the control: without fsync it is lost";
  std::filesystem::remove(scratch.path() / "disk.img");
  Sweep sweep("power cuts after the save was acknowledged");
  for (int trial = 1; trial <= rounds(15); ++trial) {
    sweep.count(is_on_the_disk_when_acknowledged(scratch.path(), /*hasty=*/false, trial));
  }
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_GE(sweep.points(), 15);
}

}  // namespace
}  // namespace lockstep
