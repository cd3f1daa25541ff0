#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <fstream>
#include <latch>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/safetensors.h>
#include <lockstep/world/world.h>

#include "support/captured_stderr.h"
#include "support/failing_reads.h"
#include "support/forwarding_file_system.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;
using testing::Pair;
using testing::ThrowsMessage;

const std::vector<at::ScalarType>& all_types() {
  static const std::vector<at::ScalarType> types{at::kDouble,
                                                 at::kFloat,
                                                 at::kHalf,
                                                 at::kBFloat16,
                                                 at::kFloat8_e4m3fn,
                                                 at::kFloat8_e4m3fnuz,
                                                 at::kFloat8_e5m2,
                                                 at::kFloat8_e5m2fnuz,
                                                 at::kFloat8_e8m0fnu,
                                                 at::kLong,
                                                 at::kInt,
                                                 at::kShort,
                                                 at::kChar,
                                                 at::kByte,
                                                 at::kBool,
                                                 at::kUInt16,
                                                 at::kUInt32,
                                                 at::kUInt64};
  return types;
}

CheckpointContents checkpoint_contents(int value = 1, int rank = 0) {
  CheckpointContents contents;
  for (const at::ScalarType type : all_types()) {
    contents.tensors["model"].emplace_back(std::string("layer.") + c10::toString(type),
                                           at::full({2, 3}, value).to(type));
  }
  contents.tensors["model"].emplace_back("transposed", at::arange(6).view({2, 3}).t().mul(value));
  contents.tensors["model"].emplace_back("empty", at::zeros({0, 4}));
  contents.tensors["optimizer"].emplace_back("layer.step", at::full({}, value, at::kLong));
  contents.values = {{"epoch", std::to_string(value)}, {"text", "quote \" and\nline"}};
  contents.per_rank = at::full({5}, 10 * value + rank, at::kByte);
  return contents;
}

void expect_equal(const CheckpointContents& found, const CheckpointContents& expected) {
  ASSERT_EQ(found.tensors.size(), expected.tensors.size());
  for (const auto& [file, tensors] : expected.tensors) {
    ASSERT_TRUE(found.tensors.contains(file)) << file;
    lockstep::expect_equal(found.tensors.at(file), tensors);
  }
  for (const auto& [name, value] : expected.values) {
    EXPECT_EQ(found.values.at(name), value);
  }
}

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A world of one over a directory.
struct OneRank {
  TempDir directory{};
  World world = World::single(c10::Device("cpu"));
  std::filesystem::path checkpoints() const { return directory.path() / "my_run" / "checkpoints"; }
  CheckpointStore open() { return {checkpoints(), CheckpointConfig{}, world}; }
};

/// Two ranks as threads; each runs `work`, and what it throws is returned.
template <class Work>
std::vector<std::exception_ptr> two_ranks(const Work& work, int nodes = 1) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> thrown(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world = WorldAccess::make(store,
                                        {.rank = rank,
                                         .size = 2,
                                         .local_rank = nodes == 1 ? rank : 0,
                                         .local_size = nodes == 1 ? 2 : 1,
                                         .node = nodes == 1 ? 0 : rank},
                                        c10::Device("cpu"), Backend::gloo, std::chrono::seconds(30));
        work(world);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return thrown;
}

template <class Work>
std::vector<std::exception_ptr> two_nodes(const Work& work) {
  return two_ranks(work, 2);
}

void expect_none(const std::vector<std::exception_ptr>& thrown) {
  for (const std::exception_ptr& error : thrown) {
    if (error) {
      EXPECT_NO_THROW(std::rethrow_exception(error));
    }
  }
}

/// The directories of two_nodes(): each node has one of its own.
struct TwoNodes {
  CheckpointConfig config{.per_node = true};
  TempDir directory{};
  std::filesystem::path of(int node) const { return directory.path() / ("node_" + std::to_string(node)); }
  CheckpointStore open(World& world, FileSystem& disk = real_file_system()) const {
    return {of(world.rank()), config, world, 0, disk};
  }
  void save_steps_1_and_2() const {
    expect_none(two_nodes([&](World& world) {
      CheckpointStore store = open(world);
      store.save(1, checkpoint_contents(1));
      store.save(2, checkpoint_contents(2));
    }));
  }
};

TEST(CheckpointStore, LoadsSavedContents) {
  OneRank one;
  CheckpointStore store = one.open();
  EXPECT_EQ(store.latest(), std::nullopt);
  store.save(7, checkpoint_contents());
  EXPECT_EQ(store.latest(), 7);
  const CheckpointContents loaded = store.load(7);
  expect_equal(loaded, checkpoint_contents());
  EXPECT_TRUE(at::equal(loaded.per_rank, checkpoint_contents().per_rank));
  EXPECT_EQ(loaded.values.at("step"), "7");
  EXPECT_EQ(loaded.values.at("world_size"), "1");
}

TEST(CheckpointStore, WritesTheFilesOfTheFormat) {
  OneRank one;
  one.open().save(7, checkpoint_contents());
  const auto step = one.checkpoints() / "step-0000000007";
  EXPECT_THAT(names_in(step),
              ElementsAre("MANIFEST.json", "model.safetensors", "optimizer.safetensors", "rng-0.bin", "state.json"));
  EXPECT_EQ(read_text(step / "state.json"),
            "{\n  \"format\": 1,\n  \"data_order\": 1,\n  \"step\": 7,\n  \"world_size\": 1,\n"
            "  \"epoch\": \"1\",\n  \"text\": \"quote \\\" and\\nline\"\n}\n");
  EXPECT_THAT(read_text(step / "MANIFEST.json"), HasSubstr("my_run"));
}

TEST(CheckpointStore, KeepsTheNewest) {
  OneRank one;
  {
    CheckpointStore store = one.open();
    for (const int step : {1, 2, 3}) {
      store.save(step, checkpoint_contents(step));
    }
    expect_equal(store.load(2), checkpoint_contents(2));
  }
  EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock", "last", "step-0000000002", "step-0000000003"))
      << "old ones are gone when the store is";
}

