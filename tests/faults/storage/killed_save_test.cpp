// SIGKILL at every operation of a save, of the one after it, and of a load.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/storage/scenarios.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using namespace storage_faults;
using Save = void (*)(FileSystem&, const Path&, Version);

/// The directory of a scenario before its save.
Path prepared(const ScratchDir& scratch, const Scenario& scenario) {
  const Path directory = scratch.path() / "prepared" / "checkpoints";
  std::filesystem::remove_all(directory.parent_path());
  std::filesystem::create_directories(directory.parent_path());
  for (const Version& version : scenario.before) {
    save_version(real_file_system(), directory, version);
  }
  return directory.parent_path();
}

/// Kills `save` at each of its points.
void kill_everywhere(Sweep& sweep, Save save, std::string& first_loss) {
  const ScratchDir scratch;
  for (const Scenario& scenario : scenarios()) {
    const Path before = prepared(scratch, scenario);
    Ending ending = Ending::killed;
    for (int point = 0; ending == Ending::killed; ++point) {
      const Path directory = scratch.fresh(before) / "checkpoints";
      ending = run_until_killed(point, [&](FileSystem& fs) { save(fs, directory, scenario.saved); });
      ASSERT_NE(ending, Ending::failed) << scenario.name << ", point " << point;
      const bool survived = survives(directory, scenario, ending == Ending::finished);
      sweep.count(survived);
      if (!survived && first_loss.empty()) {
        first_loss = std::string(scenario.name) + ", point " + std::to_string(point);
      }
    }
  }
}

TEST(KilledSave, LosesNothing) {
  Sweep sweep("killed saves");
  std::string first_loss;
  kill_everywhere(sweep, save_version, first_loss);
  EXPECT_EQ(sweep.lost(), 0) << first_loss;
  EXPECT_GE(sweep.points(), 150);
}

TEST(KilledSave, LosesNothingWhileOldOnesAreRemoved) {
  Sweep sweep("killed saves, old ones removed by a thread");
  std::string first_loss;
  kill_everywhere(sweep, save_and_remove_meanwhile, first_loss);
  EXPECT_EQ(sweep.lost(), 0) << first_loss;
  EXPECT_GE(sweep.points(), 150);
}

TEST(KilledSave, HarnessFindsWritingInPlace) {
  Sweep sweep("control, killed while writing in place");
  std::string first_loss;
  kill_everywhere(sweep, save_in_place, first_loss);
  EXPECT_GT(sweep.lost(), 10);
}

// The next process, which cleans up and saves again, is also killed.
TEST(KilledSave, TwiceInARowLosesNothing) {
  const ScratchDir scratch;
  Sweep sweep("killed twice");
  int landed = 0;
  const int pairs = rounds(12);
  for (const Scenario& scenario : scenarios()) {
    const Path before = prepared(scratch, scenario);
    for (int pair = 0; pair < pairs; ++pair) {
      const Path directory = scratch.fresh(before) / "checkpoints";
      const auto first =
          run_until_killed(sweep.between(0, 40), [&](FileSystem& fs) { save_version(fs, directory, scenario.saved); });
      const auto second = run_until_killed(sweep.between(0, 50), [&](FileSystem& fs) {
        CheckpointDir(fs, directory, "run", 1).remove_incomplete();
        save_version(fs, directory, scenario.saved);
      });
      ASSERT_NE(first, Ending::failed);
      ASSERT_NE(second, Ending::failed);
      landed += first == Ending::killed && second == Ending::killed ? 1 : 0;
      sweep.count(survives(directory, scenario, first == Ending::finished || second == Ending::finished));
    }
  }
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_GT(landed, sweep.points() / 4) << "kills that came in time";
}

/// Every name and byte below a directory.
std::map<std::string, std::string> everything(const Path& directory) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    all[entry.path().string()] =
        entry.is_regular_file() && !entry.is_symlink() ? read_file(real_file_system(), entry.path()) : "";
  }
  return all;
}

/// Kills at every lookup and every read.
class ReadingFileSystem final : public ForwardingFileSystem {
 public:
  ReadingFileSystem(FileSystem& inner, std::function<void()> at) : ForwardingFileSystem(inner), at_(std::move(at)) {}
  std::unique_ptr<RandomAccessFile> open(const Path& path) override {
    at_();
    return std::make_unique<Reader>(inner_.open(path), at_);
  }
  bool exists(const Path& path) override { return at_(), inner_.exists(path); }
  std::vector<std::string> list(const Path& path) override { return at_(), inner_.list(path); }

 private:
  class Reader final : public RandomAccessFile {
   public:
    Reader(std::unique_ptr<RandomAccessFile> inner, std::function<void()> at)
        : inner_(std::move(inner)), at_(std::move(at)) {}
    std::int64_t size() const override { return inner_->size(); }
    void read(std::int64_t offset, std::span<std::byte> out) const override {
      at_();
      inner_->read(offset, out);
    }

   private:
    std::unique_ptr<RandomAccessFile> inner_;
    std::function<void()> at_;
  };

  std::function<void()> at_;
};

TEST(KilledLoad, ChangesNothing) {
  const ScratchDir scratch;
  const Scenario& scenario = scenarios()[2];
  const Path directory = prepared(scratch, scenario) / "checkpoints";
  const auto before = everything(directory);
  Sweep sweep("killed loads");
  Ending ending = Ending::killed;
  for (int point = 0; ending == Ending::killed; ++point) {
    ending = run_until_killed(-1, [&](FileSystem& fs) {
      int reached = 0;
      ReadingFileSystem reading(fs, [&] {
        if (reached++ == point) {
          ::kill(::getpid(), SIGKILL);
        }
      });
      const CheckpointDir checkpoints(reading, directory, "run", 1);
      testing_storage::load(checkpoints, *testing_storage::newest_valid(checkpoints));
    });
    sweep.count(everything(directory) == before);
  }
  EXPECT_EQ(ending, Ending::finished);
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_GE(sweep.points(), 15);
}

TEST(DirectoryLock, DiesWithItsOwner) {
  const ScratchDir scratch;
  const Path lock = scratch.path() / ".lock";
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    std::string other;
    const auto held = real_file_system().try_lock(lock, "pid " + std::to_string(::getpid()), other);
    ::write(ready[1], held ? "1" : "0", 1) == 1 ? ::pause() : 0;
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, '1');
  std::string found;
  EXPECT_EQ(real_file_system().try_lock(lock, "me", found), nullptr);
  EXPECT_EQ(found, "pid " + std::to_string(owner));
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  EXPECT_NE(real_file_system().try_lock(lock, "me", found), nullptr);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace lockstep
