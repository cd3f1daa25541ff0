#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/transforms.h>
#include <lockstep/world/world.h>

#include "ipc/progress_record.h"
#include "support/message_of.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using Ids = std::vector<std::int64_t>;

World cpu() { return World::single(c10::kCPU); }

LoaderPlan plan_of(std::int64_t global_batch_size, std::int64_t batch_size, int workers, int prefetch = 2) {
  return {.batch = {.batch_size = batch_size, .global_batch_size = global_batch_size},
          .data = {.workers = workers, .prefetch = prefetch},
          .seed = 11};
}

/// Samples that carry their id and the seed they were given.
std::shared_ptr<Dataset> seeded_samples(std::int64_t size) {
  return sample_dataset(size, [](std::int64_t id, std::uint64_t seed) {
    return Batch{.input = at::scalar_tensor(static_cast<std::int64_t>(seed >> 1), at::kLong),
                 .target = at::scalar_tensor(id, at::kLong)};
  });
}

std::vector<StepBatches> take(BatchSource& source, int steps) {
  std::vector<StepBatches> taken;
  for (int step = 0; step < steps; ++step) {
    taken.push_back(*source.next());
  }
  return taken;
}

/// "" when both are the same to the last bit, else the first difference.
std::string difference(const std::vector<StepBatches>& a, const std::vector<StepBatches>& b) {
  for (std::size_t step = 0; step < std::max(a.size(), b.size()); ++step) {
    const std::string here = "step " + std::to_string(step);
    if (step >= a.size() || step >= b.size() || a[step].micro.size() != b[step].micro.size() ||
        a[step].local_samples != b[step].local_samples || a[step].global_samples != b[step].global_samples ||
        a[step].epoch != b[step].epoch || a[step].ends_epoch != b[step].ends_epoch) {
      return here;
    }
    for (std::size_t micro = 0; micro < a[step].micro.size(); ++micro) {
      const Batch& x = a[step].micro[micro];
      const Batch& y = b[step].micro[micro];
      if (x.ids != y.ids || x.samples != y.samples || !at::equal(x.input, y.input) || !at::equal(x.target, y.target)) {
        return here + " micro-batch " + std::to_string(micro);
      }
    }
  }
  return "";
}

// The rest of such a program has no limit, but waiting for data has one.
TEST(DataLoader, NotesThatALoopByHandWaitsForData) {
  World world = cpu();
  ProgressRecord& record = WorldAccess::progress(world);
  Phase seen = Phase::start;
  bool fails = false;
  const auto samples = sample_dataset(8, [&](std::int64_t id, std::uint64_t) {
    seen = record.phase;
    if (fails) {
      throw std::runtime_error("cannot decode");
    }
    return Batch{.input = at::scalar_tensor(id)};
  });
  DataLoader loader(samples, plan_of(1, 1, /*workers=*/0), world);
  for (const auto& [around, inside] :
       {std::pair(Phase::program, Phase::data), {Phase::validation, Phase::validation}}) {
    record.set_phase(around);
    static_cast<void>(loader.next());
    EXPECT_EQ(seen, inside) << to_string(around);
    EXPECT_EQ(record.phase, around);
  }
  record.set_phase(Phase::program);
  fails = true;
  EXPECT_THROW(static_cast<void>(loader.next()), DataError);
  EXPECT_EQ(record.phase, Phase::data) << "the place of the failure";
}

TEST(DataLoader, GivesEverySampleOncePerEpochWithItsContent) {
  World world = cpu();
  for (const std::int64_t size : {1, 13, 64, 101}) {
    for (const int workers : {0, 3}) {
      const at::Tensor input = at::arange(size * 2, at::kFloat).reshape({size, 2});
      DataLoader loader(tensor_dataset(input, at::arange(size)), plan_of(12, 5, workers), world);
      for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
        Ids seen;
        for (std::int64_t step = 0; step < *loader.steps_per_epoch(); ++step) {
          const StepBatches& batches = *loader.next();
          ASSERT_EQ(batches.epoch, epoch);
          ASSERT_EQ(batches.ends_epoch, step + 1 == *loader.steps_per_epoch());
          std::int64_t samples = 0;
          for (const Batch& batch : batches.micro) {
            ASSERT_EQ(batch.samples, static_cast<std::int64_t>(batch.ids.size()));
            ASSERT_TRUE(at::equal(batch.target, at::tensor(batch.ids)));
            ASSERT_TRUE(at::equal(batch.input, input.index_select(0, batch.target)));
            samples += batch.samples;
            seen.insert(seen.end(), batch.ids.begin(), batch.ids.end());
          }
          ASSERT_EQ(batches.local_samples, samples);
          ASSERT_EQ(batches.global_samples, samples);
        }
        std::sort(seen.begin(), seen.end());
        ASSERT_TRUE(at::equal(at::tensor(seen), at::arange(size))) << "size " << size << " epoch " << epoch;
      }
    }
  }
}