/// The first removal of a directory waits for a sign, and then to see whether something is created meanwhile.
class SlowRemoval final : public ForwardingFileSystem {
 public:
  SlowRemoval() : ForwardingFileSystem(real_file_system()) {}
  void remove_all(const Path& path) override {
    sign.wait();
    if (!removed) {
      std::unique_lock lock(mutex_);
      created_meanwhile = changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return created_; });
    }
    ForwardingFileSystem::remove_all(path);
    removed = true;
  }
  void create_directories(const Path& path) override {
    ForwardingFileSystem::create_directories(path);
    if (sign.try_wait()) {
      const std::lock_guard lock(mutex_);
      created_ = true;
      changed_.notify_all();
    }
  }
  std::latch sign{1};
  std::atomic<bool> removed{false};
  std::atomic<bool> created_meanwhile{false};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool created_ = false;  // since the sign
};

TEST(CheckpointStore, RemovesOldOnesInTheBackgroundAndBeforeTheNextSave) {
  for (const bool in_background : {false, true}) {
    OneRank one;
    SlowRemoval slow;
    CheckpointStore store(one.checkpoints(), CheckpointConfig{}, one.world, /*restart=*/0, slow);
    const auto save = [&](int step) {
      in_background ? store.save_in_background(step, checkpoint_contents(step))
                    : store.save(step, checkpoint_contents(step));
      store.wait_for_save();
    };
    for (const int step : {1, 2, 3}) {
      save(step);
    }
    EXPECT_FALSE(slow.removed);
    EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock", "last", testing::StartsWith("step-0000000001.tmp."),
                                                         "step-0000000002", "step-0000000003"))
        << "a save returns before the space of the oldest is free";
    EXPECT_EQ(store.load_latest()->step, 3);
    slow.sign.count_down();
    save(4);
    EXPECT_TRUE(slow.removed);
    EXPECT_FALSE(slow.created_meanwhile) << "the disk never has more than one save's old checkpoints";
  }
}

TEST(CheckpointStore, SavesAlthoughOldOnesCannotBeRemoved) {
  class NoRemoval final : public ForwardingFileSystem {
   public:
    using ForwardingFileSystem::ForwardingFileSystem;
    void remove_all(const Path& path) override {
      throw IoError("cannot remove " + path.string() + ": Input/output error");
    }
  };
  OneRank one;
  {
    NoRemoval failing(real_file_system());
    CheckpointStore store(one.checkpoints(), CheckpointConfig{}, one.world, /*restart=*/0, failing);
    CapturedStderr captured;
    for (const int step : {1, 2, 3, 4}) {
      store.save(step, checkpoint_contents(step));
    }
    EXPECT_THAT(captured.text(),
                HasSubstr("could not delete old checkpoints: cannot remove " + one.checkpoints().string()));
    EXPECT_EQ(store.load_latest()->step, 4);
  }
  {
    NoRemoval failing(real_file_system());
    CheckpointStore store(one.checkpoints(), CheckpointConfig{}, one.world, /*restart=*/0, failing);
    EXPECT_EQ(store.load_latest()->step, 4) << "a start does not need their space either";
  }
  one.open();
  EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock", "last", "step-0000000003", "step-0000000004"));
}

TEST(CheckpointStore, FallsBackFromADamagedOne) {
  OneRank one;
  CheckpointStore store = one.open();
  store.save(1, checkpoint_contents(1));
  store.save(2, checkpoint_contents(2));
  std::ofstream(one.checkpoints() / "step-0000000002" / "model.safetensors", std::ios::app) << "x";
  EXPECT_EQ(store.latest(), 2);
  EXPECT_EQ(store.load_latest()->step, 1);
  expect_equal(store.load_latest()->contents, checkpoint_contents(1));
  EXPECT_THAT([&] { store.load(2); }, ThrowsMessage<CheckpointError>(HasSubstr("model.safetensors")));
  expect_equal(store.load(1), checkpoint_contents(1));
}

void damage(const std::filesystem::path& checkpoint) {
  std::ofstream(checkpoint / "MANIFEST.json", std::ios::app) << "x";
}

TEST(CheckpointStore, NeverReplacesOrDeletesADamagedOne) {
  OneRank one;
  {
    CheckpointStore store = one.open();
    store.save(1, checkpoint_contents(1));
    store.save(2, checkpoint_contents(2));
  }
  damage(one.checkpoints() / "step-0000000002");
  const std::string before = read_text(one.checkpoints() / "step-0000000002" / "MANIFEST.json");
  {
    CheckpointStore store = one.open();
    std::vector<std::string> told;
    EXPECT_EQ(store.load_latest([&](const std::string& what) { told.push_back(what); })->step, 1);
    EXPECT_THAT(told, ElementsAre(HasSubstr("step-0000000002/MANIFEST.json: its checksum")));
    for (int step = 2; step <= 6; ++step) {
      store.save(step, checkpoint_contents(step));
    }
  }
  const auto names = names_in(one.checkpoints());
  ASSERT_THAT(names, ElementsAre(".lock", "last", testing::StartsWith("step-0000000002.abandoned."), "step-0000000005",
                                 "step-0000000006"));
  EXPECT_EQ(read_text(one.checkpoints() / names[2] / "MANIFEST.json"), before);
}

TEST(CheckpointStore, DoesNotStartOverWhenAllAreDamaged) {
  const TwoNodes nodes;
  nodes.save_steps_1_and_2();
  for (const char* checkpoint : {"node_0/step-0000000001", "node_0/step-0000000002", "node_1/step-0000000001"}) {
    damage(nodes.directory.path() / checkpoint);
  }
  expect_none(two_nodes([&](World& world) {
    CheckpointStore store = nodes.open(world);
    EXPECT_EQ(store.load_latest()->step, 2) << "of the other node";
  }));
  damage(nodes.of(1) / "step-0000000002");
  for (const std::exception_ptr& error : two_nodes([&](World& world) { nodes.open(world).load_latest(); })) {
    ASSERT_TRUE(error);
    EXPECT_THAT([&] { std::rethrow_exception(error); },
                ThrowsMessage<CheckpointError>(
                    testing::AllOf(HasSubstr("node_0 can be read: step-0000000002, "), HasSubstr("step-0000000001"))));
  }
}

