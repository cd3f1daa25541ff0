#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/world/world.h>

#include "data/epoch_begin.h"
#include "support/borrowed.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using Ids = std::vector<std::int64_t>;

/// Rows 100, 101, ... of a loader, 200, 201, ... of another.
DataLoader loader_of(std::int64_t first, std::int64_t size, std::int64_t batch, World& world, int workers = 0) {
  return DataLoader(tensor_dataset(at::arange(first, first + size)),
                    {.batch = {.batch_size = batch, .global_batch_size = batch}, .data = {.workers = workers}}, world);
}

struct Step {
  Ids rows{};
  std::vector<std::size_t> loaders{};
  std::int64_t global = 0;
  std::int64_t epoch = 0;
  bool ends_epoch = false;
  bool operator==(const Step&) const = default;
};

Step take(BatchSource& source) {
  const StepBatches& step = *source.next();
  Step result{.global = step.global_samples, .epoch = step.epoch, .ends_epoch = step.ends_epoch};
  for (const Batch& batch : step.micro) {
    for (std::int64_t i = 0; i < batch.samples; ++i) {
      result.rows.push_back(batch.input[i].item<std::int64_t>());
    }
    result.loaders.push_back(batch.loader);
  }
  EXPECT_EQ(step.local_samples, std::ssize(result.rows));
  return result;
}

struct Shape {
  CombineMode mode;
  std::int64_t steps;
  std::vector<std::string> loaders;  // of each step of an epoch
};

// One loader has 2 steps, the other 5.
const std::vector<Shape> kShapes = {
    {CombineMode::min_size, 2, {"01", "01"}},
    {CombineMode::max_size_cycle, 5, {"01", "01", "01", "01", "01"}},
    {CombineMode::max_size, 5, {"01", "01", "1", "1", "1"}},
    {CombineMode::sequential, 7, {"0", "0", "1", "1", "1", "1", "1"}},
};

TEST(CombinedLoader, SupportsLightningsFourModes) {
  World world = World::single(c10::kCPU);
  for (const Shape& shape : kShapes) {
    DataLoader a = loader_of(100, 4, 2, world);
    DataLoader b = loader_of(200, 14, 3, world, /*workers=*/1);
    CombinedLoader both({borrowed(a), borrowed(b)}, shape.mode);
    EXPECT_EQ(both.steps_per_epoch(), shape.steps);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      Ids of_b;
      for (std::int64_t i = 0; i < shape.steps; ++i) {
        const Step step = take(both);
        std::string loaders;
        for (const std::size_t loader : step.loaders) {
          loaders += std::to_string(loader);
        }
        EXPECT_EQ(loaders, shape.loaders[static_cast<std::size_t>(i)]) << "mode " << static_cast<int>(shape.mode);
        EXPECT_EQ(step.global, std::ssize(step.rows));
        EXPECT_EQ(step.epoch, epoch);
        EXPECT_EQ(step.ends_epoch, i + 1 == shape.steps);
        for (const std::int64_t row : step.rows) {
          if (row >= 200) {
            of_b.push_back(row);
          }
        }
      }
      std::sort(of_b.begin(), of_b.end());
      EXPECT_EQ(std::adjacent_find(of_b.begin(), of_b.end()), of_b.end()) << "an epoch begins anew";
      EXPECT_EQ(std::ssize(of_b), shape.mode == CombineMode::min_size ? 6 : 14);
    }
  }
}

TEST(CombinedLoader, HasLoadersWithPartsOfTheirOwnSteps) {
  World world = World::single(c10::kCPU);
  const auto loader = [&](std::int64_t samples) {
    LoaderPlan plan{.batch = {.batch_size = 2, .global_batch_size = 2}};
    plan.data.steps_per_epoch = StepCount::percent(50);
    return DataLoader(tensor_dataset(at::arange(samples)), plan, world);
  };
  DataLoader a = loader(8);
  DataLoader b = loader(20);
  EXPECT_EQ(CombinedLoader({borrowed(a), borrowed(b)}, CombineMode::min_size).steps_per_epoch(), 2);
  EXPECT_EQ(CombinedLoader({borrowed(a), borrowed(b)}, CombineMode::max_size).steps_per_epoch(), 5);
  EXPECT_EQ(CombinedLoader({borrowed(a), borrowed(b)}, CombineMode::sequential).steps_per_epoch(), 7);
}

