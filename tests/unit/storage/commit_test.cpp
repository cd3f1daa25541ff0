// Power loss, kills and errors at every operation of a save, with protocols that are known to be bad as controls.

#include <cerrno>
#include <functional>
#include <iostream>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "support/forwarding_file_system.h"
#include "support/memory_file_system.h"
#include "support/message_of.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {
namespace {

using namespace testing_storage;
using Path = std::filesystem::path;

const Path kDirectory = "/runs/digits/checkpoints";

// Removes directories entry by entry, as real file systems do, and can pretend to sync.
class StepwiseFileSystem final : public ForwardingFileSystem {
 public:
  struct Lies {
    bool file_sync = false;
    bool directory_sync = false;
  };
  StepwiseFileSystem(FileSystem& inner, Lies lies) : ForwardingFileSystem(inner), lies_(lies) {}

  std::unique_ptr<WritableFile> create(const Path& path) override {
    auto file = inner_.create(path);
    return lies_.file_sync ? std::make_unique<UnsyncedFile>(std::move(file)) : std::move(file);
  }
  void sync_directory(const Path& path) override {
    if (!lies_.directory_sync) {
      inner_.sync_directory(path);
    }
  }
  void remove_all(const Path& path) override {
    for (const std::string& name : inner_.list(path)) {
      remove_all(path / name);
    }
    inner_.remove_all(path);
  }

 private:
  class UnsyncedFile final : public ForwardingFile {
   public:
    using ForwardingFile::ForwardingFile;
    void sync() override {}
  };

  Lies lies_;
};

struct Version {
  std::int64_t step = 0;
  int version = 0;
};

using SaveFunction = std::function<void(FileSystem& fs, Version version)>;

// One operation of a run on its checkpoints. `before` is durable in the directory; `saved` is the new one.
struct Scenario {
  const char* name;
  std::vector<Version> before;
  Version saved;
};

const std::vector<Scenario> kScenarios = {
    {"first", {}, {50, 1}},
    {"next", {{50, 0}}, {100, 0}},
    {"next, oldest deleted", {{50, 0}, {100, 0}}, {150, 0}},
    {"replaced", {{50, 0}, {100, 0}}, {100, 1}},
    {"the only one replaced", {{50, 0}}, {50, 1}},
};

void library_save(FileSystem& fs, Version version) {
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, version.step, sample_contents(version.step, version.version));
  directory.link("last", version.step);
  directory.retain(2, version.step);
}

// The save of many trainers: directly into the final directory.
void in_place_save(FileSystem& fs, Version version) {
  CheckpointDir directory(fs, "/elsewhere", "run", 0);
  save(directory, version.step, sample_contents(version.step, version.version));
  const Path from = directory.path(version.step);
  const Path to = kDirectory / from.filename();
  fs.create_directories(to);
  for (const std::string& name : fs.list(from)) {
    overwrite(fs, to / name, read_all(*fs.open(from / name)));
  }
}

struct Tally {
  int points = 0;
  int lost = 0;
  std::string first_loss{};
};

// What a new process finds after a power loss or a kill: the previous checkpoint or the new one, and certainly the new
// one once the save has returned. A committed checkpoint must never be damaged.
bool survives(FileSystem& fs, const Scenario& scenario, bool acknowledged) {
  const auto check = [&] {
    const CheckpointDir directory(fs, kDirectory, "run", 1);
    std::vector<std::string> damages;
    const auto newest = newest_valid(directory, &damages);
    if (!newest) {
      return scenario.before.empty() && !acknowledged && damages.empty();
    }
    const Contents found = load(directory, *newest);
    const bool is_saved =
        newest->step == scenario.saved.step && found == sample_contents(scenario.saved.step, scenario.saved.version);
    const bool is_before = !scenario.before.empty() && newest->step == scenario.before.back().step &&
                           found == sample_contents(newest->step, scenario.before.back().version);
    return damages.empty() && (is_saved || (is_before && !acknowledged));
  };
  if (!check()) {
    return false;
  }
  CheckpointDir directory(fs, kDirectory, "run", 1);
  directory.remove_incomplete();
  for (const std::string& name : fs.list(kDirectory)) {
    if (name.find('.') != std::string::npos) {
      return false;  // cleaning up left something, or did not bring back a checkpoint moved aside
    }
  }
  return check();
}

void count(Tally& tally, bool survived, const std::string& where) {
  ++tally.points;
  if (!survived && tally.lost++ == 0) {
    tally.first_loss = where;
  }
}

std::unique_ptr<MemoryFileSystem> prepared(const Scenario& scenario) {
  auto fs = std::make_unique<MemoryFileSystem>();
  for (const Version& version : scenario.before) {
    library_save(*fs, version);
  }
  return fs;
}