TEST(DataLoader, DropsTheLastSmallerStepWhenAsked) {
  World world = cpu();
  LoaderPlan plan = plan_of(12, 5, 2);
  plan.sampler.drop_last = true;
  DataLoader loader(seeded_samples(101), plan, world);
  EXPECT_EQ(loader.steps_per_epoch(), 8);
  for (const StepBatches& batches : take(loader, 8)) {
    EXPECT_EQ(batches.global_samples, 12);
  }
  EXPECT_EQ(loader.position(), (LoaderPosition{.epoch = 1, .consumed = 0, .dataset_size = 101, .global_batch = 12}));
}

TEST(DataLoader, GivesTheSameBatchesWithAnyNumberOfWorkers) {
  World world = cpu();
  const auto run = [&](int workers, int prefetch, std::uint64_t seed = 11) {
    LoaderPlan plan = plan_of(10, 3, workers, prefetch);
    plan.seed = seed;
    DataLoader loader(seeded_samples(57), plan, world);
    return take(loader, 20);
  };
  const std::vector<StepBatches> expected = run(0, 2);
  EXPECT_EQ(difference(run(0, 0), expected), "");
  EXPECT_EQ(difference(run(1, 0), expected), "");
  EXPECT_EQ(difference(run(1, 2), expected), "");
  EXPECT_EQ(difference(run(4, 1), expected), "");
  EXPECT_EQ(difference(run(4, 5), expected), "");
  EXPECT_EQ(difference(run(4, 5, /*seed=*/12), expected), "step 0 micro-batch 0");
}

TEST(DataLoader, BuildsWithoutGraphAndReusesItsResult) {
  World world = cpu();
  for (const int workers : {0, 2}) {
    DataLoader loader(sample_dataset(10,
                                     [](std::int64_t, std::uint64_t) {
                                       EXPECT_FALSE(c10::GradMode::is_enabled());
                                       return Batch{.input = at::ones({})};
                                     }),
                      plan_of(4, 2, workers), world);
    const StepBatches* first = loader.next();
    EXPECT_EQ(loader.next(), first);
    EXPECT_TRUE(c10::GradMode::is_enabled());
  }
}

TEST(DataLoader, ContinuesAfterSeekAsIfItHadNeverStopped) {
  World world = cpu();
  for (const int workers : {0, 2}) {
    DataLoader straight(seeded_samples(57), plan_of(10, 3, workers), world);
    std::vector<LoaderPosition> positions = {straight.position()};
    std::vector<StepBatches> steps;
    for (int step = 0; step < 15; ++step) {
      steps.push_back(*straight.next());
      positions.push_back(straight.position());
    }
    DataLoader jumping(seeded_samples(57), plan_of(10, 3, workers), world);
    for (const std::size_t start : {4U, 0U, 11U, 6U, 5U, 12U}) {  // forth and back, with the pool full of other steps
      jumping.seek(positions[start]);
      EXPECT_EQ(jumping.position(), positions[start]);
      const std::vector<StepBatches> expected(steps.begin() + static_cast<std::ptrdiff_t>(start),
                                              steps.begin() + static_cast<std::ptrdiff_t>(start) + 3);
      EXPECT_EQ(difference(take(jumping, 3), expected), "")
          << "from step " << start << " with " << workers << " workers";
      EXPECT_EQ(jumping.position(), positions[start + 3]);
    }
  }
}

TEST(LoaderPosition, IsWrittenAsText) {
  const LoaderPosition position{.epoch = 2, .consumed = 12, .dataset_size = 30, .global_batch = 6, .state = "a b"};
  auto values = position_values(position);
  EXPECT_EQ(values.at("position.consumed"), "12");
  values["step"] = "7";
  EXPECT_EQ(position_of(values), position);
  values.erase("position.epoch");
  EXPECT_THAT(message_of<CheckpointError>([&] { position_of(values); }), HasSubstr("no whole number 'position.epoch'"));
}