// No permission, or a file server that fails: the newest one may be intact.
TEST(CheckpointStore, TakesNoOlderOneIfTheNewestCannotBeRead) {
  OneRank one;
  {
    CheckpointStore store = one.open();
    store.save(1, checkpoint_contents(1));
    store.save(2, checkpoint_contents(2));
  }
  FailingReads disk(real_file_system(), one.checkpoints() / "step-0000000002" / "model.safetensors");
  {
    CheckpointStore store(one.checkpoints(), {}, one.world, 0, disk);
    disk.error = ESTALE;
    std::vector<std::string> told;
    const auto error = error_of<IoError>([&] { store.load_latest([&](const auto& what) { told.push_back(what); }); });
    EXPECT_EQ(error.exit_code(), ExitCode::io);
    EXPECT_THAT(error.what(), HasSubstr("model.safetensors: Stale file handle"));
    EXPECT_THAT(told, testing::IsEmpty());
    store.save(3, checkpoint_contents(3));
  }
  EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock", "last", "step-0000000002", "step-0000000003"))
      << "it was not taken for damaged";
}

// Their values say which checkpoint is the best: without them it could be deleted.
TEST(CheckpointStore, DoesNotOpenIfValuesCannotBeRead) {
  OneRank one;
  one.open().save(1, checkpoint_contents(1));
  FailingReads disk(real_file_system(), one.checkpoints() / "step-0000000001" / "state.json");
  disk.error = EACCES;
  const auto open = [&] { CheckpointStore(one.checkpoints(), {}, one.world, 0, disk); };
  EXPECT_THAT(open, ThrowsMessage<IoError>(HasSubstr("state.json: Permission denied")));
  disk.error = EIO;
  EXPECT_NO_THROW(open()) << "damage";
}

TEST(CheckpointStore, EndsOnEveryRankIfOneCannotRead) {
  const TwoNodes nodes;
  nodes.save_steps_1_and_2();
  std::filesystem::remove_all(nodes.of(0) / "step-0000000002");  // so the other node is asked for it
  for (const std::exception_ptr& error : two_nodes([&](World& world) {
         FailingReads disk(real_file_system(), nodes.of(world.rank()) / "step-0000000002" / "model.safetensors");
         disk.error = ETIMEDOUT;
         nodes.open(world, disk).load_latest();
       })) {
    ASSERT_TRUE(error);
    EXPECT_THAT([&] { std::rethrow_exception(error); },
                ThrowsMessage<IoError>(HasSubstr("node_1/step-0000000002/model.safetensors: Connection timed out")));
  }
  expect_none(two_nodes([&](World& world) { EXPECT_EQ(nodes.open(world).load_latest()->step, 2) << "the control"; }));
}

TEST(CheckpointStore, TakesTheSameOneOfAnotherNodeIfOneCannotRead) {
  const TwoNodes nodes;
  nodes.save_steps_1_and_2();
  for (const char* file : {"model.safetensors", "state.json"}) {
    expect_none(two_nodes([&](World& world) {
      FailingReads disk(real_file_system(), nodes.of(world.rank()) / "step-0000000002" / file);
      disk.error = world.is_main() ? ESTALE : 0;
      const auto stored = nodes.open(world, disk).load_latest();
      ASSERT_TRUE(stored);
      EXPECT_EQ(stored->step, 2) << file;
      expect_equal(stored->contents, checkpoint_contents(2));
    }));
  }
  std::filesystem::remove(nodes.of(1) / "step-0000000002" / "model.safetensors");
  for (const std::exception_ptr& error : two_nodes([&](World& world) {
         FailingReads disk(real_file_system(), nodes.of(world.rank()) / "step-0000000002" / "model.safetensors");
         disk.error = world.is_main() ? ESTALE : 0;
         nodes.open(world, disk).load_latest();
       })) {
    ASSERT_TRUE(error);
    EXPECT_THAT([&] { std::rethrow_exception(error); }, ThrowsMessage<IoError>(HasSubstr("Stale file handle")))
        << "that of the other node is damaged, and step 1 is older";
  }
}

/// A disk for `checkpoints` checkpoints of checkpoint_contents().
class SmallDisk final : public ForwardingFileSystem {
 public:
  SmallDisk(std::filesystem::path directory, double checkpoints)
      : ForwardingFileSystem(real_file_system()), directory_(std::move(directory)), checkpoints_(checkpoints) {}
  std::int64_t free_bytes(const Path&) override {
    std::int64_t bytes = 0;
    for (const auto& [file, tensors] : checkpoint_contents().tensors) {
      for (const auto& [name, tensor] : tensors) {
        bytes += static_cast<std::int64_t>(tensor.nbytes());
      }
    }
    const auto names = inner_.list(directory_);
    const auto used = std::count_if(names.begin(), names.end(), [](const auto& n) { return n.starts_with("step-"); });
    return static_cast<std::int64_t>((checkpoints_ - static_cast<double>(used)) * static_cast<double>(bytes));
  }

 private:
  Path directory_;
  double checkpoints_;
};

TEST(CheckpointStore, MakesRoomForTheFirstSaveAfterAResume) {
  OneRank one;
  const CheckpointConfig config{.keep_last = 3};
  SmallDisk disk(one.checkpoints(), 3.7);
  for (const bool loads : {true, false}) {
    CheckpointStore store(one.checkpoints(), config, one.world, 0, disk);
    const int first = loads ? 0 : 10;
    if (loads) {
      store.load_latest();
    }
    for (int step = first; step < first + 6; ++step) {
      store.save(step, checkpoint_contents(step));
    }
  }
  EXPECT_THAT(names_in(one.checkpoints()),
              ElementsAre(".lock", "last", "step-0000000013", "step-0000000014", "step-0000000015"));
  damage(one.checkpoints() / "step-0000000014");
  damage(one.checkpoints() / "step-0000000015");
  CheckpointStore store(one.checkpoints(), config, one.world, 0, disk);
  EXPECT_THROW(store.save(16, checkpoint_contents(16)), IoError)
      << "the only one that is whole is worth more than a new one";
  EXPECT_EQ(store.load_latest()->step, 13);
}

