// NaN and infinity in the data: how they are found and named, and what follows.
#include "data/finite_values.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/cache.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/replay_buffer.h>
#include <lockstep/data/transforms.h>
#include <lockstep/world/world.h>

#include "support/borrowed.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using Ids = std::vector<std::int64_t>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::string text_of(const Batch& batch, std::int64_t samples) {
  const auto found = find_not_finite(batch, samples);
  return found ? found->text : "finite";
}

TEST(FiniteValues, AreLookedForInAllTypesOfNumbers) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kFloat8_e5m2}) {
    const at::Tensor largest = at::full({2, 3}, 1000, at::kFloat).to(type);
    EXPECT_EQ(text_of({.input = largest}, 2), "finite") << type;
    for (const double value : {kNan, kInf, -kInf}) {
      at::Tensor numbers = at::ones({2, 3}, at::kFloat);
      numbers[1][2].fill_(value);
      EXPECT_EQ(text_of({.input = numbers.to(type)}, 2),
                "input has 1 of 3 elements that are NaN or infinite, the first is " +
                    std::string(std::isnan(value) ? "nan"
                                : value > 0       ? "inf"
                                                  : "-inf") +
                    " at [2]")
          << type;
    }
  }
  at::Tensor complex = at::zeros({2, 3}, at::kComplexFloat);
  EXPECT_EQ(text_of({.input = complex}, 2), "finite");
  at::view_as_real(complex)[0][1][1].fill_(kInf);
  EXPECT_THAT(text_of({.input = complex.conj()}, 2), HasSubstr("-inf at [1, 1]"));
  EXPECT_EQ(text_of({.input = at::ones({2, 3}, at::kLong), .target = at::ones({2}, at::kBool)}, 2), "finite");
}

TEST(FiniteValues, OfLargestNumbersAreFinite) {
  const auto largest = at::full({64, 1000}, std::numeric_limits<float>::max());
  EXPECT_EQ(text_of({.input = largest}, 64), "finite") << "their sum is infinite";
  EXPECT_EQ(text_of({.input = at::full({64, 1000}, 65504, at::kHalf)}, 64), "finite");
}

TEST(FiniteValues, AreLookedForInTensorsOfAllLayouts) {
  at::Tensor numbers = at::zeros({3, 4});
  numbers[2][1].fill_(kNan);
  EXPECT_EQ(text_of({.input = numbers.t()}, 4),
            "input has 1 of 3 elements that are NaN or infinite, the first is nan at [2]");
  EXPECT_EQ(text_of({.input = numbers.slice(1, 1, 4, 2)}, 3),
            "input has 1 of 2 elements that are NaN or infinite, the first is nan at [0]");
  EXPECT_EQ(text_of({.input = numbers.to_sparse()}, 3),
            "input has 1 of 4 elements that are NaN or infinite, the first is nan at [1]");
  EXPECT_EQ(text_of({.input = at::zeros({3, 0})}, 3), "finite");
  EXPECT_EQ(text_of({.input = at::scalar_tensor(kNan)}, 1), "input is nan");
  EXPECT_EQ(text_of({}, 3), "finite");
}

TEST(FiniteValues, AreNamedByTensorAndSample) {
  const at::Tensor good = at::ones({4, 2});
  at::Tensor bad = at::ones({4, 2});
  bad[2].fill_(kNan);
  bad[3][0].fill_(kInf);
  EXPECT_EQ(text_of({.input = good, .target = bad}, 4),
            "target has 2 of 2 elements that are NaN or infinite, the first is nan at [0]");
  EXPECT_EQ(find_not_finite({.input = good, .target = bad}, 4)->row, 2);
  EXPECT_THAT(text_of({.input = good, .weight = bad.select(1, 0)}, 4), "weight is nan");
  EXPECT_THAT(text_of({.input = good, .fields = {{"mask", bad}}}, 4), StartsWith("fields.mask has 2 of 2"));
  // Rows that are not samples.
  EXPECT_EQ(find_not_finite({.input = bad}, 3)->row, std::nullopt);
  EXPECT_EQ(text_of({.input = bad}, 3),
            "input has 3 of 8 elements that are NaN or infinite, the first is nan at [2, 0]");
}

World cpu() { return World::single(c10::kCPU); }