TEST(DataLoader, CountsTakenStepsNotPreparedOnes) {
  World world = cpu();
  DataLoader loader(seeded_samples(57), plan_of(10, 3, 2, /*prefetch=*/8), world);
  EXPECT_EQ(loader.position(), (LoaderPosition{0, 0, 57, 10}));
  loader.next();
  EXPECT_EQ(loader.position(), (LoaderPosition{0, 10, 57, 10, "shuffled order (keyed, seed 11)"}));
  loader.seek({.epoch = 2, .consumed = 57});
  EXPECT_EQ(loader.position(), (LoaderPosition{3, 0, 57, 10}));
  EXPECT_EQ(loader.next()->epoch, 3);
}

TEST(DataLoader, RejectsThePositionOfAnotherDataSetAndContinues) {
  World world = cpu();
  DataLoader loader(seeded_samples(57), plan_of(10, 10, 2), world);
  DataLoader reference(seeded_samples(57), plan_of(10, 10, 0), world);
  loader.next();
  reference.next();
  EXPECT_THROW(loader.seek({.consumed = 10, .dataset_size = 58}), CheckpointError);
  EXPECT_THROW(loader.seek({.consumed = 58}), CheckpointError);
  EXPECT_EQ(difference(take(loader, 3), take(reference, 3)), "");
}

TEST(DataLoader, RethrowsTheErrorOfASampleInItsStep) {
  World world = cpu();
  static constexpr std::int64_t kBad = 23;
  for (const int workers : {0, 1, 4}) {
    DataLoader good(seeded_samples(57), plan_of(10, 3, 0), world);
    const auto bad = sample_dataset(57, [samples = seeded_samples(57)](std::int64_t id, std::uint64_t) -> Batch {
      if (id == kBad) {
        throw std::runtime_error("not an image");
      }
      return {.input = at::ones({})};
    });
    DataLoader loader(bad, plan_of(10, 3, workers), world);
    bool thrown = false;
    while (!thrown) {
      const StepBatches& expected = *good.next();
      const bool is_bad_step = std::any_of(expected.micro.begin(), expected.micro.end(), [](const Batch& batch) {
        return std::count(batch.ids.begin(), batch.ids.end(), kBad) > 0;
      });
      const LoaderPosition before = loader.position();
      try {
        loader.next();
        ASSERT_FALSE(is_bad_step);
      } catch (const DataError& error) {
        EXPECT_TRUE(is_bad_step);
        EXPECT_STREQ(error.what(), "sample 23: std::runtime_error: not an image");
        EXPECT_EQ(loader.position(), before);
        EXPECT_THROW(loader.next(), DataError) << "the same step again";
        thrown = true;
      }
    }
    loader.seek(good.position());
    loader.next();  // the steps after it are well
  }
}

/// A data set whose get() does what a test says, which is told the first of the ids.
class Scripted final : public Dataset {
 public:
  explicit Scripted(std::function<void(std::int64_t)> on_get) : on_get_(std::move(on_get)) {}
  std::int64_t size() const override { return 1000; }
  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    on_get_(ids.front());
    return {.input = at::empty({static_cast<std::int64_t>(ids.size())})};
  }

 private:
  std::function<void(std::int64_t)> on_get_;
};

LoaderPlan in_order(LoaderPlan plan) {
  plan.sampler.shuffle = false;
  return plan;
}

TEST(DataLoader, NamesTheSamplesOfADataSetThatThrows) {
  World world = cpu();
  const auto message = [&](const std::function<void(std::int64_t)>& on_get) {
    DataLoader loader(std::make_shared<Scripted>(on_get), in_order(plan_of(20, 10, 2)), world);
    return message_of([&] { loader.next(); });
  };
  EXPECT_EQ(message([](std::int64_t) { throw std::out_of_range("row 7"); }),
            "sample 0: std::out_of_range: row 7 | --data.max_bad_samples N replaces up to N such samples of each rank");
  EXPECT_EQ(message([](std::int64_t) { throw IoError("shard 3: short read", "mount it"); }),
            "shard 3: short read | mount it");
  EXPECT_EQ(message([](std::int64_t) { throw std::bad_alloc(); }), "sample 0: std::bad_alloc: std::bad_alloc")
      << "other samples would need the memory too";
  EXPECT_EQ(message([](std::int64_t) {}), "no error");
}