/// The disk has room, and a quota allows so many checkpoints.
class QuotaDisk final : public ForwardingFileSystem {
 public:
  QuotaDisk(std::filesystem::path directory, std::ptrdiff_t checkpoints)
      : ForwardingFileSystem(real_file_system()), directory_(std::move(directory)), checkpoints_(checkpoints) {}
  std::unique_ptr<WritableFile> create(const Path& path) override {
    const auto names = inner_.list(directory_);
    const auto used = std::count_if(names.begin(), names.end(), [](const auto& name) {
      return name.starts_with("step-") && name.find(".tmp.") == std::string::npos;
    });
    if (used >= checkpoints_) {
      throw IoError("cannot write " + path.string() + ": Disk quota exceeded", {}, EDQUOT);
    }
    return inner_.create(path);
  }

 private:
  Path directory_;
  std::ptrdiff_t checkpoints_;
};

TEST(CheckpointStore, MakesRoomUnderAQuota) {
  OneRank one;
  QuotaDisk disk(one.checkpoints(), 3);
  {
    CheckpointStore store(one.checkpoints(), {.keep_last = 5}, one.world, 0, disk);
    for (int step = 1; step <= 6; ++step) {
      store.save(step, checkpoint_contents(step));
    }
  }
  EXPECT_THAT(names_in(one.checkpoints()),
              ElementsAre(".lock", "last", "step-0000000004", "step-0000000005", "step-0000000006"));
  CheckpointStore all(one.checkpoints(), {.keep_all = true}, one.world, 0, disk);
  EXPECT_THROW(all.save(7, checkpoint_contents(7)), IoError);
  EXPECT_THAT(names_in(one.checkpoints()), testing::Contains("step-0000000004"));
}

TEST(CheckpointStore, DeletesNothingForRoomIfAllAreKept) {
  OneRank one;
  SmallDisk disk(one.checkpoints(), 3.7);
  CheckpointStore store(one.checkpoints(), {.keep_all = true}, one.world, 0, disk);
  for (int step = 1; step <= 3; ++step) {
    store.save(step, checkpoint_contents(step));
  }
  EXPECT_THAT(message_of<IoError>([&] { store.save(4, checkpoint_contents(4)); }),
              testing::EndsWith("; without checkpoint.keep_all a save deletes old checkpoints to make room"));
  EXPECT_THAT(names_in(one.checkpoints()),
              ElementsAre(".lock", "last", "step-0000000001", "step-0000000002", "step-0000000003"));
}

TEST(CheckpointStore, NamesOnlySettingsThatWouldMakeRoom) {
  const auto hint = [](const CheckpointConfig& config, int fit) {
    OneRank one;
    SmallDisk disk(one.checkpoints(), fit + 0.7);
    CheckpointStore store(one.checkpoints(), config, one.world, 0, disk);
    CheckpointContents contents = checkpoint_contents();
    for (int step = 1; step <= fit; ++step) {
      contents.values["metric.val_loss"] = std::to_string(step);
      store.save(step, contents);
    }
    return error_of<IoError>([&] { store.save(fit + 1, contents); }).hint();
  };
  const std::string free_space = "free space; the newest checkpoints are unchanged";
  EXPECT_EQ(hint({}, 2), free_space);
  EXPECT_EQ(hint({.keep_last = 5}, 2), free_space);
  EXPECT_EQ(hint({.keep_all = true}, 2), free_space);
  EXPECT_EQ(hint({.monitor = "val_loss", .keep_best = 2}, 3),
            free_space + "; with a lower checkpoint.keep_best a save may delete more old checkpoints");
}

TEST(CheckpointStore, SavesUnderANameThatIsTooLongForALink) {
  OneRank one;
  const CheckpointConfig config{.name = "{epoch}" + std::string(127, 'x')};
  CheckpointStore store(one.checkpoints(), config, one.world);
  store.save(1, checkpoint_contents(1));
  store.save(2, checkpoint_contents(10));
  EXPECT_EQ(store.load_latest()->step, 2);
  EXPECT_THAT(names_in(one.checkpoints()), testing::Contains("1" + std::string(127, 'x')));
}

TEST(CheckpointStore, SavesACopyOfTheStateInTheBackground) {
  OneRank one;
  CheckpointStore store = one.open();
  EXPECT_FALSE(store.save_ended());
  EXPECT_EQ(store.wait_for_save(), std::nullopt);
  for (int value = 1; value <= 3; ++value) {
    CheckpointContents contents = checkpoint_contents(value);
    store.save_in_background(value, contents);
    for (auto& [name, tensor] : contents.tensors["model"]) {
      tensor.zero_();  // training goes on
    }
    const auto saved = store.wait_for_save();
    ASSERT_TRUE(saved);
    EXPECT_EQ(saved->step, value);
    EXPECT_GT(saved->duration_s, 0);
    EXPECT_FALSE(store.save_ended());
    expect_equal(store.load(value), checkpoint_contents(value));
  }
  CheckpointContents other;
  other.tensors["weights"].emplace_back("w", at::ones({7}));
  store.save_in_background(4, other);
  expect_equal(store.load(*store.latest()), other);
}

/// fsync waits for a sign.
class SlowFileSystem final : public ForwardingFileSystem {
 public:
  SlowFileSystem() : ForwardingFileSystem(real_file_system()) {}
  void sync_directory(const Path& path) override {
    if (armed) {
      gate.wait();
    }
    ForwardingFileSystem::sync_directory(path);
    if (failing) {
      throw IoError("cannot sync " + path.string() + ": Input/output error");
    }
  }
  std::atomic<bool> armed{false};
  std::atomic<bool> failing{false};
  std::latch gate{1};
};