/// Two steps of 10 samples in their order, in two micro-batches, with the check.
LoaderPlan checked_plan(int workers, std::int64_t max_bad_samples = 0) {
  return {.batch = {.batch_size = 5, .global_batch_size = 10},
          .sampler = {.shuffle = false},
          .data = {.workers = workers, .max_bad_samples = max_bad_samples, .check_finite = true}};
}

/// Row i of the input is i; in the bad ones an element of input or target is not finite.
struct Table {
  at::Tensor input = at::arange(20, at::kFloat).unsqueeze(1).repeat({1, 3});
  at::Tensor target = at::arange(20, at::kFloat);

  Table() {
    input[3][1].fill_(kNan);
    target[7].fill_(kInf);
    input[19].fill_(-kInf);
  }
  Batch sample(std::int64_t id) const { return {.input = input[id], .target = target[id]}; }
};

std::string first_error(std::shared_ptr<const Dataset> data, const LoaderPlan& plan) {
  World world = cpu();
  DataLoader loader(std::move(data), plan, world);
  return message_of([&] {
    loader.next();
    loader.next();
  });
}

TEST(CheckFinite, NamesTheSampleInEveryKindOfDataSet) {
  const Table table;
  const TempDir dir;
  World world = cpu();
  const std::string expected =
      ": input has 1 of 3 elements that are NaN or infinite, the first is nan at [1] | --data.max_bad_samples N "
      "replaces up to N such samples of each rank";
  const auto whole = tensor_dataset(table.input, table.target);
  const auto single = sample_dataset(20, [&](std::int64_t id, std::uint64_t) { return table.sample(id); });
  const auto makes_nan =
      map(tensor_dataset(at::arange(20, at::kFloat).unsqueeze(1).repeat({1, 3})), [](Batch sample, std::uint64_t) {
        const at::Tensor one = sample.input[1];
        one.div_(one - 3).mul_(0);  // 3 / 0
        return sample;
      });
  for (const int workers : {0, 2}) {
    const LoaderPlan plan = checked_plan(workers);
    for (const auto& data :
         {whole, single, makes_nan, memory_cache(whole, 1 << 20), disk_cache(whole, dir.path() / "cache", world)}) {
      EXPECT_EQ(first_error(data, plan), "sample 3" + expected);
    }
    EXPECT_EQ(first_error(subset(whole, {0, 1, 2, 4, 5, 6, 3, 8, 9, 10}), plan), "sample 6" + expected)
        << "the number in the subset, as all messages of a loader";
    EXPECT_EQ(first_error(concat({take(whole, 3), whole}), plan), "sample 6" + expected);
    LoaderPlan unchecked = plan;
    unchecked.data.check_finite = false;
    EXPECT_EQ(first_error(whole, unchecked), "no error");
  }
}

// Alone each of its samples is finite.
TEST(CheckFinite, NamesTheBatchThatATransformMadeOfFiniteSamples) {
  const auto data = map_batches(tensor_dataset(at::ones({20, 2})), [](Batch batch) {
    if (batch.input.size(0) > 1) {
      batch.input[2].div_(batch.input.std(0));
    }
    return batch;
  });
  const std::string expected =
      "samples 0, 1, 2, 3, 4 (5 samples): input has 2 of 2 elements that are NaN or infinite, the first is inf at [0] "
      "(sample 2) | each of these samples alone is finite: look at what builds the batch, such as map_batches";
  EXPECT_EQ(first_error(data, checked_plan(0)), expected);
  EXPECT_EQ(first_error(data, checked_plan(0, /*max_bad_samples=*/3)), expected);
}

TEST(CheckFinite, ReplacesASampleAsOneThatCannotBeLoaded) {
  const Table table;
  World world = cpu();
  const auto fails = sample_dataset(20, [&](std::int64_t id, std::uint64_t) {
    if (id == 3 || id == 7 || id == 19) {
      throw std::runtime_error("not an image");
    }
    return table.sample(id);
  });
  for (const int workers : {0, 2}) {
    LoaderPlan plan = checked_plan(workers, /*max_bad_samples=*/3);
    DataLoader loader(tensor_dataset(table.input, table.target), plan, world);
    plan.data.check_finite = false;
    DataLoader expected(fails, plan, world);
    for (int step = 0; step < 6; ++step) {  // three epochs
      const StepBatches given = *loader.next();
      const StepBatches wanted = *expected.next();
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(given.micro[i].ids, wanted.micro[i].ids);
        EXPECT_EQ(given.micro[i].replaced, wanted.micro[i].replaced);
        EXPECT_TRUE(at::equal(given.micro[i].input, wanted.micro[i].input));
        EXPECT_TRUE(at::equal(given.micro[i].target, wanted.micro[i].target));
      }
    }
    EXPECT_THAT(DataLoader(tensor_dataset(table.input), plan, world).next()->micro[0].replaced, ElementsAre())
        << "without the check it is given as it is";
  }
  EXPECT_THAT(first_error(tensor_dataset(table.input, table.target), checked_plan(0, /*max_bad_samples=*/1)),
              StartsWith("sample 7: target is inf; 1 other bad samples were replaced before"));
  EXPECT_THAT(first_error(tensor_dataset(at::full({20, 2}, kNan)), checked_plan(0, /*max_bad_samples=*/20)),
              StartsWith("all samples of the data set are bad"));
}