TEST(CombinedLoader, ContinuesAnywhere) {
  World world = World::single(c10::kCPU);
  for (const Shape& shape : kShapes) {
    DataLoader a = loader_of(100, 4, 2, world);
    DataLoader b = loader_of(200, 14, 3, world, /*workers=*/1);
    CombinedLoader both({borrowed(a), borrowed(b)}, shape.mode);
    std::vector<LoaderPosition> positions = {both.position()};
    std::vector<Step> steps;
    for (int i = 0; i < 20; ++i) {
      steps.push_back(take(both));
      positions.push_back(both.position());
    }
    for (const std::size_t start : {13U, 0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 16U}) {
      both.seek(positions[start]);
      EXPECT_EQ(both.position(), positions[start]);
      for (std::size_t i = start; i < start + 4; ++i) {
        ASSERT_EQ(take(both), steps[i]) << "mode " << static_cast<int>(shape.mode) << " from " << start;
      }
    }
  }
}

TEST(CombinedLoader, KeepsTheBytesOfAPosition) {
  class WithBytes final : public BatchSource {
   public:
    WithBytes(DataLoader& loader, std::string bytes) : loader_(loader), bytes_(std::move(bytes)) {}
    const StepBatches* next() override { return loader_.next(); }
    void seek(const LoaderPosition& position) override { sought = position.state; }
    LoaderPosition position() const override {
      LoaderPosition with_bytes = loader_.position();
      with_bytes.state = bytes_;
      return with_bytes;
    }
    std::optional<std::int64_t> steps_per_epoch() const override { return loader_.steps_per_epoch(); }
    std::string sought{};

   private:
    DataLoader& loader_;
    std::string bytes_;
  };
  World world = World::single(c10::kCPU);
  const std::string bytes("\x07\x80\xff\0end", 7);
  DataLoader loader = loader_of(100, 4, 2, world);
  WithBytes source(loader, bytes);
  CombinedLoader both({borrowed(source)}, CombineMode::min_size);
  take(both);
  both.seek(both.position());
  EXPECT_EQ(source.sought, bytes);
}

// A short loader that is repeated has other epochs of its own than the others.
TEST(CombinedLoader, GoesBackToTheBeginningOfItsEpoch) {
  World world = World::single(c10::kCPU);
  for (const Shape& shape : kShapes) {
    DataLoader a = loader_of(100, 4, 2, world);
    DataLoader b = loader_of(200, 14, 3, world);
    CombinedLoader both({borrowed(a), borrowed(b)}, shape.mode);
    for (std::int64_t i = 0; i < 2 * shape.steps; ++i) {
      take(both);
    }
    const LoaderPosition begin = both.position();
    const Step first = take(both);
    const LoaderPosition inside = both.position();
    EXPECT_EQ(seek_epoch_begin(both), inside);
    EXPECT_EQ(both.position(), begin) << "mode " << static_cast<int>(shape.mode);
    EXPECT_EQ(take(both), first) << "mode " << static_cast<int>(shape.mode);

    DataLoader again_a = loader_of(100, 4, 2, world);
    DataLoader again_b = loader_of(200, 14, 3, world);
    CombinedLoader resumed({borrowed(again_a), borrowed(again_b)}, shape.mode);
    resumed.seek(inside);
    seek_epoch_begin(resumed);
    EXPECT_EQ(take(resumed), first) << "mode " << static_cast<int>(shape.mode) << " after a resume";
  }
}

// As a single loader that is given to fit(), which has another test.
TEST(CombinedLoader, BeginsWithWholeEpochsOfLoadersThatTheProgramHasLookedAt) {
  World world = World::single(c10::kCPU);
  for (const Shape& shape : kShapes) {
    DataLoader a = loader_of(100, 4, 2, world);
    DataLoader b = loader_of(200, 14, 3, world);
    CombinedLoader fresh({borrowed(a), borrowed(b)}, shape.mode);
    const Step expected = take(fresh);
    for (const bool before : {true, false}) {
      DataLoader seen_a = loader_of(100, 4, 2, world);
      DataLoader seen_b = loader_of(200, 14, 3, world);
      const auto look = [&] {
        seen_a.next();
        seen_b.next();
        seen_b.next();
      };
      if (before) {
        look();
      }
      CombinedLoader both({borrowed(seen_a), borrowed(seen_b)}, shape.mode);
      if (!before) {
        look();
      }
      EXPECT_EQ(take(both), expected) << "mode " << static_cast<int>(shape.mode);
      seek_epoch_begin(both);
      EXPECT_EQ(take(both), expected) << "mode " << static_cast<int>(shape.mode) << " again";
    }
  }
}

