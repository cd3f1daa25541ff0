#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

#include "support/borrowed.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/sweep.h"
#include "support/thread_world.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

LoaderPlan plan_of(std::int64_t global_batch, std::int64_t batch, int workers, int prefetch = 2) {
  return {.batch = {.batch_size = batch, .global_batch_size = global_batch},
          .data = {.workers = workers, .prefetch = prefetch}};
}

/// Rank r gives `lengths[r]` samples in every epoch: 1000000 x pass + 1000 x rank + i. Counts what skip() read.
class Numbers final : public Stream {
 public:
  explicit Numbers(std::vector<std::int64_t> lengths, std::int64_t fails_at = -1)
      : lengths_(std::move(lengths)), fails_at_(fails_at) {}

  void start_epoch(std::int64_t epoch, int rank, int world_size) override {
    EXPECT_EQ(std::ssize(lengths_), world_size);
    base_ = 1'000'000 * (epoch % (std::int64_t{1} << 32)) + 1000 * rank;
    base_ += 500'000 * (epoch >> 32);  // a second pass of the same epoch
    left_ = lengths_[static_cast<std::size_t>(rank)];
    at_ = 0;
  }

  std::optional<Batch> next(std::int64_t most) override {
    const std::int64_t count = std::min(most, left_ - at_);
    if (count == 0) {
      return std::nullopt;
    }
    if (fails_at_ >= at_ && fails_at_ < at_ + count) {
      throw std::runtime_error("a broken record");
    }
    at_ += count;
    return Batch{.input = at::arange(base_ + at_ - count, base_ + at_)};
  }

  void skip(std::int64_t samples) override { at_ = std::min(left_, at_ + samples); }

 private:
  std::vector<std::int64_t> lengths_;
  std::int64_t fails_at_;
  std::int64_t base_ = 0;
  std::int64_t left_ = 0;
  std::int64_t at_ = 0;
};

struct Seen {
  Ids ids{};
  std::int64_t local = 0;
  std::int64_t global = 0;
  std::int64_t epoch = 0;
  std::size_t micro = 0;
  bool ends_epoch = false;
  bool operator==(const Seen&) const = default;
};

Seen seen(const StepBatches& step) {
  Seen result{.local = step.local_samples,
              .global = step.global_samples,
              .epoch = step.epoch,
              .micro = step.micro.size(),
              .ends_epoch = step.ends_epoch};
  for (const Batch& batch : step.micro) {
    if (batch.samples > 0) {
      const auto values = batch.input.to(at::kLong).contiguous();
      result.ids.insert(result.ids.end(), values.const_data_ptr<std::int64_t>(),
                        values.const_data_ptr<std::int64_t>() + values.numel());
    }
  }
  return result;
}

Ids sorted(Ids ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(Stream, GivesStepsOfTheGlobalBatchAndTheRest) {
  World world = World::single(c10::kCPU);
  for (const int workers : {0, 2}) {
    DataLoader loader(std::make_unique<Numbers>(Ids{13}), plan_of(5, 2, workers), world);
    EXPECT_EQ(loader.steps_per_epoch(), std::nullopt);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      const std::int64_t base = 1'000'000 * epoch;
      EXPECT_EQ(seen(*loader.next()), (Seen{{base, base + 1, base + 2, base + 3, base + 4}, 5, 5, epoch, 3, false}));
      EXPECT_EQ(seen(*loader.next()).local, 5);
      EXPECT_EQ(seen(*loader.next()), (Seen{{base + 10, base + 11, base + 12}, 3, 3, epoch, 3, true}));
      EXPECT_EQ(loader.position(), (LoaderPosition{.epoch = epoch + 1, .global_batch = 5}));
    }
  }
}

TEST(Stream, IsReadByOneThread) {
  World world = World::single(c10::kCPU);
  DataLoader a(std::make_unique<Numbers>(Ids{4}), plan_of(2, 2, /*workers=*/4), world);
  DataLoader b(std::make_unique<Numbers>(Ids{4}), plan_of(2, 2, /*workers=*/4), world);
  DataLoader other = DataLoader::none(1, world);
  EXPECT_TRUE(a.has_one_reader());
  EXPECT_FALSE(other.has_one_reader());
  EXPECT_TRUE(CombinedLoader({borrowed(a), borrowed(b)}, CombineMode::min_size).has_one_reader());
  EXPECT_FALSE(CombinedLoader({borrowed(a), borrowed(other)}, CombineMode::min_size).has_one_reader());
}

