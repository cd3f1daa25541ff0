#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/data/cache.h>
#include <lockstep/world/world.h>

#include "base/json.h"
#include "data/cache_progress.h"
#include "environment/process_name.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "tensor/tensor_bytes.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int64_t>;

/// Counts how many samples are made.
std::shared_ptr<Dataset> counted(std::int64_t size, std::atomic<int>& made, std::int64_t fails_at = -1) {
  return sample_dataset(size, [&made, fails_at](std::int64_t id, std::uint64_t) -> Batch {
    if (id == fails_at) {
      throw std::runtime_error("not an image");
    }
    ++made;
    return {.input = at::full({3, 2}, id, at::kFloat),
            .target = at::scalar_tensor(id, at::kLong),
            .fields = {{"mask", at::full({2}, id % 2 == 0, at::kBool)}}};
  });
}

std::string difference(const Dataset& found, const Dataset& expected) {
  const Ids ids = {5, 0, 299, 5, 255, 256};
  const Batch a = found.get(ids, {});
  const Batch b = expected.get(ids, {});
  if (found.size() != expected.size() || found.fingerprint() != expected.fingerprint()) {
    return "size or fingerprint";
  }
  return at::equal(a.input, b.input) && at::equal(a.target, b.target) && at::equal(a["mask"], b["mask"]) ? "" : "rows";
}

TEST(MemoryCache, LoadsEverySampleOnce) {
  std::atomic<int> made = 0;
  const auto data = counted(300, made);
  const auto cached = memory_cache(data, 300 * (24 + 8 + 2));
  EXPECT_EQ(made, 301);  // the first one twice: for the estimate
  EXPECT_EQ(difference(*cached, *counted(300, made)), "");
  const int before = made;
  cached->get(Ids{1, 2, 3}, {});
  EXPECT_EQ(made, before);
  EXPECT_THROW(cached->get(Ids{300}, {}), DataError);
}

TEST(MemoryCache, MakesSamplesWithAllThreadsAtOnce) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const std::ptrdiff_t threads = 3;
  std::latch all_are_busy(threads);
  std::atomic<bool> first = true;
  const auto data = sample_dataset(threads * 32, [&](std::int64_t id, std::uint64_t) -> Batch {
    if (id % 32 == 0 && !first.exchange(false)) {  // the first sample is also made alone, for the estimate
      all_are_busy.arrive_and_wait();
    }
    return {.input = at::full({2}, id, at::kLong)};
  });
  const auto cached = memory_cache(data, 1 << 20);
  const Ids all = [&] {
    Ids ids(static_cast<std::size_t>(threads) * 32);
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }();
  EXPECT_TRUE(at::equal(cached->get(all, {}).input.select(1, 0), at::tensor(all)));
  at::set_num_threads(before);
}

TEST(CacheProgress, SaysEveryTenSecondsHowLongItTakes) {
  using std::chrono::seconds;
  const CacheProgress::Clock::time_point start{};
  CacheProgress progress("writing the cache dir", 4000, start);
  EXPECT_EQ(progress.line(100, start + seconds(9)), std::nullopt);
  EXPECT_EQ(progress.line(1000, start + seconds(60)), "writing the cache dir: 1000 of 4000 samples, about 03:00 left");
  EXPECT_EQ(progress.line(1001, start + seconds(69)), std::nullopt);
  EXPECT_EQ(progress.line(4000, start + seconds(70)), "writing the cache dir: 4000 of 4000 samples, about 00:00 left");
}

TEST(MemoryCache, ReturnsTheDataIfTheyAreTooLarge) {
  std::atomic<int> made = 0;
  const std::shared_ptr<const Dataset> data = counted(300, made);
  EXPECT_EQ(memory_cache(data, 300 * (24 + 8 + 2) - 1), data);
  EXPECT_EQ(made, 1);
}

TEST(MemoryCache, RejectsDifferentSamples) {
  EXPECT_THROW(
      memory_cache(sample_dataset(600, [](std::int64_t id,
                                          std::uint64_t) { return Batch{.input = at::ones({id < 300 ? 2 : 3})}; }),
                   1 << 20),
      DataError);
  EXPECT_THROW(memory_cache(nullptr, 1), DataError);
}