TEST(DataLoader, NamesTheSampleOfADataSetOfSeveral) {
  World world = cpu();
  const auto bad = sample_dataset(100, [](std::int64_t id, std::uint64_t) -> Batch {
    if (id == 7) {
      throw std::runtime_error("not an image");
    }
    return {.input = at::ones({1})};
  });
  const auto message = [&](const std::shared_ptr<Dataset>& data) {
    DataLoader loader(data, in_order(plan_of(data->size(), data->size(), 0)), world);
    return message_of([&] { loader.next(); });
  };
  EXPECT_THAT(message(concat({tensor_dataset(at::ones({1000, 1})), bad})),
              StartsWith("sample 1007: sample 7: std::runtime_error: not an image"));
  EXPECT_THAT(message(subset(bad, {1, 2, 7})), StartsWith("sample 2: sample 7: "));
  EXPECT_THAT(message(bad), StartsWith("sample 7: std::runtime_error"));
}

// The loader asks for the order of the next epoch before the steps of this one are taken.
TEST(DataLoader, GivesAllStepsBeforeAnOrderThatFails) {
  World world = cpu();
  for (const int workers : {0, 2}) {
    const auto order = custom_order(20, [](std::uint64_t, std::int64_t epoch) -> Ids {
      if (epoch == 1) {
        throw std::out_of_range("no list");
      }
      Ids ids(20);
      std::iota(ids.begin(), ids.end(), 0);
      return ids;
    });
    DataLoader loader(seeded_samples(20), plan_of(5, 5, workers), world, order);
    EXPECT_EQ(take(loader, 4).back().ends_epoch, true);
    for (int again = 0; again < 2; ++again) {
      EXPECT_THROW(loader.next(), std::out_of_range);
    }
    loader.seek({});
    EXPECT_EQ(take(loader, 4).size(), 4U);
  }
}

TEST(DataLoader, RefusesASampleOfAnOrderThatTheDataSetDoesNotHave) {
  World world = cpu();
  const auto from_one = custom_order(8, [](std::uint64_t, std::int64_t) { return Ids{1, 2, 3, 4, 5, 6, 7, 8}; });
  for (const int most_bad : {0, 1}) {
    LoaderPlan plan = plan_of(4, 4, 1);
    plan.data.max_bad_samples = most_bad;
    DataLoader loader(seeded_samples(8), plan, world, from_one);
    take(loader, 1);
    EXPECT_EQ(message_of<DataError>([&] { loader.next(); }), "data loader: found sample id 8, expected 0 to 7");
  }
}

// A launcher starts a run again after an error of a disk, and not after bad data.
TEST(DataLoader, KeepsTheExitCodeOfTheErrorOfASample) {
  World world = cpu();
  const std::shared_ptr<Dataset> data = sample_dataset(
      8, [](std::int64_t, std::uint64_t) -> Batch { throw IoError("cannot read a.png: Input/output error"); });
  const auto code_of = [](const std::function<void()>& act) { return error_of<DataError>(act).exit_code(); };
  for (const auto& each : {data, map(data, [](Batch sample, std::uint64_t) { return sample; })}) {
    EXPECT_EQ(code_of([&] { each->get(Ids{1, 2}, {}); }), ExitCode::io);
    DataLoader loader(each, plan_of(4, 2, 1), world);
    EXPECT_EQ(code_of([&] { loader.next(); }), ExitCode::io);
  }
  const auto fails = [](Batch) -> Batch { throw Error("memory ran out", {}, ExitCode::out_of_memory); };
  const auto samples = map_batches(tensor_dataset(at::ones({8, 2})), fails);
  EXPECT_EQ(code_of([&] { samples->get(Ids{1, 2}, {}); }), ExitCode::out_of_memory);
}

TEST(DataLoader, ReportsAnErrorOfADiskThatDoesNotRepeat) {
  World world = cpu();
  for (const int most_bad : {0, 2}) {
    bool failed = false;
    LoaderPlan plan = in_order(plan_of(20, 10, 0));
    plan.data.max_bad_samples = most_bad;
    DataLoader loader(std::make_shared<Scripted>([&failed](std::int64_t) {
                        if (!std::exchange(failed, true)) {
                          throw IoError("shard 3: Stale file handle");
                        }
                      }),
                      plan, world);
    EXPECT_EQ(error_of<DataError>([&] { loader.next(); }).exit_code(), ExitCode::io);
  }
}