TEST(CombinedLoader, MayBeCombinedAgain) {
  World world = World::single(c10::kCPU);
  DataLoader a = loader_of(100, 4, 2, world);
  DataLoader b = loader_of(200, 6, 2, world);
  DataLoader c = loader_of(300, 2, 2, world);
  CombinedLoader ab({borrowed(a), borrowed(b)}, CombineMode::sequential);
  CombinedLoader all({borrowed(ab), borrowed(c)}, CombineMode::min_size);
  EXPECT_TRUE(take(all).ends_epoch);
  EXPECT_EQ(ab.position().epoch, 1);
  const LoaderPosition position = all.position();
  const Step step = take(all);
  all.seek(position);
  EXPECT_EQ(take(all), step);
}

TEST(CombinedLoader, NumbersAllLoadersThrough) {
  World world = World::single(c10::kCPU);
  DataLoader a = loader_of(100, 2, 2, world);
  DataLoader b = loader_of(200, 2, 2, world);
  DataLoader c = loader_of(300, 4, 2, world);
  DataLoader d = loader_of(400, 4, 2, world);
  CombinedLoader bc({borrowed(b), borrowed(c)}, CombineMode::max_size);
  CombinedLoader abc({borrowed(a), borrowed(bc)}, CombineMode::max_size);
  CombinedLoader all({borrowed(abc), borrowed(d)}, CombineMode::max_size);
  EXPECT_EQ(take(all).loaders, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(take(all).loaders, (std::vector<std::size_t>{2, 3})) << "a and b have ended";
}

// As a single loader: with drop_last and the larger batch no whole step is left.
TEST(CombinedLoader, EndsTheEpochThatIsOverWithAnotherGlobalBatch) {
  World world = World::single(c10::kCPU);
  const auto loader = [&](std::int64_t size, std::int64_t batch) {
    return DataLoader(tensor_dataset(at::arange(size)),
                      {.batch = {.batch_size = batch, .global_batch_size = batch, .global_is_given = true},
                       .sampler = {.drop_last = true},
                       .data = {.workers = 0}},
                      world);
  };
  struct After {
    CombineMode mode;
    std::int64_t epoch;
    std::vector<std::size_t> loaders;  // of the next step
  };
  for (const auto& [mode, epoch, loaders] : std::vector<After>{{CombineMode::min_size, 1, {0, 1}},
                                                               {CombineMode::max_size_cycle, 0, {0, 1}},
                                                               {CombineMode::max_size, 0, {1}},
                                                               {CombineMode::sequential, 0, {1}}}) {
    DataLoader a = loader(40, 8);
    DataLoader b = loader(160, 8);
    CombinedLoader before({borrowed(a), borrowed(b)}, mode);
    for (int step = 0; step < 4; ++step) {
      take(before);
    }
    DataLoader larger_a = loader(40, 16);
    DataLoader larger_b = loader(160, 16);
    CombinedLoader after({borrowed(larger_a), borrowed(larger_b)}, mode);
    after.seek(before.position());
    EXPECT_EQ(after.position().epoch, epoch);
    const Step step = take(after);
    EXPECT_EQ(step.epoch, epoch) << "mode " << static_cast<int>(mode);
    EXPECT_EQ(step.loaders, loaders) << "mode " << static_cast<int>(mode);
    EXPECT_EQ(step.global, 16 * std::ssize(loaders));
  }
}

// Rates that follow the global batch read it.
TEST(CombinedLoader, HasTheGlobalBatchOfItsSteps) {
  World world = World::single(c10::kCPU);
  DataLoader a = loader_of(100, 20, 2, world);
  DataLoader b = loader_of(200, 30, 5, world);
  for (const CombineMode mode : {CombineMode::min_size, CombineMode::max_size_cycle, CombineMode::max_size}) {
    EXPECT_EQ(CombinedLoader({borrowed(a), borrowed(b)}, mode).position().global_batch, 7);
  }
  EXPECT_EQ(CombinedLoader({borrowed(a), borrowed(b)}, CombineMode::sequential).position().global_batch, 5);
}

/// Gives steps of one sample, and then none.
class Ending final : public BatchSource {
 public:
  explicit Ending(std::int64_t steps) : steps_(steps) {}
  const StepBatches* next() override {
    step_ = {.micro = {{.input = at::full({1}, 900 + at_), .samples = 1}}, .local_samples = 1, .global_samples = 1};
    return at_++ < steps_ ? &step_ : nullptr;
  }
  std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
  LoaderPosition position() const override { return {.consumed = std::min(at_, steps_), .global_batch = 1}; }
  void seek(const LoaderPosition& position) override { at_ = position.consumed; }

 private:
  std::int64_t steps_;
  std::int64_t at_ = 0;
  StepBatches step_{};
};

// A save after the failure must contain the data of the step that failed.
TEST(CombinedLoader, StaysAtTheStepThatALoaderCouldNotGive) {
  World world = World::single(c10::kCPU);
  bool broken = false;
  const auto data = sample_dataset(10, [&](std::int64_t id, std::uint64_t) {
    if (broken) {
      throw std::runtime_error("a broken file");
    }
    return Batch{.input = at::scalar_tensor(200 + id, at::kLong)};
  });
  for (const CombineMode mode : {CombineMode::min_size, CombineMode::max_size_cycle, CombineMode::max_size}) {
    DataLoader a = loader_of(100, 4, 2, world);
    DataLoader b(data, {.batch = {.batch_size = 2, .global_batch_size = 2}, .data = {.workers = 0}}, world);
    CombinedLoader both({borrowed(a), borrowed(b)}, mode);
    take(both);
    const LoaderPosition position = both.position();
    const Step expected = take(both);  // the last step of an epoch of `a`
    both.seek(position);
    broken = true;
    EXPECT_THROW(both.next(), DataError);
    EXPECT_EQ(both.position(), position);
    EXPECT_THROW(both.next(), DataError);
    EXPECT_EQ(both.position(), position);
    broken = false;
    EXPECT_EQ(take(both), expected);
    both.seek(position);
    EXPECT_EQ(take(both), expected);
  }
}

TEST(CombinedLoader, StaysAtTheStepBeforeWhichALoaderEnded) {
  World world = World::single(c10::kCPU);
  DataLoader a = loader_of(100, 20, 2, world);
  Ending b(3);
  CombinedLoader both({borrowed(a), borrowed(b)}, CombineMode::min_size);
  for (int step = 0; step < 3; ++step) {
    take(both);
  }
  const LoaderPosition position = both.position();
  EXPECT_EQ(both.next(), nullptr);
  EXPECT_EQ(both.position(), position);
  EXPECT_EQ(both.next(), nullptr);
  EXPECT_EQ(both.position(), position);
}

TEST(CombinedLoader, HasTheFingerprintsOfItsLoaders) {
  World world = World::single(c10::kCPU);
  DataLoader a = loader_of(100, 4, 2, world);
  DataLoader b = loader_of(200, 6, 2, world);
  EXPECT_THAT(a.fingerprint(), testing::StartsWith("4 samples"));
  EXPECT_EQ(CombinedLoader({borrowed(a), borrowed(b)}, CombineMode::min_size).fingerprint(),
            a.fingerprint() + " + " + b.fingerprint());
}

TEST(CombinedLoader, RejectsPositionsOfOtherLoaders) {
  World world = World::single(c10::kCPU);
  DataLoader a = loader_of(100, 4, 2, world);
  DataLoader b = loader_of(200, 6, 2, world);
  CombinedLoader both({borrowed(a), borrowed(b)}, CombineMode::min_size);
  CombinedLoader one({borrowed(a)}, CombineMode::min_size);
  EXPECT_THROW(both.seek(one.position()), CheckpointError);
  EXPECT_THROW(both.seek({.consumed = 2}), CheckpointError);
  for (const auto& [state, reason] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "\"loaders\" is missing"},
           {R"({"loaders": 3, "ended": []})", "a position of \"loaders\" is not an array of 5 values"},
           {R"({"loaders": [[0, "x", 0, 1, ""]], "ended": []})", "found \"x\", expected \"consumed\" to be an integer"},
           {R"({"loaders": [], "ended": [1]})", "found [1], expected \"ended\" to be an array of true and false"},
           {R"({"loaders": [], "ended": []})", "\"began\" is missing"}}) {
    const LoaderPosition position{.consumed = 2, .state = state};
    EXPECT_THAT([&] { both.seek(position); },
                testing::ThrowsMessage<CheckpointError>(testing::HasSubstr(": " + reason)));
  }
  EXPECT_THROW(both.seek({.consumed = 2, .state = "0 1 2"}), CheckpointError);
  EXPECT_THROW(CombinedLoader({}, CombineMode::min_size), DataError);
  EXPECT_THAT(message_of([] { CombinedLoader({nullptr}, CombineMode::min_size); }),
              testing::StartsWith("combined loader: loader 0 is null"));
  EXPECT_THAT(message_of([&] {
                CombinedLoader({borrowed(a), borrowed(b), borrowed(a)}, CombineMode::min_size);
              }),
              testing::StartsWith("combined loader: loader 2 is the same as loader 0"));
}

}  // namespace
}  // namespace lockstep