TEST(CheckpointStore, HasOneActiveSaveAndReportsItsEnd) {
  const TempDir directory;
  SlowFileSystem slow;
  std::latch both_started(2);
  const auto thrown = two_ranks([&](World& world) {
    CheckpointStore store(directory.path(), CheckpointConfig{}, world, /*restart=*/0, slow);
    slow.armed = true;
    store.save_in_background(1, checkpoint_contents(1, world.rank()));
    EXPECT_FALSE(store.save_ended());
    both_started.arrive_and_wait();
    if (world.is_main()) {
      slow.gate.count_down();
    }
    store.save_in_background(2, checkpoint_contents(2, world.rank()));  // waits for the first
    EXPECT_EQ(store.wait_for_save()->step, 2);
    expect_equal(store.load(1), checkpoint_contents(1));
    world.barrier("before it fails");
    slow.failing = true;
    store.save_in_background(3, checkpoint_contents(3, world.rank()));
    EXPECT_THROW(store.wait_for_save(), IoError);
    EXPECT_EQ(store.wait_for_save(), std::nullopt) << "told once";
    world.barrier("after it failed");
    slow.failing = false;
    store.save_in_background(4, checkpoint_contents(4, world.rank()));
    EXPECT_EQ(store.wait_for_save()->step, 4);
  });
  expect_none(thrown);
}

TEST(CheckpointStore, FindsTheBest) {
  OneRank one;
  CheckpointConfig config{.monitor = "val_loss", .keep_best = 2};
  const auto save = [](CheckpointStore& store, int step, const char* loss) {
    CheckpointContents contents = checkpoint_contents(step);
    if (loss != nullptr) {
      contents.values["metric.val_loss"] = loss;
    }
    store.save(step, contents);
  };
  {
    CheckpointStore store(one.checkpoints(), config, one.world);
    EXPECT_FALSE(store.load_best());
    save(store, 1, "0.5");
    save(store, 2, "0.25");
    save(store, 3, "nan");
    save(store, 4, "0.375");
    save(store, 5, nullptr);
    save(store, 6, "0.75");
    EXPECT_EQ(store.load_best()->step, 2);
  }
  EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock", "best", "last", "step-0000000002", "step-0000000004",
                                                       "step-0000000005", "step-0000000006"));
  CheckpointStore again(one.checkpoints(), config, one.world);
  EXPECT_EQ(again.load_best()->step, 2) << "known from the files";
  std::ofstream(one.checkpoints() / "step-0000000002" / "model.safetensors", std::ios::app) << "x";
  EXPECT_EQ(again.load_best()->step, 4) << "the best that verifies";
  config.mode = MonitorMode::max;
  EXPECT_FALSE(CheckpointStore(one.directory.path() / "other", config, one.world).load_best());
}

// As early stopping, for which an equal value is no improvement.
TEST(CheckpointStore, KeepsTheFirstOfEquals) {
  for (const MonitorMode mode : {MonitorMode::min, MonitorMode::max}) {
    OneRank one;
    CheckpointStore store(one.checkpoints(), {.monitor = "val_accuracy", .mode = mode}, one.world);
    for (const int step : {1, 2, 3}) {
      CheckpointContents contents = checkpoint_contents(step);
      contents.values["metric.val_accuracy"] = "1";
      store.save(step, contents);
    }
    EXPECT_EQ(store.best()->first, 1);
    EXPECT_EQ(store.load_best()->step, 1);
    EXPECT_EQ(std::filesystem::read_symlink(one.checkpoints() / "best"), "step-0000000001");
  }
}

TEST(CheckpointStore, KnowsTheBestOfASaveThatIsStillWritten) {
  OneRank one;
  CheckpointStore store(one.checkpoints(), {.monitor = "val_loss"}, one.world);
  CheckpointContents contents = checkpoint_contents(1);
  contents.values["metric.val_loss"] = "0.5";
  store.save(1, contents);
  contents.values["metric.val_loss"] = "0.25";
  store.save_in_background(2, contents);
  EXPECT_EQ(store.best(), std::pair(std::int64_t{2}, 0.25));
  store.abandon_after(1);
  EXPECT_EQ(store.best(), std::pair(std::int64_t{1}, 0.5));
}

TEST(CheckpointStore, LoadsACheckpointOfAnyRunByNameOrLink) {
  OneRank one;
  {
    CheckpointStore store = one.open();
    store.save(1, checkpoint_contents(1));
    store.save(2, checkpoint_contents(2));
  }
  const auto run = one.directory.path() / "my_run";
  expect_equal(load_checkpoint(run, one.world), checkpoint_contents(2));
  expect_equal(load_checkpoint(run.string() + "/", one.world), checkpoint_contents(2));
  expect_equal(load_checkpoint(run / "checkpoints" / "last", one.world), checkpoint_contents(2));
  expect_equal(load_checkpoint(run / "checkpoints" / "step-0000000001", one.world), checkpoint_contents(1));
  expect_equal(load_checkpoint(run / "checkpoints", one.world), checkpoint_contents(2));
  EXPECT_THAT([&] { load_checkpoint(run / "checkpoints" / "last" / "state.json", one.world); },
              ThrowsMessage<CheckpointError>(HasSubstr("state.json: it is a file, expected a checkpoint or a run")));
  const auto missing = run / "checkpoints" / "step-0000000003";
  EXPECT_THAT(
      [&] { load_checkpoint(missing, one.world); },
      ThrowsMessage<CheckpointError>(testing::StartsWith(missing.string() + ": No such file or directory, expected ")));
  EXPECT_THAT([&] { load_checkpoint(one.directory.path(), one.world); },
              ThrowsMessage<CheckpointError>(HasSubstr("it has no readable checkpoint")));
}