TEST(DataLoader, RefusesABatchOfAnotherLength) {
  class Doubled final : public Dataset {
   public:
    std::int64_t size() const override { return 20; }
    Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
      return {.input = at::zeros({2 * std::ssize(ids)}), .samples = 2 * std::ssize(ids)};
    }
  };
  World world = cpu();
  DataLoader loader(std::make_shared<Doubled>(), plan_of(20, 10, 2), world);
  EXPECT_THAT(message_of([&] { loader.next(); }),
              HasSubstr("the data set was asked for 10 samples and returned 20 samples with 10 ids"));
}

TEST(DataLoader, RefusesTensorsWithOtherRows) {
  class Returns final : public Dataset {
   public:
    explicit Returns(Batch batch) : batch_(std::move(batch)) {}
    std::int64_t size() const override { return 20; }
    Batch get(std::span<const std::int64_t>, const SampleSeed&) const override { return batch_; }

   private:
    Batch batch_;
  };
  World world = cpu();
  const auto message = [&](Batch batch) {
    DataLoader loader(std::make_shared<Returns>(std::move(batch)), plan_of(20, 10, 0), world);
    return message_of([&] { loader.next(); });
  };
  const at::Tensor ten = at::zeros({10, 2});
  EXPECT_THAT(message({.input = at::zeros({20, 2}), .target = ten}),
              HasSubstr("the data set was asked for 10 samples and returned input of shape [20, 2], expected 10 rows"));
  EXPECT_THAT(message({.input = ten, .target = at::zeros({11})}), HasSubstr("returned target of shape [11]"));
  EXPECT_THAT(message({.input = ten, .target = at::zeros({})}), HasSubstr("returned target of shape []"));
  EXPECT_THAT(message({.input = ten, .weight = at::zeros({1})}), HasSubstr("returned weight of shape [1]"));
  EXPECT_EQ(message({.input = ten, .target = ten, .fields = {{"classes", at::zeros({3})}}}), "no error");
  EXPECT_EQ(message({.input = at::zeros({37, 2}), .samples = 10}), "no error") << "samples of several rows each";
}

TEST(DataLoader, RefusesTheOrderOfAnotherDataSet) {
  World world = cpu();
  const std::vector<double> weights(19, 1.0);
  for (const auto& order : {weighted_order(weights), weighted_order(weights, {.replacement = false}),
                            length_bucketed_order(std::vector<std::int64_t>(19, 1))}) {
    const auto error = error_of<DataError>([&] { DataLoader(seeded_samples(20), plan_of(10, 5, 0), world, order); });
    EXPECT_STREQ(error.what(),
                 "data loader: found an order of 19 samples, expected one of 20, the size of the data set");
    DataLoader(seeded_samples(19), plan_of(10, 5, 0), world, order);
  }
}

TEST(DataLoader, ReplacesBadSamplesUpToTheLimit) {
  World world = cpu();
  const auto bad = [](std::int64_t id, std::uint64_t) -> Batch {
    if (id == 3) {
      throw 42;  // an exception of any type
    }
    if (id == 7 || id == 19) {
      throw std::runtime_error("not an image");
    }
    return {.input = at::scalar_tensor(id, at::kLong)};
  };
  for (const int workers : {0, 3}) {
    LoaderPlan plan = in_order(plan_of(10, 5, workers));
    plan.data.max_bad_samples = 3;
    DataLoader loader(sample_dataset(20, bad), plan, world);
    for (int epoch = 0; epoch < 2; ++epoch) {  // the same samples again are no further ones
      const StepBatches first = *loader.next();
      EXPECT_THAT(first.micro[0].ids, ElementsAre(0, 1, 2, 4, 4));
      EXPECT_TRUE(at::equal(first.micro[0].input, at::tensor(first.micro[0].ids)));
      EXPECT_THAT(first.micro[0].replaced, ElementsAre(3));
      EXPECT_THAT(first.micro[0].bad_ids, ElementsAre(3));
      EXPECT_THAT(first.micro[1].ids, ElementsAre(5, 6, 8, 8, 9));
      EXPECT_THAT(first.micro[1].replaced, ElementsAre(2));
      EXPECT_THAT(first.micro[1].bad_ids, ElementsAre(7));
      EXPECT_EQ(first.global_samples, 10);
      EXPECT_THAT(loader.next()->micro[1].ids, ElementsAre(15, 16, 17, 18, 0));
    }
    plan.data.max_bad_samples = 2;
    plan.data.workers = 0;  // several threads find them in any order
    DataLoader fewer(sample_dataset(20, bad), plan, world);
    fewer.next();
    try {
      fewer.next();
      ADD_FAILURE() << "accepted";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(),
                   "sample 19: std::runtime_error: not an image; 2 other bad samples were replaced before, and "
                   "data.max_bad_samples is 2");
      EXPECT_EQ(error.hint(), "the others: 3, 7");
    }
  }
}