// Every way in which W ranks may have up to a few steps less than the longest: nobody waits for ever, nothing is lost,
// all ranks agree on every step.
TEST(Stream, EndsOnAllRanksInTheSameStep) {
  Sweep sweep("uneven streams");
  int idle = 0;
  for (const int world_size : {2, 3, 4}) {
    for (int pattern = 0; pattern < (1 << world_size) - 1; ++pattern) {
      for (const std::int64_t missing : {1, 3, 11}) {
        Ids lengths;
        for (int rank = 0; rank < world_size; ++rank) {
          lengths.push_back((pattern >> rank) % 2 == 0 ? 12 : 12 - missing);
        }
        const std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        std::vector<std::vector<Seen>> steps(static_cast<std::size_t>(world_size));
        thread_world(world_size, [&](World& world) {
          DataLoader loader(std::make_unique<Numbers>(lengths),
                            plan_of(3 * world_size, 2, /*workers=*/pattern % 2, /*prefetch=*/1 + pattern % 3), world);
          std::vector<Seen>& mine = steps[static_cast<std::size_t>(world.rank())];
          for (int epochs = 0; epochs < 2;) {
            mine.push_back(seen(*loader.next()));
            epochs += mine.back().ends_epoch ? 1 : 0;
          }
        });
        bool kept = true;
        Ids ids;
        for (std::size_t step = 0; step < steps[0].size(); ++step) {
          std::int64_t global = 0;
          for (const auto& rank : steps) {
            kept = kept && rank.size() == steps[0].size() && rank[step].global == steps[0][step].global &&
                   rank[step].ends_epoch == steps[0][step].ends_epoch && rank[step].micro == steps[0][step].micro;
            global += rank[step].local;
            idle += rank[step].local == 0 ? 1 : 0;
            ids.insert(ids.end(), rank[step].ids.begin(), rank[step].ids.end());
          }
          kept = kept && global == steps[0][step].global;
        }
        ids = sorted(ids);
        kept = kept && std::ssize(ids) == 2 * all && std::adjacent_find(ids.begin(), ids.end()) == ids.end();
        sweep.count(kept);
      }
    }
  }
  EXPECT_EQ(sweep.points(), 3 * (3 + 7 + 15));
  EXPECT_EQ(sweep.lost(), 0);
  EXPECT_GT(idle, 0) << "the control: some ranks have no sample in a step of others";
}

TEST(Stream, EndsBeforeTheFirstStepThatIsNotFullWhenAsked) {
  thread_world(2, [](World& world) {
    LoaderPlan plan = plan_of(4, 2, 1);
    plan.sampler.drop_last = true;
    DataLoader loader(std::make_unique<Numbers>(Ids{9, 7}), plan, world);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int step = 0; step < 3; ++step) {
        const Seen given = seen(*loader.next());
        EXPECT_EQ(given.global, 4);
        EXPECT_EQ(given.ends_epoch, step == 2);
      }
    }
  });
}

TEST(Stream, ContinuesAnywhereInAnEpoch) {
  const Ids lengths = {25, 14, 20};
  thread_world(3, [&](World& world) {
    for (const int workers : {0, 1}) {
      const auto loader_of = [&] {
        return DataLoader(std::make_unique<Numbers>(lengths), plan_of(12, 3, workers), world);
      };
      DataLoader straight = loader_of();
      std::vector<LoaderPosition> positions = {straight.position()};
      std::vector<Seen> steps;
      for (int step = 0; step < 16; ++step) {
        steps.push_back(seen(*straight.next()));
        positions.push_back(straight.position());
      }
      for (std::size_t start = 0; start <= 12; ++start) {
        DataLoader later = loader_of();
        if (start % 2 == 1) {
          later.next();  // also from the middle of something else
        }
        later.seek(positions[start]);
        EXPECT_EQ(later.position(), positions[start]);
        for (std::size_t step = start; step < start + 4; ++step) {
          ASSERT_EQ(seen(*later.next()), steps[step]) << "from step " << start << ", step " << step;
          ASSERT_EQ(later.position(), positions[step + 1]);
        }
      }
    }
  });
}