// Power loss at every operation of `save`, and just after it; three kinds of disk, the last of which is a mere kill.
Tally lose_power_everywhere(const SaveFunction& save, StepwiseFileSystem::Lies lies) {
  Tally tally;
  for (const Scenario& scenario : kScenarios) {
    for (int offset = 0, finished = 0; finished == 0; ++offset) {
      const auto disk = prepared(scenario);
      disk->lose_power_at(disk->operations() + offset);
      StepwiseFileSystem fs(*disk, lies);
      try {
        save(fs, scenario.saved);
        finished = 1;
      } catch (const PowerLost&) {
      }
      for (const Unsynced unsynced : {Unsynced::lost, Unsynced::entries_kept, Unsynced::all_kept}) {
        const auto after = disk->after_power_loss(unsynced);
        count(tally, survives(*after, scenario, finished == 1),
              std::string(scenario.name) + ", operation " + std::to_string(offset) + ", disk " +
                  std::to_string(static_cast<int>(unsynced)));
      }
    }
  }
  return tally;
}

TEST(Commit, SurvivesPowerLossAndKillsAtEveryOperation) {
  const Tally tally = lose_power_everywhere(library_save, {});
  std::cout << tally.points << " points, " << tally.lost << " lost\n";
  EXPECT_EQ(tally.lost, 0) << tally.first_loss;
  EXPECT_GT(tally.points, 300);
}

TEST(Commit, SweepDetectsUnsafeProtocols) {
  const auto lost = [](const SaveFunction& save, StepwiseFileSystem::Lies lies) {
    const Tally tally = lose_power_everywhere(save, lies);
    std::cout << "control: " << tally.points << " points, " << tally.lost << " lost\n";
    return tally.lost;
  };
  EXPECT_GT(lost(in_place_save, {}), 0);
  EXPECT_GT(lost(library_save, {.file_sync = true}), 0);
  EXPECT_GT(lost(library_save, {.directory_sync = true}), 0);
}

// A crash, then a power loss at every operation of the next process, which cleans up and saves again. The first crash
// is a power loss or a kill: after a kill nothing more is durable than before it.
TEST(Commit, SurvivesTwoCrashesInARow) {
  const auto until_power_is_lost = [](MemoryFileSystem& disk, int operation,
                                      const std::function<void(FileSystem&)>& run) {
    disk.lose_power_at(disk.operations() + operation);
    try {
      StepwiseFileSystem fs(disk, {});
      run(fs);
      return true;
    } catch (const PowerLost&) {
      return false;
    }
  };
  Tally tally;
  for (const Scenario& scenario : kScenarios) {
    bool first_finished = false;
    for (int first = 0; !first_finished; ++first) {
      bool second_finished = false;
      for (int second = first % 2; !second_finished; second += 2) {
        auto disk = std::make_unique<MemoryFileSystem>();
        disk->create_directories(kDirectory.parent_path());  // the run directory is not ours to make durable
        disk->sync_directory("/");
        disk->sync_directory("/runs");
        for (const Version& version : scenario.before) {
          library_save(*disk, version);
        }
        first_finished = until_power_is_lost(*disk, first, [&](FileSystem& fs) { library_save(fs, scenario.saved); });
        if (second % 4 < 2) {
          disk = disk->after_power_loss(Unsynced::lost);
        }
        second_finished = until_power_is_lost(*disk, second, [&](FileSystem& fs) {
          CheckpointDir(fs, kDirectory, "run", 1).remove_incomplete();
          library_save(fs, scenario.saved);
        });
        const bool acknowledged = first_finished || second_finished;
        for (const Unsynced unsynced : {Unsynced::lost, Unsynced::entries_kept}) {
          count(
              tally, survives(*disk->after_power_loss(unsynced), scenario, acknowledged),
              std::string(scenario.name) + ", operations " + std::to_string(first) + " and " + std::to_string(second));
        }
      }
    }
  }
  std::cout << tally.points << " points, " << tally.lost << " lost\n";
  EXPECT_EQ(tally.lost, 0) << tally.first_loss;
  EXPECT_GT(tally.points, 1500);
}

TEST(Commit, ReportsEveryErrorAndKeepsThePreviousCheckpoint) {
  Tally tally;
  int silent = 0;
  for (const Scenario& scenario : kScenarios) {
    for (const int error : {ENOSPC, EIO, EDQUOT}) {
      for (const int times : {1, 1000}) {
        for (int offset = 0, finished = 0; finished == 0; ++offset) {
          const auto disk = prepared(scenario);
          const int failing = disk->operations() + offset;
          disk->fail_at(failing, error, times);
          StepwiseFileSystem fs(*disk, {});
          try {
            library_save(fs, scenario.saved);
            finished = disk->operations() <= failing ? 1 : 0;
            silent += 1 - finished;
          } catch (const IoError&) {
          }
          disk->fail_at(-1, 0, 0);
          const std::string where = std::string(scenario.name) + ", operation " + std::to_string(offset);
          count(tally, survives(*disk->after_power_loss(), scenario, finished == 1), where + ", power lost as well");
          count(tally, survives(*disk, scenario, finished == 1), where);
        }
      }
    }
  }
  std::cout << tally.points << " points, " << tally.lost << " lost, " << silent << " silent\n";
  EXPECT_EQ(tally.lost, 0) << tally.first_loss;
  EXPECT_EQ(silent, 0);
  EXPECT_GT(tally.points, 1000);
}