TEST(Cache, RefusesDataWithoutOneRowForEachSample) {
  class Rows final : public Dataset {
   public:
    using Get = std::function<Batch(std::int64_t first, std::int64_t samples)>;
    explicit Rows(Get get) : get_(std::move(get)) {}
    std::int64_t size() const override { return 64; }
    Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
      Batch batch = get_(ids.front(), std::ssize(ids));
      batch.samples = std::ssize(ids);
      return batch;
    }

   private:
    Get get_;
  };
  const struct {
    Rows::Get get;
    std::string found;
  } cases[] = {
      {[](std::int64_t, std::int64_t n) {
         return Batch{.input = at::ones({2 * n, 3})};
       },
       "input of shape [2, 3] for 1 sample, expected [1, ...]"},
      {[](std::int64_t, std::int64_t n) {
         return Batch{.input = at::ones({n}), .fields = {{"length", at::scalar_tensor(3)}}};
       },
       "fields.length of shape [] for 1 sample, expected [1, ...]"},
      {[](std::int64_t first, std::int64_t n) {
         return Batch{.input = at::ones({first == 32 ? n - 1 : n, 3})};
       },
       "input of shape [31, 3] for 32 samples, expected [32, ...]"},
      {[](std::int64_t first, std::int64_t n) {
         return Batch{.input = at::ones({first == 32 ? n + 1 : n, 3})};
       },
       "input of shape [33, 3] for 32 samples, expected [32, ...]"},
  };
  World world = World::single(c10::kCPU);
  for (const auto& [get, found] : cases) {
    const auto data = std::make_shared<Rows>(get);
    const std::string message =
        "cache: found " + found + " | only data sets with one row of each tensor for each sample can be cached";
    EXPECT_EQ(message_of<DataError>([&] { memory_cache(data, 1 << 20); }), message);
    const TempDir dir;
    EXPECT_EQ(message_of<DataError>([&] { disk_cache(data, dir.path(), world); }), message);
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "column0.npy"));
  }
}

TEST(Cache, NamesTheSampleThatFails) {
  class Failing final : public Dataset {
   public:
    Failing(std::int64_t at, bool reads) : at_(at), reads_(reads) {}
    std::int64_t size() const override { return 40; }
    Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
      if (std::ranges::find(ids, at_) == ids.end()) {
        return {.input = at::zeros({std::ssize(ids)})};
      }
      if (reads_) {
        throw IoError("cannot open x.png: no such file");
      }
      throw std::runtime_error("not an image");
    }

   private:
    std::int64_t at_;
    bool reads_;
  };
  World world = World::single(c10::kCPU);
  for (const std::int64_t at : {0, 37}) {
    for (const bool reads : {false, true}) {
      const auto data = std::make_shared<Failing>(at, reads);
      const std::string message = "sample " + std::to_string(at) + ": " +
                                  (reads ? "cannot open x.png: no such file" : "std::runtime_error: not an image") +
                                  " | leave it out with subset() below the cache";
      EXPECT_EQ(message_of<DataError>([&] { memory_cache(data, 1 << 20); }), message);
      const TempDir dir;
      EXPECT_EQ(message_of<DataError>([&] { disk_cache(data, dir.path(), world); }), message);
    }
  }
}

TEST(DiskCache, KeepsTheBitsOfEveryDtype) {
  World world = World::single(c10::kCPU);
  const at::Tensor numbers = at::sin(at::arange(40 * 6, at::kFloat)).view({40, 2, 3});
  for (const at::ScalarType type :
       {at::kFloat, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kLong}) {
    const TempDir dir;
    const auto data = tensor_dataset(numbers.to(type), numbers.flatten(1).select(1, 0).contiguous().to(type));
    std::filesystem::file_time_type written{};
    for (int run = 0; run < 2; ++run) {
      const auto cached = disk_cache(data, dir.path(), world);
      const Ids ids = {39, 0, 7};
      const Batch found = cached->get(ids, {});
      const Batch expected = data->get(ids, {});
      for (const auto& [a, b] : {std::pair(found.input, expected.input), std::pair(found.target, expected.target)}) {
        ASSERT_EQ(a.scalar_type(), type);
        ASSERT_EQ(a.sizes(), b.sizes()) << type;
        EXPECT_EQ(text_of_bytes(a), text_of_bytes(b)) << type;
      }
      const auto time = std::filesystem::last_write_time(dir.path() / "complete.json");
      EXPECT_TRUE(run == 0 || time == written) << type << ": it was not read, but written again";
      written = time;
    }
  }
  const TempDir dir;
  EXPECT_EQ(
      message_of<DataError>([&] { disk_cache(tensor_dataset(numbers.to(at::kComplexDouble)), dir.path(), world); }),
      "cache: input has dtype ComplexDouble, which no file of lockstep can hold | convert it in a map() below "
      "the cache, or use memory_cache");
}

// As earlier versions wrote it.
TEST(DiskCache, HasNothingButNamesInItsListOfNumpysDtypes) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  std::atomic<int> made = 0;
  disk_cache(counted(300, made), dir.path(), world);
  const Json complete = parse_json(read_file(real_file_system(), dir.path() / "complete.json"));
  EXPECT_THAT(member_as<std::vector<std::string>>(complete, "columns"),
              testing::ElementsAre("input", "target", "fields.mask"));
}

TEST(DiskCache, IsWrittenByOneRankAndOpenedByAll) {
  const TempDir dir;
  std::atomic<int> made = 0;
  std::atomic<int> reference = 0;
  for (int run = 0; run < 2; ++run) {
    thread_world(3, [&](World& world) {
      const auto cached = disk_cache(counted(300, made), dir.path() / "cache", world);
      EXPECT_EQ(difference(*cached, *counted(300, reference)), "");
    });
    EXPECT_EQ(made, 301);
  }
}