// A batch that cannot be stacked has no bad sample.
TEST(DataLoader, DoesNotBlameSamplesForABatch) {
  World world = cpu();
  LoaderPlan plan = in_order(plan_of(10, 5, 0));
  plan.data.max_bad_samples = 3;
  DataLoader loader(
      sample_dataset(20, [](std::int64_t id, std::uint64_t) { return Batch{.input = at::ones({1 + id})}; }), plan,
      world);
  EXPECT_THROW(loader.next(), DataError);
}

TEST(DataLoader, SupportsEpochsOfAFixedLength) {
  World world = cpu();
  for (const std::int64_t steps : {3, 6, 8, 13}) {  // a data set has 6
    LoaderPlan plan = plan_of(10, 3, 1);
    plan.data.steps_per_epoch = steps;
    DataLoader loader(seeded_samples(57), plan, world);
    DataLoader whole(seeded_samples(57), plan_of(10, 3, 0), world);
    EXPECT_EQ(loader.steps_per_epoch(), steps);
    std::vector<std::int64_t> first_passes;
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      whole.seek({.epoch = epoch});
      Ids seen;
      for (std::int64_t step = 0; step < steps; ++step) {
        const StepBatches given = *loader.next();
        EXPECT_EQ(given.epoch, epoch);
        EXPECT_EQ(given.ends_epoch, step + 1 == steps);
        EXPECT_EQ(given.global_samples, step % 6 == 5 ? 7 : 10);
        if (step < 6) {
          EXPECT_EQ(given.micro[0].ids, whole.next()->micro[0].ids) << "the first pass is the epoch's usual one";
        }
        if (step / 6 == 1 && step % 6 == 0) {
          first_passes.insert(first_passes.end(), given.micro[0].ids.begin(), given.micro[0].ids.end());
        }
        for (const Batch& batch : given.micro) {
          seen.insert(seen.end(), batch.ids.begin(), batch.ids.end());
        }
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(std::unique(seen.begin(), seen.end()) - seen.begin(), steps < 6 ? steps * 10 : 57);
    }
    EXPECT_EQ(loader.position().epoch, 3);
    EXPECT_EQ(loader.position().consumed, 0);
  }
}

TEST(DataLoader, PreparesNoMoreStepsThanPrefetchSays) {
  constexpr int kPrefetch = 3;
  constexpr int kMicroBatches = 2;
  std::mutex mutex;
  std::condition_variable changed;
  int gets = 0;
  int asked = 0;       // steps that next() was called for
  int most_ahead = 0;  // micro-batches begun beyond those
  const auto data = std::make_shared<Scripted>([&](std::int64_t) {
    const std::lock_guard lock(mutex);
    most_ahead = std::max(most_ahead, ++gets - asked * kMicroBatches);
    changed.notify_all();
  });
  World world = cpu();
  DataLoader loader(data, plan_of(10, 5, 4, kPrefetch), world);
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(gets, 0) << "nothing is prepared before the first step is asked for";
  }
  for (int step = 1; step <= 30; ++step) {
    {
      const std::lock_guard lock(mutex);
      asked = step;
    }
    loader.next();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return gets >= (step + kPrefetch) * kMicroBatches; });  // it does work ahead
  }
  EXPECT_EQ(most_ahead, kPrefetch * kMicroBatches);
}