TEST(Commit, NamesTheStepAndTheCause) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  save(directory, 50, sample_contents(50));
  const auto writer = directory.begin(100);
  fs.fail_at(fs.operations() + 2, ENOSPC);
  const auto error = error_of<IoError>([&] { add_file(*writer, "weights.bin", "weights"); });
  EXPECT_THAT(error.what(), testing::StartsWith("cannot save step-0000000100: cannot write /runs/digits/checkpoints/"));
  EXPECT_THAT(error.what(), testing::EndsWith("weights.bin: No space left on device (free 1.0 TiB)"));
}

TEST(Commit, RemovesUncommittedFiles) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  {
    const auto writer = directory.begin(100);
    add_file(*writer, "weights.bin", "weights");
    EXPECT_EQ(fs.list(kDirectory).size(), 1U);
    EXPECT_TRUE(directory.steps().empty());
  }
  EXPECT_TRUE(fs.list(kDirectory).empty());
}

// The operations of one save, without nonces, "@" for the directory.
std::vector<std::string> trace_of_save(MemoryFileSystem& fs, Version version) {
  CheckpointDir directory(fs, kDirectory, "run", 0);
  const auto before = fs.operations();
  save(directory, version.step, {{"a", std::to_string(version.version)}});
  std::vector<std::string> trace = fs.trace();
  trace.erase(trace.begin(), trace.begin() + before);
  const std::regex nonce("(\\.tmp|\\.old)\\.[0-9a-f]{16}");
  const std::regex at(kDirectory.string());
  for (std::string& line : trace) {
    line = std::regex_replace(std::regex_replace(line, nonce, "$1"), at, "@");
  }
  return trace;
}

const std::vector<std::string> kWriting = {
    "create @/step-0000000100.tmp",
    "create @/step-0000000100.tmp/a",
    "reserve @/step-0000000100.tmp/a",
    "write @/step-0000000100.tmp/a",
    "sync @/step-0000000100.tmp/a",
    "close @/step-0000000100.tmp/a",
    "create @/step-0000000100.tmp/MANIFEST.json",
    "write @/step-0000000100.tmp/MANIFEST.json",
    "sync @/step-0000000100.tmp/MANIFEST.json",
    "close @/step-0000000100.tmp/MANIFEST.json",
    "sync @/step-0000000100.tmp",
};

// docs/checkpoint_format.md "Commit order".
TEST(Commit, FollowsTheDocumentedOrder) {
  MemoryFileSystem fs;
  trace_of_save(fs, {50, 0});
  std::vector<std::string> expected = kWriting;
  expected.insert(expected.end(), {"rename @/step-0000000100.tmp @/step-0000000100", "sync @"});
  EXPECT_EQ(trace_of_save(fs, {100, 0}), expected);
}

TEST(Commit, FollowsTheDocumentedOrderWhenItReplaces) {
  MemoryFileSystem fs;
  trace_of_save(fs, {100, 0});
  fs.create_directories(kDirectory / "step-0000000100.old.0123456789abcdef");
  std::vector<std::string> expected = kWriting;
  expected.insert(expected.end(),
                  {"sync @", "remove @/step-0000000100.old", "sync @", "rename @/step-0000000100 @/step-0000000100.old",
                   "rename @/step-0000000100.tmp @/step-0000000100", "sync @", "remove @/step-0000000100.old"});
  EXPECT_EQ(trace_of_save(fs, {100, 1}), expected);
}

TEST(CommitDeathTest, RefusesToCommitAfterAFailure) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  const auto writer = directory.begin(100);
  EXPECT_THROW(writer->add("a", [](const auto&) { throw DataError("no weights"); }), DataError);
  EXPECT_DEATH(writer->commit(), "not after a failure");
}

TEST(Commit, RefusesFileNamesThatCouldLeaveTheDirectory) {
  MemoryFileSystem fs;
  CheckpointDir directory(fs, kDirectory, "run", 0);
  const auto writer = directory.begin(1);
  for (const std::string& name : {std::string(), std::string("."), std::string(".."), std::string("a/b"),
                                  std::string("/etc/passwd"), std::string("a b"), std::string("a\0b", 3),
                                  std::string("\xc3\xa4"), std::string(129, 'a'), std::string("MANIFEST.json")}) {
    EXPECT_THROW(add_file(*writer, name, "x"), CheckpointError) << name;
  }
  add_file(*writer, std::string(128, 'a'), "x");
  EXPECT_THROW(add_file(*writer, std::string(128, 'a'), "x"), CheckpointError) << "twice";
}

}  // namespace
}  // namespace lockstep