TEST(CheckpointStore, LoadsAnAbandonedCheckpointByItsName) {
  OneRank one;
  CheckpointStore store = one.open();
  store.save(1, checkpoint_contents(1));
  store.save(2, checkpoint_contents(2));
  store.abandon_after(1);
  const std::string name = names_in(one.checkpoints()).back();
  ASSERT_THAT(name, testing::StartsWith("step-0000000002.abandoned."));
  expect_equal(load_checkpoint(one.checkpoints() / name, one.world), checkpoint_contents(2));
  expect_equal(load_checkpoint(one.checkpoints(), one.world), checkpoint_contents(1));
}

TEST(CheckpointStore, LeavesAbandonedCheckpointsUnchanged) {
  OneRank one;
  CheckpointStore store = one.open();
  store.save(1, checkpoint_contents(1));
  store.save(2, checkpoint_contents(2));
  store.abandon_after(1);
  EXPECT_EQ(store.latest(), 1);
  EXPECT_EQ(names_in(one.checkpoints()).size(), 4U) << "nothing is deleted";
  store.save(3, checkpoint_contents(3));
  EXPECT_EQ(store.latest(), 3);
}

// Two nodes of one rank each; the first one's disk is lost.
TEST(CheckpointStore, SavesNothingAfterItsDirectoryWasRenamedOrRemoved) {
  for (const bool renamed : {true, false}) {
    OneRank one;
    CheckpointStore store = one.open();
    store.save(1, checkpoint_contents());
    const auto run = one.checkpoints().parent_path();
    if (renamed) {
      std::filesystem::rename(run, one.directory.path() / "aside");
    } else {
      std::filesystem::remove_all(run);
    }
    const auto expect_refusal = [&] {
      EXPECT_THAT([&] { store.save(2, checkpoint_contents()); },
                  ThrowsMessage<CheckpointError>(HasSubstr("was renamed or removed during the run")));
    };
    expect_refusal();
    EXPECT_FALSE(std::filesystem::exists(run));
    const CheckpointStore other = one.open();
    expect_refusal();
    EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock"));
  }
}

// A program that removes old files takes the one that nobody has written for the longest time.
TEST(CheckpointStore, KeepsItsLockYoungAndNamesItIfItIsRemoved) {
  OneRank one;
  CheckpointStore store = one.open();
  const auto lock = one.checkpoints() / ".lock";
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(24);
  std::filesystem::last_write_time(lock, old);
  store.save(1, checkpoint_contents());
  EXPECT_GT(std::filesystem::last_write_time(lock), old + std::chrono::hours(12));
  std::filesystem::remove(lock);
  EXPECT_THAT([&] { store.save(2, checkpoint_contents()); },
              ThrowsMessage<CheckpointError>(HasSubstr("its file .lock was removed during the run")));
}

TEST(CheckpointStore, KeepsACopyOnEveryNode) {
  const TwoNodes nodes;
  for (const bool background : {false, true}) {
    expect_none(two_nodes([&](World& world) {
      CheckpointStore store = nodes.open(world);
      const int value = background ? 8 : 7;
      background ? store.save_in_background(value, checkpoint_contents(value + world.rank(), world.rank()))
                 : store.save(value, checkpoint_contents(value + world.rank(), world.rank()));
      EXPECT_EQ(store.latest(), value);
    }));
    for (const char* file : {"model.safetensors", "rng-0.bin", "rng-1.bin", "state.json", "MANIFEST.json"}) {
      const std::string step = background ? "step-0000000008" : "step-0000000007";
      EXPECT_FALSE(read_text(nodes.of(0) / step / file).empty());
      if (std::string(file) != "MANIFEST.json") {
        EXPECT_EQ(read_text(nodes.of(0) / step / file), read_text(nodes.of(1) / step / file));
      }
    }
  }
  std::filesystem::remove_all(nodes.of(0));
  expect_none(two_nodes([&](World& world) {
    CheckpointStore store = nodes.open(world);
    ASSERT_EQ(store.latest(), 8);
    const CheckpointContents loaded = store.load(8);
    expect_equal(loaded, checkpoint_contents(8));
    EXPECT_EQ(loaded.per_rank[0].item<int>(),
              checkpoint_contents(8 + world.rank(), world.rank()).per_rank[0].item<int>());
  }));
  // One directory for both nodes is a mistake that is told.
  for (const std::exception_ptr& error :
       two_nodes([&](World& world) { CheckpointStore(nodes.directory.path() / "shared", nodes.config, world); })) {
    ASSERT_TRUE(error);
    EXPECT_THAT([&] { std::rethrow_exception(error); }, ThrowsMessage<CheckpointError>(HasSubstr("locked by")));
  }
}

TEST(CheckpointStore, KnowsTheBestOfAnotherNode) {
  for (const MonitorMode mode : {MonitorMode::min, MonitorMode::max}) {
    const TwoNodes nodes{.config = {.monitor = "val_loss", .mode = mode, .keep_best = 1, .per_node = true}};
    expect_none(two_nodes([&](World& world) {
      CheckpointStore store = nodes.open(world);
      EXPECT_FALSE(store.best());
      for (const auto& [step, loss] : {std::pair(1, "0.5"), std::pair(2, "0.25")}) {
        CheckpointContents contents = checkpoint_contents(step);
        contents.values["metric.val_loss"] = loss;
        store.save(step, contents);
      }
    }));
    std::filesystem::remove_all(nodes.of(0));
    expect_none(two_nodes([&](World& world) {
      CheckpointStore store = nodes.open(world);
      const bool lower = mode == MonitorMode::min;
      EXPECT_EQ(store.best(), std::pair(std::int64_t{lower ? 2 : 1}, lower ? 0.25 : 0.5));
      EXPECT_EQ(store.load_best()->step, lower ? 2 : 1);
    }));
  }
}