TEST(DiskCache, IsWrittenAgainIfIncompleteOrOfOtherData) {
  const TempDir dir;
  const auto cache = dir.path() / "cache";
  World world = World::single(c10::kCPU);
  std::atomic<int> made = 0;
  std::atomic<int> reference = 0;
  const auto remade = [&](std::int64_t size) {
    made = 0;
    const auto cached = disk_cache(counted(size, made), cache, world);
    EXPECT_EQ(difference(*cached, *counted(size, reference)), "");
    return made > 0;
  };
  EXPECT_TRUE(remade(300));
  EXPECT_FALSE(remade(300));
  EXPECT_TRUE(remade(301)) << "other data";
  std::filesystem::resize_file(cache / "column0.npy", 1000);
  EXPECT_TRUE(remade(301)) << "cut off";
  std::ofstream(cache / "complete.json") << "{";
  EXPECT_TRUE(remade(301)) << "damaged";
  std::filesystem::remove(cache / "complete.json");
  EXPECT_TRUE(remade(301)) << "not complete";
  EXPECT_FALSE(remade(301));
}

TEST(DiskCache, KnowsOtherDataOfTheSameSizeByTheirName) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  const auto first_value = [&](const std::string& name, float value) {
    const auto data = sample_dataset(
        300, [value](std::int64_t, std::uint64_t) { return Batch{.input = at::full({1}, value)}; }, name);
    return disk_cache(data, dir.path(), world)->get(Ids{0}, {}).input[0][0].item<float>();
  };
  EXPECT_EQ(first_value("tiles 1", 1), 1);
  EXPECT_EQ(first_value("tiles 1", 2), 1) << "the name says that the data are the same";
  EXPECT_EQ(first_value("tiles 2", 2), 2);
  EXPECT_EQ(first_value("", 3), 3);
}

TEST(DiskCache, RefusesDataWhoseFingerprintChanges) {
  class Restless final : public Dataset {
   public:
    std::int64_t size() const override { return 3; }
    std::string fingerprint() const override { return std::to_string(++asked_); }
    Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
      return {.input = at::zeros({std::ssize(ids)})};
    }

   private:
    mutable int asked_ = 0;
  };
  const TempDir directory;
  World world = World::single(c10::kCPU);
  EXPECT_THAT(
      message_of<DataError>([&] { disk_cache(std::make_shared<Restless>(), directory.path() / "cache", world); }),
      testing::HasSubstr("was just written, and cannot be used"));
}

// For example the runs of a sweep.
TEST(DiskCache, IsWrittenByOneOfTwoRunsThatStartTogether) {
  const TempDir dir;
  std::atomic<int> made = 0;
  std::promise<void> second_writes;
  std::promise<void> first_writes;
  const auto slow = sample_dataset(300, [&, told = std::make_shared<std::once_flag>()](std::int64_t id, std::uint64_t) {
    std::call_once(*told, [&] {
      first_writes.set_value();
      second_writes.get_future().wait_for(std::chrono::milliseconds(300));  // it must not happen
    });
    return Batch{.input = at::full({3}, id, at::kFloat)};
  });
  const auto quick =
      sample_dataset(300, [&, told = std::make_shared<std::once_flag>()](std::int64_t id, std::uint64_t) {
        std::call_once(*told, [&] { second_writes.set_value(); });
        ++made;
        return Batch{.input = at::full({3}, id, at::kFloat)};
      });
  const auto cache = [&](const std::shared_ptr<Dataset>& data) {
    World world = World::single(c10::kCPU);
    return disk_cache(data, dir.path(), world);
  };
  auto first = std::async(std::launch::async, [&] { return cache(slow); });
  first_writes.get_future().wait();
  EXPECT_EQ(cache(quick)->get(Ids{7}, {}).input[0][0].item<float>(), 7);
  EXPECT_EQ(first.get()->get(Ids{299}, {}).input[0][0].item<float>(), 299);
  EXPECT_EQ(made, 0);
  std::string owner;
  std::getline(std::ifstream(dir.path() / ".lock"), owner);
  EXPECT_EQ(owner, pid_on_host()) << "a run on another machine logs it while it waits";
}

TEST(DiskCache, FailsOnAllRanksAndStaysIncomplete) {
  const TempDir dir;
  std::atomic<int> made = 0;
  std::atomic<int> failed = 0;
  thread_world(3, [&](World& world) {
    try {
      disk_cache(counted(300, made, /*fails_at=*/270), dir.path() / "cache", world);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("sample 270: std::runtime_error: not an image"));
      ++failed;
    }
  });
  EXPECT_EQ(failed, 3);
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "cache" / "complete.json"));
  for (const char* column : {"column0.npy", "column1.npy", "column2.npy"}) {
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "cache" / column));
  }
  made = 0;
  World world = World::single(c10::kCPU);
  disk_cache(counted(300, made), dir.path() / "cache", world);
  EXPECT_EQ(made, 301);
}

}  // namespace
}  // namespace lockstep
