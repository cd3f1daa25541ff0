#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/split.h>
#include <lockstep/world/world.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

Ids ids_of(const Dataset& data) {
  Ids every(static_cast<std::size_t>(data.size()));
  std::iota(every.begin(), every.end(), 0);
  const at::Tensor rows = data.get(every, {}).input;
  return {rows.const_data_ptr<std::int64_t>(), rows.const_data_ptr<std::int64_t>() + rows.numel()};
}

TEST(Split, DividesTheSamplesAndKeepsTheResult) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  const auto file = dir.path() / "run" / "split.json";
  const std::shared_ptr<Dataset> data = tensor_dataset(at::arange(100));
  const Split first = split_dataset(data, file, world, {.fraction = 0.2});
  const Ids validation = ids_of(*first.validation);
  EXPECT_EQ(validation.size(), 20U);
  Ids all = ids_of(*first.train);
  all.insert(all.end(), validation.begin(), validation.end());
  EXPECT_EQ(std::set<std::int64_t>(all.begin(), all.end()).size(), 100U);
  EXPECT_EQ(first.validation_ids, validation) << "the values are the numbers of the samples";
  EXPECT_EQ(first.train_ids, ids_of(*first.train));
  const Split again = split_dataset(data, file, world, {.count = 50, .seed = 1});
  EXPECT_EQ(ids_of(*again.validation), validation) << "the file is the split";
  EXPECT_EQ(ids_of(*split_dataset(data, dir.path() / "same", world, {.count = 20}).validation), validation);
  EXPECT_NE(ids_of(*split_dataset(data, dir.path() / "other", world, {.count = 20, .seed = 1}).validation), validation)
      << "the control";
}

TEST(Split, IsTheSameOnAllRanksAndNeedsItsFileOnTheFirstOnly) {
  const TempDir dir;
  thread_world(3, [&](World& world) {
    const auto file = dir.path() / std::to_string(world.rank()) / "split.json";
    const std::shared_ptr<Dataset> data = tensor_dataset(at::arange(50));
    const Split split = split_dataset(data, file, world);
    const Ids mine = ids_of(*split.validation);
    EXPECT_EQ(mine.size(), 5U);
    for (const std::string& theirs : world.gather(std::string(reinterpret_cast<const char*>(mine.data()), 40))) {
      EXPECT_EQ(theirs, std::string(reinterpret_cast<const char*>(mine.data()), 40));
    }
    EXPECT_EQ(std::filesystem::exists(file), world.is_main());
  });
}

TEST(Split, RejectsInvalidSplitsOnAllRanks) {
  const TempDir dir;
  const auto file = dir.path() / "split.json";
  World world = World::single(c10::kCPU);
  const auto message = [&](std::int64_t size, SplitOptions options = {}) {
    return message_of<DataError>([&] { split_dataset(tensor_dataset(at::arange(size)), file, world, options); });
  };
  EXPECT_THAT(message(4), HasSubstr("0 of 4 samples are for validation, expected 1 to 3"));
  EXPECT_THAT(message(4, {.count = 4}), HasSubstr("4 of 4 samples"));
  EXPECT_THAT(message(4, {.fraction = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("SplitOptions::fraction is nan, expected a part between 0 and 1"));
  EXPECT_THAT(message(4, {.fraction = 1e300}), HasSubstr("expected a part between 0 and 1"));
  EXPECT_EQ(message(1),
            "split: the data set has 1 sample, expected 2 or more | one part of the data is for training, the other "
            "for validation");
  EXPECT_THAT(message(0), HasSubstr("split: the data set has 0 samples, expected 2 or more"));
  EXPECT_EQ(message(40), "no error");
  EXPECT_THAT(message(41), HasSubstr("is the split of other data: found '40 samples"));
  std::ofstream(file) << "{}";
  EXPECT_THAT(message(40), HasSubstr("| delete the file to draw a new split"));
  EXPECT_THROW(thread_world(2,
                            [&](World& ranks) {
                              EXPECT_THROW(split_dataset(tensor_dataset(at::arange(40)), file, ranks), Error);
                              throw DataError("seen");
                            }),
               DataError);
}

}  // namespace
}  // namespace lockstep