TEST(CheckpointStore, RejectsOnEveryRankWhatAnotherNodeCannotStore) {
  const TwoNodes nodes;
  for (const std::exception_ptr& error : two_nodes([&](World& world) {
         CheckpointStore store = nodes.open(world);
         CheckpointContents contents = checkpoint_contents();
         contents.tensors["model"].emplace_back("z", at::zeros({2}, at::kComplexDouble));
         store.save(1, contents);
       })) {
    ASSERT_TRUE(error);
    EXPECT_THAT([&] { std::rethrow_exception(error); },
                ThrowsMessage<CheckpointError>(HasSubstr("z has dtype ComplexDouble")));
  }
}

/// Refuses the second allocation of kMarked bytes to a thread that asks for it: the first is of the broadcast, the
/// second of the copy that is written in the background.
class FailingAllocator final : public c10::Allocator {
 public:
  static constexpr std::size_t kMarked = 12'345;
  static thread_local int left;  // until the next failure; 0: none

  FailingAllocator() { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~FailingAllocator() override { c10::SetCPUAllocator(inner_, /*priority=*/1); }
  FailingAllocator(const FailingAllocator&) = delete;
  FailingAllocator& operator=(const FailingAllocator&) = delete;
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == kMarked && left > 0 && --left == 0) {
      throw std::runtime_error("no memory for the copy");
    }
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }

 private:
  c10::Allocator* inner_ = c10::GetCPUAllocator();
};
thread_local int FailingAllocator::left = 0;

TEST(CheckpointStore, LeavesNoThreadBehindWhenASaveInTheBackgroundBeginsOnOneNodeOnly) {
  const TwoNodes nodes;
  const FailingAllocator allocator;
  SlowFileSystem slow;
  expect_none(two_nodes([&](World& world) {
    CheckpointStore store = nodes.open(world, world.is_main() ? slow : real_file_system());
    CheckpointContents contents;
    contents.tensors["model"].emplace_back("w", at::zeros({FailingAllocator::kMarked}, at::kByte));
    FailingAllocator::left = world.is_main() ? 0 : 2;
    slow.armed = true;
    std::atomic<bool> opened{false};
    std::thread opens([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // longer than a store that does not wait
      if (world.is_main() && !opened.exchange(true)) {
        slow.gate.count_down();
      }
    });
    EXPECT_THAT(
        [&] { store.save_in_background(1, contents); },
        testing::Throws<std::runtime_error>(testing::Property(&std::runtime_error::what, HasSubstr("no memory"))));
    EXPECT_TRUE(!world.is_main() || opened) << "a thread still writes what the next save will overwrite";
    opens.join();
    FailingAllocator::left = 0;
    store.save_in_background(2, contents);
    EXPECT_EQ(store.wait_for_save()->step, 2);
  }));
}

TEST(CheckpointStore, RemovesIncompleteCheckpoints) {
  OneRank one;
  std::filesystem::create_directories(one.checkpoints() / "step-0000000009.tmp.0123456789abcdef");
  ASSERT_EQ(names_in(one.checkpoints()).size(), 1U);
  const CheckpointStore store = one.open();
  EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock"));
}

TEST(CheckpointStore, HasOneOwner) {
  OneRank one;
  {
    const CheckpointStore owner = one.open();
    EXPECT_THAT([&] { one.open(); },
                ThrowsMessage<CheckpointError>(AllOf(HasSubstr("locked by pid " + std::to_string(::getpid()) + " on "),
                                                     testing::EndsWith(", which is this process"))));
  }
  one.open().save(1, checkpoint_contents());
}

TEST(CheckpointStore, RejectsUnsupportedContents) {
  OneRank one;
  CheckpointStore store = one.open();
  CheckpointContents complex = checkpoint_contents();
  complex.tensors["model"].emplace_back("z", at::zeros({2}, at::kComplexDouble));
  EXPECT_THAT([&] { store.save(1, complex); },
              ThrowsMessage<CheckpointError>(HasSubstr("model.safetensors: z has dtype ComplexDouble")));
  CheckpointContents taken = checkpoint_contents();
  taken.values["world_size"] = "2";
  EXPECT_THAT([&] { store.save(1, taken); },
              ThrowsMessage<CheckpointError>(HasSubstr("the value world_size is 2, but the store writes 1")));
  EXPECT_THAT(names_in(one.checkpoints()), ElementsAre(".lock"));
}

// As safetensors.torch.save_model() of Python writes them.
TEST(CheckpointStore, WritesTheOtherNamesOfTiedWeightsIntoTheMetadata) {
  const TwoNodes nodes;
  expect_none(two_nodes([&](World& world) {
    CheckpointStore store = nodes.open(world);
    CheckpointContents contents = checkpoint_contents();
    contents.tied_names = {{"head", "layer.Float"}, {"format", "empty"}};
    store.save(1, contents);
    store.save_in_background(2, contents);
    store.wait_for_save();
    EXPECT_THAT(store.load(2).tied_names, testing::IsEmpty());
  }));
  for (const int node : {0, 1}) {
    for (const char* step : {"step-0000000001", "step-0000000002"}) {
      const auto metadata = [&](const char* file) {
        return SafetensorsReader(real_file_system().open(nodes.of(node) / step / file), file).metadata();
      };
      EXPECT_THAT(metadata("model.safetensors"), ElementsAre(Pair("format", "pt"), Pair("head", "layer.Float")));
      EXPECT_THAT(metadata("optimizer.safetensors"), ElementsAre(Pair("format", "pt")));
    }
  }
}

TEST(CheckpointStore, RefusesInvalidArgumentsAndGoesOn) {
  OneRank one;
  CheckpointStore store = one.open();
  CheckpointContents contents;
  EXPECT_THAT(message_of<ConfigError>([&] { store.save(-1, contents); }), HasSubstr("step is -1, expected 0 or more"));
  store.save_in_background(-1, contents);
  EXPECT_THAT(message_of<ConfigError>([&] { store.wait_for_save(); }), HasSubstr("step is -1, expected 0 or more"));
  contents.per_rank = at::zeros({2});
  EXPECT_THAT(message_of<ConfigError>([&] { store.save(1, contents); }),
              HasSubstr("per_rank is a 1-dimensional tensor of Float, expected a row of bytes"));
  contents.per_rank = at::zeros({1, 2}, at::kByte);
  EXPECT_THAT(message_of<ConfigError>([&] { store.save_in_background(1, contents); }), HasSubstr("2-dimensional"));
  contents.per_rank = at::zeros({2}, at::kByte);
  store.save(1, contents);
  EXPECT_EQ(store.latest(), 1);
}