TEST(Stream, SupportsEpochsOfAFixedLength) {
  World world = World::single(c10::kCPU);
  LoaderPlan plan = plan_of(5, 5, 1);
  plan.data.steps_per_epoch = 4;
  DataLoader loader(std::make_unique<Numbers>(Ids{13}), plan, world);
  EXPECT_EQ(loader.steps_per_epoch(), 4);
  std::vector<Seen> steps;
  std::vector<LoaderPosition> positions = {loader.position()};
  for (int step = 0; step < 8; ++step) {
    steps.push_back(seen(*loader.next()));
    positions.push_back(loader.position());
    EXPECT_EQ(steps.back().ends_epoch, step % 4 == 3);
    EXPECT_EQ(steps.back().epoch, step / 4);
  }
  EXPECT_THAT(steps[2].ids, ElementsAre(10, 11, 12));
  EXPECT_THAT(steps[3].ids, ElementsAre(500'000, 500'001, 500'002, 500'003, 500'004)) << "a second pass";
  EXPECT_EQ(steps[4].ids.front(), 1'000'000);
  for (std::size_t start = 0; start < 8; ++start) {
    loader.seek(positions[start]);
    EXPECT_EQ(seen(*loader.next()), steps[start]) << start;
  }
}

// What a stream gave and no step used would be lost, and a producer may have no more before the epoch has ended.
TEST(Stream, GivesAnEpochOfAFixedLengthAllThatItTakes) {
  constexpr std::int64_t kEpochs = 3;
  constexpr std::int64_t kSteps = 5;
  constexpr std::int64_t kShare = 4;
  for (const int world_size : {1, 2}) {
    for (const int workers : {0, 1}) {
      for (const int prefetch : {1, 2, 3, 8}) {
        thread_world(world_size, [&](World& world) {
          std::atomic<std::int64_t> taken = 0;
          const auto start = [&](std::int64_t, int, int) {
            return [&, left = kSteps * kShare]() mutable -> std::optional<Batch> {
              if (left-- == 0) {
                throw std::runtime_error("the producer has not made more");
              }
              return Batch{.input = at::scalar_tensor(taken++, at::kLong)};
            };
          };
          LoaderPlan plan = plan_of(kShare * world_size, 2, workers, prefetch);
          plan.data.steps_per_epoch = kSteps;
          DataLoader loader(sample_stream(start), plan, world);
          Ids trained;
          for (std::int64_t step = 1; step <= kEpochs * kSteps; ++step) {
            const Seen given = seen(*loader.next());
            ASSERT_EQ(given.ends_epoch, step % kSteps == 0) << "step " << step;
            trained.insert(trained.end(), given.ids.begin(), given.ids.end());
          }
          Ids all(kEpochs * kSteps * kShare);
          std::iota(all.begin(), all.end(), 0);
          EXPECT_EQ(trained, all) << "workers " << workers << ", prefetch " << prefetch;
          EXPECT_EQ(taken, std::ssize(all));
        });
      }
    }
  }
}

TEST(Stream, EndsAnEpochThatHasBecomeShorter) {
  World world = World::single(c10::kCPU);
  LoaderPlan plan = plan_of(5, 5, 1);
  plan.data.steps_per_epoch = 4;
  DataLoader before(std::make_unique<Numbers>(Ids{50}), plan, world);
  for (int step = 0; step < 3; ++step) {
    before.next();
  }
  for (const std::int64_t steps_per_epoch : {2, 3}) {
    plan.data.steps_per_epoch = steps_per_epoch;
    DataLoader loader(std::make_unique<Numbers>(Ids{50}), plan, world);
    loader.seek(before.position());
    EXPECT_EQ(loader.position(), (LoaderPosition{.epoch = 1, .global_batch = 5}));
    for (std::int64_t step = 1; step <= steps_per_epoch; ++step) {
      const Seen given = seen(*loader.next());
      EXPECT_EQ(given.epoch, 1);
      EXPECT_EQ(given.ends_epoch, step == steps_per_epoch);
    }
  }
}

TEST(Stream, RefusesPositionsOfOtherStreams) {
  thread_world(2, [](World& world) {
    DataLoader loader(std::make_unique<Numbers>(Ids{9, 7}), plan_of(4, 2, 0), world);
    EXPECT_THROW(loader.seek({.consumed = 4}), CheckpointError);
    EXPECT_THROW(loader.seek({.consumed = 4, .state = "order of 3 samples"}), CheckpointError);
    const auto error = error_of<CheckpointError>([&] { loader.seek({.consumed = 6, .state = "0 1 2 2 2"}); });
    EXPECT_THAT(error.what(), HasSubstr("found the streams of 3 ranks in the middle of an epoch, expected 2"));
    EXPECT_THAT(error.hint(), HasSubstr("--nprocs 3"));
    EXPECT_THAT(message_of([&] { loader.seek({.epoch = 1, .dataset_size = 16}); }),
                HasSubstr("it belongs to a data set of 16 samples, and this source is not a data set"));
    loader.seek({.epoch = 5});
    EXPECT_EQ(loader.next()->epoch, 5);
  });
}

TEST(Stream, KeepsTheGlobalBatchOfThePosition) {
  World world = World::single(c10::kCPU);
  DataLoader loader(std::make_unique<Numbers>(Ids{20}), plan_of(4, 2, 1), world);
  loader.seek({.epoch = 0, .consumed = 6, .global_batch = 6, .state = "0 1 6"});
  EXPECT_THAT(seen(*loader.next()).ids, ElementsAre(6, 7, 8, 9, 10, 11));
}

// Skipping may take longer than the first step is allowed to.
TEST(Stream, SkipsInSeek) {
  class Counted final : public Stream {
   public:
    explicit Counted(std::atomic<int>& skips) : skips_(skips) {}
    void start_epoch(std::int64_t, int, int) override {}
    std::optional<Batch> next(std::int64_t most) override { return Batch{.input = at::zeros({most})}; }
    void skip(std::int64_t samples) override {
      skips_ += samples > 0 ? 1 : 0;
      if (samples == 8) {
        throw std::runtime_error("a broken record");
      }
    }

   private:
    std::atomic<int>& skips_;
  };
  World world = World::single(c10::kCPU);
  for (const int workers : {0, 1}) {
    std::atomic<int> skips = 0;
    DataLoader loader(std::make_unique<Counted>(skips), plan_of(4, 4, workers), world);
    loader.seek({.consumed = 4, .state = "0 1 4"});
    EXPECT_EQ(skips, 1);
    loader.next();
    EXPECT_EQ(skips, 1);
    EXPECT_EQ(message_of<DataError>([&] { loader.seek({.consumed = 8, .state = "0 2 8"}); }),
              "stream of rank 0, after sample 8 of its epoch: std::runtime_error: a broken record");
  }
}

TEST(Stream, SkipsBatchesThatHaveOnlyFieldsAndIds) {
  class Listed final : public Stream {
   public:
    void start_epoch(std::int64_t, int, int) override { at_ = 0; }
    std::optional<Batch> next(std::int64_t most) override {
      Ids ids(static_cast<std::size_t>(std::min<std::int64_t>(most, 20 - at_)));
      std::iota(ids.begin(), ids.end(), at_);
      at_ += std::ssize(ids);
      return ids.empty() ? std::nullopt : std::optional(Batch{.fields = {{"x", at::tensor(ids)}}, .ids = ids});
    }

   private:
    std::int64_t at_ = 0;
  };
  World world = World::single(c10::kCPU);
  DataLoader loader(std::make_unique<Listed>(), plan_of(4, 4, 1), world);
  loader.next();
  loader.next();
  DataLoader later(std::make_unique<Listed>(), plan_of(4, 4, 1), world);
  later.seek(loader.position());
  EXPECT_THAT(later.next()->micro.at(0).ids, ElementsAre(8, 9, 10, 11));
}

// As a data set: what is left is less than a whole step of the new global batch.
TEST(Stream, EndsAPassThatHasNoWholeStepLeft) {
  thread_world(2, [](World& world) {
    for (const int workers : {0, 1}) {
      const auto loader_of = [&](std::int64_t global_batch, std::int64_t steps_per_epoch = 0) {
        LoaderPlan plan = plan_of(global_batch, 4, workers);
        plan.batch.global_is_given = true;
        plan.sampler.drop_last = true;
        plan.data.steps_per_epoch = steps_per_epoch;
        return DataLoader(std::make_unique<Numbers>(Ids{20, 20}), plan, world);
      };
      DataLoader before = loader_of(8);
      for (int step = 0; step < 3; ++step) {
        before.next();
      }
      DataLoader fits = loader_of(16);
      fits.seek(before.position());
      EXPECT_EQ(fits.position().consumed, 24);
      const Seen last = seen(*fits.next());
      EXPECT_EQ(last.ids.front(), 1000 * world.rank() + 12);
      EXPECT_EQ(last.epoch, 0);
      EXPECT_TRUE(last.ends_epoch);

      DataLoader larger = loader_of(32);
      larger.seek(before.position());
      EXPECT_EQ(larger.position(), (LoaderPosition{.epoch = 1, .global_batch = 32}));
      const Seen first = seen(*larger.next());
      EXPECT_EQ(first.ids.front(), 1'000'000 + 1000 * world.rank());
      EXPECT_EQ(first.epoch, 1);
      EXPECT_TRUE(first.ends_epoch);

      DataLoader fixed = loader_of(32, /*steps_per_epoch=*/10);
      fixed.seek(before.position());
      const Seen of_second_pass = seen(*fixed.next());
      EXPECT_EQ(of_second_pass.ids.front(), 500'000 + 1000 * world.rank());
      EXPECT_EQ(of_second_pass.epoch, 0);
      EXPECT_FALSE(of_second_pass.ends_epoch);
    }
  });
}

/// Opens once; a stream waits for it.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_{};
  std::condition_variable changed_{};
  bool open_ = false;
};

/// Numbers of which the samples from `pause` on come only when the gate is open. The end of the loader opens it.
std::unique_ptr<Stream> pausing(Gate& gate, std::int64_t pause, std::int64_t length) {
  return sample_stream(
      [&gate, pause, length](std::int64_t, int rank, int) -> SampleSource {
        return [&gate, pause, length, rank, i = std::int64_t{0}]() mutable -> std::optional<Batch> {
          if (i == pause) {
            gate.wait();
          }
          return i < length ? std::optional<Batch>(Batch{.input = at::scalar_tensor(1000 * rank + i++, at::kLong)})
                            : std::nullopt;
        };
      },
      {}, [&gate] { gate.open(); });
}

// Only the last rank is asked to stop, and only the first one waits for data.
TEST(Stream, StopsOnAllRanksWhileOneWaitsForData) {
  for (const int world_size : {1, 2, 3}) {
    thread_world(world_size, [&](World& world) {
      Gate gate;
      const std::int64_t pause = world.rank() == 0 ? 6 : -1;
      DataLoader loader(pausing(gate, pause, 8), plan_of(2 * world_size, 1, 1), world);
      Ids ids;
      // With two steps per exchange, the second step is known when the fourth one is.
      const auto stop = [&] { return world.rank() == world_size - 1 && ids.size() == 2; };
      while (const StepBatches* step = loader.next_unless(stop)) {
        const Ids more = seen(*step).ids;
        ids.insert(ids.end(), more.begin(), more.end());
        ASSERT_EQ(ids.size(), 2U);
      }
      const LoaderPosition stopped = loader.position();
      EXPECT_EQ(stopped.consumed, world_size * 2);
      gate.open();
      DataLoader resumed(pausing(gate, -1, 8), plan_of(2 * world_size, 1, 1), world);
      resumed.seek(stopped);
      for (DataLoader* each : {&loader, &resumed}) {  // the same loader goes on, too
        Ids all = ids;
        for (bool ends = false; !ends;) {
          const StepBatches* step = each->next();
          ends = step->ends_epoch;
          const Ids more = seen(*step).ids;
          all.insert(all.end(), more.begin(), more.end());
        }
        const std::int64_t first = 1000 * world.rank();
        EXPECT_THAT(all,
                    ElementsAre(first, first + 1, first + 2, first + 3, first + 4, first + 5, first + 6, first + 7));
      }
    });
  }
}

// Its supervisor ends a rank whose record does not change. A single rank has no collectives that would change it.
TEST(Stream, ShowsThatItWaits) {
  World world = World::single(c10::kCPU);
  Gate gate;
  DataLoader loader(pausing(gate, 0, 8), plan_of(2, 2, 1), world);
  const std::atomic<std::uint64_t>& beats = WorldAccess::progress(world).beats;
  const std::uint64_t before = beats;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  loader.next_unless([&] { return beats > before || std::chrono::steady_clock::now() >= deadline; });
  EXPECT_GT(beats, before);
}

TEST(Stream, IsToldWhenNoMoreSamplesAreWanted) {
  World world = World::single(c10::kCPU);
  Gate gate;
  {
    DataLoader loader(pausing(gate, 0, 8), plan_of(2, 2, 1, /*prefetch=*/1), world);
    loader.next_unless([] { return true; });
  }
  gate.wait();  // open
}

TEST(Stream, WarnsThatBadSamplesAreNotReplaced) {
  thread_world(1, [](World& world) {
    LoaderPlan plan = plan_of(4, 2, 0);
    plan.data.max_bad_samples = 3;
    CapturedStderr captured;
    const DataLoader loader(std::make_unique<Numbers>(Ids{20}), plan, world);
    EXPECT_THAT(captured.text(), HasSubstr("max_bad_samples does not apply to streams"));
  });
}

TEST(Stream, RefusesAPartOfAnUnknownLength) {
  World world = World::single(c10::kCPU);
  LoaderPlan plan = plan_of(4, 2, 0);
  plan.data.steps_per_epoch = StepCount::percent(12.5);
  EXPECT_EQ(message_of([&] { const DataLoader loader(std::make_unique<Numbers>(Ids{20}), plan, world); }),
            "--data.steps_per_epoch 12.5%: the length of this data is not known, expected a number of steps | use "
            "--data.steps_per_epoch N");
}

TEST(Stream, ReportsTheErrorOfAStream) {
  World world = World::single(c10::kCPU);
  for (const int workers : {0, 1}) {
    DataLoader loader(std::make_unique<Numbers>(Ids{20}, /*fails_at=*/13), plan_of(4, 2, workers, /*prefetch=*/1),
                      world);
    std::string message;
    int steps = 0;
    try {
      for (; steps < 10; ++steps) {
        loader.next();
      }
    } catch (const DataError& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "stream of rank 0, after sample 12 of its epoch: std::runtime_error: a broken record");
    EXPECT_GE(steps, 2);
    EXPECT_LE(steps, 3);
    const LoaderPosition before = loader.position();
    EXPECT_THROW(
        for (int i = 0; i < 4; ++i) { loader.next(); }, DataError);
    EXPECT_GE(loader.position().consumed, before.consumed);
  }
  DataLoader empty(std::make_unique<Numbers>(Ids{0}), plan_of(4, 2, 0), world);
  EXPECT_THROW(empty.next(), DataError);
  EXPECT_THROW(DataLoader(std::unique_ptr<Stream>(), plan_of(4, 2, 0), world), DataError);
}

TEST(Stream, TellsAFileErrorFromOneOfASave) {
  World world = World::single(c10::kCPU);
  const auto start = [](std::int64_t, int, int) {
    return []() -> std::optional<Batch> { throw IoError("cannot read shard 7"); };
  };
  DataLoader loader(sample_stream(start), plan_of(4, 4, 0), world);
  try {
    loader.next();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::io);
    EXPECT_STREQ(error.what(), "stream of rank 0, after sample 0 of its epoch: cannot read shard 7");
  }
}

TEST(Stream, StacksSamplesOneByOne) {
  World world = World::single(c10::kCPU);
  int made = 0;
  const auto start = [&](std::int64_t epoch, int rank, int world_size) {
    return [&made, next = static_cast<std::int64_t>(rank), epoch, world_size]() mutable -> std::optional<Batch> {
      if (next >= 7) {
        return std::nullopt;
      }
      ++made;
      Batch sample{.input = at::full({2}, 10 * epoch + next, at::kLong), .target = at::scalar_tensor(next, at::kLong)};
      next += world_size;
      return sample;
    };
  };
  DataLoader loader(sample_stream(start), plan_of(4, 4, 0), world);
  EXPECT_TRUE(at::equal(loader.next()->micro.at(0).input, at::arange(4).unsqueeze(1).expand({4, 2})));
  const StepBatches& last = *loader.next();
  EXPECT_EQ(last.micro.at(0).samples, 3);
  EXPECT_TRUE(last.ends_epoch);
  loader.seek({.epoch = 1, .consumed = 4, .state = "0 1 4"});
  EXPECT_TRUE(at::equal(loader.next()->micro.at(0).target, at::arange(4, 7)));
  EXPECT_GT(made, 0);
  EXPECT_THROW(sample_stream({}), DataError);
}

// A source may begin anew, or wait for ever, if it is asked after its end.
TEST(Stream, DoesNotAskASourceAfterItsEnd) {
  World world = World::single(c10::kCPU);
  const auto start = [](std::int64_t epoch, int, int) {
    return [epoch, next = std::int64_t{0}, ended = false]() mutable -> std::optional<Batch> {
      EXPECT_FALSE(ended);
      ended = next == 5;
      return ended ? std::nullopt : std::optional(Batch{.input = at::scalar_tensor(10 * epoch + next++, at::kLong)});
    };
  };
  for (const std::int64_t batch : {2, 5, 8}) {
    DataLoader loader(sample_stream(start), plan_of(batch, batch, 1), world);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      Ids ids;
      for (bool ends_epoch = false; !ends_epoch;) {
        const Seen step = seen(*loader.next());
        ids.insert(ids.end(), step.ids.begin(), step.ids.end());
        ends_epoch = step.ends_epoch;
      }
      EXPECT_THAT(ids, ElementsAre(10 * epoch, 10 * epoch + 1, 10 * epoch + 2, 10 * epoch + 3, 10 * epoch + 4));
    }
  }
  DataLoader shorter(sample_stream(start), plan_of(2, 2, 0), world);  // than when the checkpoint was written
  shorter.seek({.consumed = 6, .state = "0 3 6"});
  EXPECT_THROW(shorter.next(), DataError);
}