TEST(CheckFinite, LogsTheSampleThatItReplaces) {
  const Table table;
  CapturedStderr captured;
  EXPECT_EQ(first_error(tensor_dataset(table.input, table.target), checked_plan(0, 3)), "no error");
  EXPECT_THAT(captured.text(),
              HasSubstr("bad sample 7, replaced by the next one (2 of at most 3): sample 7: target is inf"));
}

TEST(CheckFinite, AppliesToEachOfSeveralLoaders) {
  const Table table;
  World world = cpu();
  DataLoader good(tensor_dataset(at::ones({20, 3})), checked_plan(1), world);
  DataLoader bad(tensor_dataset(table.input), checked_plan(1), world);
  CombinedLoader both({borrowed(good), borrowed(bad)}, CombineMode::min_size);
  EXPECT_THAT(message_of([&] { both.next(); }), StartsWith("sample 3: input has 1 of 3 elements"));
}

/// Sample 7 of each rank's stream is NaN, or a batch of other rows has NaN.
class BadStream final : public Stream {
 public:
  explicit BadStream(std::int64_t rows) : rows_(rows) {}
  void start_epoch(std::int64_t, int, int) override { at_ = 0; }
  std::optional<Batch> next(std::int64_t most) override {
    at::Tensor input = at::ones({most * rows_, 2});
    if (at_ <= 7 && 7 < at_ + most) {
      input[(7 - at_) * rows_].fill_(kNan);
    }
    at_ += most;
    return Batch{.input = input, .samples = most};
  }

 private:
  std::int64_t rows_;
  std::int64_t at_ = 0;
};

TEST(CheckFinite, NamesTheSampleOfAStream) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      for (const std::int64_t rows : {1, 3}) {
        LoaderPlan plan = checked_plan(1);
        plan.batch = {.batch_size = 3, .global_batch_size = 6 * world.size()};
        DataLoader loader(std::make_unique<BadStream>(rows), plan, world);
        EXPECT_EQ(message_of([&] {
                    for (int step = 0; step < 2; ++step) {
                      loader.next();
                    }
                  }),
                  "stream of rank " + std::to_string(world.rank()) +
                      (rows == 1 ? ", after sample 6 of its epoch: input has 2 of 2 elements that are NaN or infinite, "
                                   "the first is nan at [0] (sample 7)"
                                 : ", after sample 6 of its epoch: input has 2 of 18 elements that are NaN or "
                                   "infinite, the first is nan at [3, 0]"));
        plan.data.check_finite = false;
        DataLoader unchecked(std::make_unique<BadStream>(rows), plan, world);
        EXPECT_EQ(message_of([&] {
                    unchecked.next();
                    unchecked.next();
                  }),
                  "no error");
      }
    });
  }
}

TEST(CheckFinite, KeepsABadTransitionOutOfAReplayBuffer) {
  World world = cpu();
  const Table table;
  LoaderPlan plan = checked_plan(0);
  ReplayBuffer buffer(100, plan, world);
  EXPECT_EQ(message_of([&] { buffer.add({.input = table.input, .target = table.target}); }),
            "replay buffer: transition 3 of 20: input has 1 of 3 elements that are NaN or infinite, the first is nan "
            "at [1]");
  EXPECT_EQ(buffer.size(), 0);
  plan.data.check_finite = false;
  ReplayBuffer unchecked(100, plan, world);
  unchecked.add({.input = table.input, .target = table.target});
  EXPECT_EQ(unchecked.size(), 20);
}

}  // namespace
}  // namespace lockstep