TEST(CheckpointStore, GivesEveryRankComplexTensors) {
  const TempDir directory;
  expect_none(two_ranks([&](World& world) {
    CheckpointStore store(directory.path(), CheckpointConfig{}, world);
    CheckpointContents complex = checkpoint_contents();
    complex.tensors["model"].emplace_back("z", at::complex(at::ones({3}), at::arange(3, at::kFloat)));
    store.save(1, complex);
    expect_equal(store.load(1), complex);
  }));
}

TEST(CheckpointStore, NeverDeletesTheLastWithFiniteParameters) {
  OneRank one;
  const auto save = [](CheckpointStore& store, std::int64_t step, const char* finite) {
    CheckpointContents contents = checkpoint_contents();
    if (finite != nullptr) {
      contents.values[kParametersFinite] = finite;
    }
    store.save(step, contents);
  };
  {
    CheckpointStore store = one.open();
    save(store, 1, "true");
    save(store, 2, nullptr);
    for (const std::int64_t step : {3, 4, 5}) {
      save(store, step, "false");
    }
  }
  EXPECT_THAT(names_in(one.checkpoints()), IsSupersetOf({"step-0000000002", "step-0000000004", "step-0000000005"}));
  EXPECT_THAT(names_in(one.checkpoints()), Not(Contains("step-0000000003")));
  CheckpointStore again = one.open();
  save(again, 6, "false");
  EXPECT_THAT(names_in(one.checkpoints()), IsSupersetOf({"step-0000000002", "step-0000000005", "step-0000000006"}));
  save(again, 7, "true");
  save(again, 8, "true");
  EXPECT_THAT(names_in(one.checkpoints()), Not(Contains("step-0000000002")));
}

TEST(CheckpointStore, ReportsWhyItCannotOpen) {
  OneRank one;
  std::ofstream(one.directory.path() / "my_run") << "a file";
  EXPECT_THROW(one.open(), IoError);
}

TEST(CheckpointStore, KeepsValuesOfAnyBytes) {
  const std::string bytes("\x07\x80\xff\0state", 9);
  for (const bool per_node : {false, true}) {
    const TempDir directory;
    expect_none(two_nodes([&](World& world) {
      CheckpointConfig config;
      config.per_node = per_node;
      const auto own = directory.path() / (per_node ? std::to_string(world.rank()) : "both");
      CheckpointStore store(own, config, world);
      CheckpointContents contents = checkpoint_contents();
      contents.values["position.state"] = bytes;
      store.save(1, contents);
      EXPECT_EQ(store.load(1).values.at("position.state"), bytes) << "rank " << world.rank();
    }));
  }
  OneRank one;
  CheckpointStore store = one.open();
  CheckpointContents contents = checkpoint_contents();
  contents.values["position.state"] = bytes;
  store.save(1, contents);
  EXPECT_EQ(store.load(1).values.at("position.state"), bytes);
  contents.values["caf\xe9"] = "1";
  EXPECT_THAT([&] { store.save(2, contents); }, ThrowsMessage<CheckpointError>(HasSubstr("is not UTF-8 text")));
}

TEST(CheckpointStore, GivesEveryRankTheMainRanksTensorsAndItsOwnBytes) {
  const TempDir directory;
  expect_none(two_ranks([&](World& world) {
    CheckpointStore store(directory.path(), CheckpointConfig{}, world);
    EXPECT_EQ(store.latest(), std::nullopt);
    store.save(3, checkpoint_contents(world.rank() + 1, world.rank()));
    EXPECT_EQ(store.latest(), 3);
    const CheckpointContents loaded = store.load(3);
    expect_equal(loaded, checkpoint_contents(1));
    EXPECT_EQ(loaded.per_rank[0].item<int>(), world.rank() == 0 ? 10 : 21);
    EXPECT_EQ(loaded.values.at("world_size"), "2");
  }));
  World one = World::single(c10::Device("cpu"));
  const CheckpointContents alone = CheckpointStore(directory.path(), CheckpointConfig{}, one).load(3);
  expect_equal(alone, checkpoint_contents(1));
  EXPECT_FALSE(alone.per_rank.defined());
}

TEST(CheckpointStore, ThrowsTheMainRanksErrorOnEveryRank) {
  const TempDir directory;
  const auto thrown = two_ranks([&](World& world) {
    CheckpointStore store(directory.path(), CheckpointConfig{}, world);
    CheckpointContents contents = checkpoint_contents();
    if (world.is_main()) {
      contents.tensors["model"].emplace_back("z", at::zeros({2}, at::kComplexDouble));
    }
    store.save(1, contents);
  });
  for (const std::exception_ptr& error : thrown) {
    ASSERT_TRUE(error);
    try {
      std::rethrow_exception(error);
    } catch (const CheckpointError& checkpoint_error) {
      EXPECT_THAT(checkpoint_error.what(), HasSubstr("z has dtype ComplexDouble"));
      EXPECT_EQ(checkpoint_error.hint(), "convert the tensor before saving");
      EXPECT_EQ(checkpoint_error.exit_code(), ExitCode::bad_data);
    }
  }
}

TEST(CheckpointStore, ThrowsIoErrorsOnEveryRank) {
  const TempDir directory;
  std::ofstream(directory.path() / "file") << "a file";
  const auto thrown = two_ranks(
      [&](World& world) { CheckpointStore(directory.path() / "file" / "checkpoints", CheckpointConfig{}, world); });
  for (const std::exception_ptr& error : thrown) {
    ASSERT_TRUE(error);
    EXPECT_THROW(std::rethrow_exception(error), IoError);
  }
}

}  // namespace
}  // namespace lockstep