TEST(Stream, RefusesASmallerBatchBeforeTheEndIfSmallerStepsAreDropped) {
  class Shards final : public Stream {  // of 11 samples; the last one has 7
   public:
    void start_epoch(std::int64_t, int, int) override { at_ = 0; }
    std::optional<Batch> next(std::int64_t most) override {
      const std::int64_t count = std::min({most, 11 - at_ % 11, 40 - at_});
      at_ += count;
      return count == 0 ? std::nullopt : std::optional(Batch{.input = at::arange(at_ - count, at_)});
    }

   private:
    std::int64_t at_ = 0;
  };
  World world = World::single(c10::kCPU);
  for (const int workers : {0, 1}) {
    for (const int prefetch : {1, 2, 3}) {
      LoaderPlan plan = plan_of(4, 4, workers, prefetch);
      plan.sampler.drop_last = true;
      DataLoader dropping(std::make_unique<Shards>(), plan, world);
      EXPECT_EQ(
          message_of<DataError>([&] {
            while (!dropping.next()->ends_epoch) {
            }
          }),
          "stream of rank 0, after sample 8 of its epoch: found a batch of 3 samples before the end, expected 4 | "
          "with --sampler.drop_last true, next(most) has to return as many samples as it is asked for until the end of "
          "the stream");
      plan.sampler.drop_last = false;
      DataLoader keeping(std::make_unique<Shards>(), plan, world);
      std::int64_t samples = 0;
      for (bool ends_epoch = false; !ends_epoch;) {
        const Seen step = seen(*keeping.next());
        samples += step.global;
        ends_epoch = step.ends_epoch;
      }
      EXPECT_EQ(samples, 40);
    }
  }
}

TEST(Stream, RefusesABatchWithFewerIdsThanSamples) {
  class OneIdForEachBatch final : public Stream {
   public:
    void start_epoch(std::int64_t, int, int) override {}
    std::optional<Batch> next(std::int64_t most) override {
      return Batch{.input = at::ones({most}), .ids = {7}, .samples = most};
    }
  };
  World world = World::single(c10::kCPU);
  DataLoader loader(std::make_unique<OneIdForEachBatch>(), plan_of(4, 4, 0), world);
  EXPECT_EQ(message_of<DataError>([&] { loader.next(); }),
            "stream: found a batch of 4 samples with 1 id | give each sample an id, or none");
}

}  // namespace
}  // namespace lockstep