TEST(DataLoader, EndsWhileWorkersAreBusy) {
  World world = cpu();
  std::latch open(1);
  std::latch busy(2);
  std::thread opener;
  {
    const auto data = std::make_shared<Scripted>([&](std::int64_t first_id) {
      if (first_id == 10 || first_id == 20) {  // the second and third step
        busy.count_down();
        open.wait();
      }
    });
    DataLoader loader(data, in_order(plan_of(10, 10, 2)), world);
    loader.next();
    busy.wait();
    opener = std::thread([&] { open.count_down(); });
  }
  EXPECT_TRUE(open.try_wait()) << "the loader ended after the batches in hand";
  opener.join();
}

TEST(DataLoader, EndsWithAPendingError) {
  World world = cpu();
  std::atomic_flag thrown;  // no latch: the loader asks a second time, to find the bad sample
  const auto data = std::make_shared<Scripted>([&](std::int64_t first_id) {
    if (first_id == 10) {
      thrown.test_and_set();
      thrown.notify_all();
      throw std::runtime_error("late");
    }
  });
  DataLoader loader(data, in_order(plan_of(10, 10, 1)), world);
  loader.next();
  thrown.wait(false);
}

TEST(DataLoader, MovesWithItsWorkers) {
  World world = cpu();
  std::optional<DataLoader> first(std::in_place, seeded_samples(57), plan_of(10, 3, 2), world);
  DataLoader reference(seeded_samples(57), plan_of(10, 3, 0), world);
  EXPECT_EQ(difference(take(*first, 2), take(reference, 2)), "");
  DataLoader second = std::move(*first);
  first.reset();
  EXPECT_EQ(difference(take(second, 5), take(reference, 5)), "");
}

TEST(DataLoader, RejectsInvalidPlans) {
  World world = cpu();
  EXPECT_THROW(DataLoader(std::shared_ptr<const Dataset>(), plan_of(10, 3, 0), world), DataError);
  EXPECT_THROW(DataLoader(seeded_samples(0), plan_of(10, 3, 0), world), DataError);
  const auto error =
      error_of<ConfigError>([&] { const DataLoader loader(seeded_samples(5), plan_of(0, 0, -1, -2), world); });
  EXPECT_EQ(error.problems().size(), 4U);
  EXPECT_EQ(error.problems().at(2).what, "data.workers: found -1, expected 0 or more");
}

TEST(DataLoader, CountsStepsWithoutData) {
  World world = cpu();
  DataLoader loader = DataLoader::none(2, world);
  EXPECT_EQ(loader.steps_per_epoch(), 2);
  std::vector<bool> ends;
  Ids epochs;
  for (int step = 0; step < 5; ++step) {
    const StepBatches& batches = *loader.next();
    ASSERT_EQ(batches.micro.size(), 1U);
    EXPECT_EQ(batches.micro[0].samples, 1);
    EXPECT_FALSE(batches.micro[0].input.defined());
    EXPECT_EQ(batches.local_samples, 1);
    EXPECT_EQ(batches.global_samples, 1);
    ends.push_back(batches.ends_epoch);
    epochs.push_back(batches.epoch);
  }
  EXPECT_THAT(ends, ElementsAre(false, true, false, true, false));
  EXPECT_THAT(epochs, ElementsAre(0, 0, 1, 1, 2));
  EXPECT_EQ(loader.position(), (LoaderPosition{2, 1, 2}));
  loader.seek({.epoch = 7, .consumed = 2, .dataset_size = 2});
  EXPECT_EQ(loader.position(), (LoaderPosition{8, 0, 2}));
  EXPECT_THROW(DataLoader::none(0, world), DataError);
}

TEST(DataLoader, WithoutDataChangesItsStepsAtTheBeginningOfAnEpoch) {
  World world = cpu();
  DataLoader before = DataLoader::none(2, world);
  before.next();
  DataLoader after = DataLoader::none(3, world);
  EXPECT_THAT(message_of<CheckpointError>([&] { after.seek(before.position()); }),
              StartsWith("checkpoint position in the middle of an epoch: DataLoader::none has 3 steps per epoch, and "
                         "that of the checkpoint had 2"));
  before.next();
  after.seek(before.position());
  EXPECT_EQ(after.position(), (LoaderPosition{1, 0, 3}));
  EXPECT_THROW(after.seek({.dataset_size = 2, .global_batch = 4}), CheckpointError) << "of a data set";
}

}  // namespace
}  // namespace lockstep
