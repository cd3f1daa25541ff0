#include <any>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <lockstep/base/error.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/transforms.h>
#include <lockstep/world/world.h>

#include "support/message_of.h"
#include "support/tensors.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::StartsWith;
using Ids = std::vector<std::int64_t>;

/// Images [1, 8, 8] that differ in every pixel; the target is the number of the image.
std::shared_ptr<Dataset> images(std::int64_t size) {
  return tensor_dataset(at::arange(size * 64, at::kFloat).view({size, 1, 8, 8}), at::arange(size));
}

/// The examples of docs/data.md.
Batch augmented(Batch sample, std::uint64_t seed) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const at::Tensor image = at::constant_pad_nd(sample.input, {2, 2, 2, 2});
  const at::Tensor corner = at::randint(5, {2}, random, at::kLong);
  sample.input = image.narrow(1, corner[0].item<std::int64_t>(), 8).narrow(2, corner[1].item<std::int64_t>(), 8);
  if (at::rand({1}, random).item<float>() < 0.5F) {
    sample.input = sample.input.flip(2);
  }
  return sample;
}

/// Draws from LibTorch's shared generator: the mistake that the controls must see.
Batch augmented_without_seed(Batch sample, std::uint64_t) {
  sample.input = sample.input + at::rand({1});
  return sample;
}

using Transform = Batch (*)(Batch, std::uint64_t);

/// The inputs of three steps of 9 samples in the order of the data, of all ranks together.
std::vector<at::Tensor> steps_of(Transform f, int ranks, int workers, std::int64_t batch_size) {
  const LoaderPlan plan{.batch = {.batch_size = batch_size, .global_batch_size = 9},
                        .data = {.workers = workers, .prefetch = 2},
                        .seed = 5};
  std::vector<std::vector<std::vector<at::Tensor>>> found(
      3, std::vector<std::vector<at::Tensor>>(static_cast<std::size_t>(ranks)));
  thread_world(ranks, [&](World& world) {
    DataLoader loader(map(images(40), f), plan, world);
    for (auto& step : found) {
      for (const Batch& batch : loader.next()->micro) {
        if (batch.samples > 0) {
          step[static_cast<std::size_t>(world.rank())].push_back(batch.input);
        }
      }
    }
  });
  std::vector<at::Tensor> steps;
  for (const auto& step : found) {
    std::vector<at::Tensor> all;
    for (const auto& of_rank : step) {
      all.insert(all.end(), of_rank.begin(), of_rank.end());
    }
    steps.push_back(at::cat(all));
  }
  return steps;
}

TEST(Map, AugmentsAlikeWithAnyNumberOfWorkersAndRanks) {
  const auto expected = steps_of(augmented, 1, 0, 9);
  for (const int ranks : {1, 2}) {
    for (const int workers : {0, 3}) {
      for (const std::int64_t batch_size : {9, 2}) {
        EXPECT_TRUE(are_equal(steps_of(augmented, ranks, workers, batch_size), expected))
            << ranks << " ranks, " << workers << " workers, batches of " << batch_size;
      }
    }
  }
  EXPECT_FALSE(are_equal(steps_of(augmented_without_seed, 1, 0, 9), steps_of(augmented_without_seed, 1, 0, 9)));
}

TEST(Map, GivesTheSeedOfTheSampleAndKeepsTheRest) {
  const auto data = sample_dataset(10, [](std::int64_t id, std::uint64_t) {
    return Batch{.input = at::full({2}, id),
                 .fields = {{"mask", at::ones({3})}},
                 .weight = at::scalar_tensor(0.5 * static_cast<double>(id)),
                 .extra = "sample " + std::to_string(id)};
  });
  const SampleSeed seed{.seed = 7, .epoch = 3};
  std::vector<std::uint64_t> seeds;
  const auto mapped = map(data, [&](Batch sample, std::uint64_t of_sample) {
    seeds.push_back(of_sample);
    EXPECT_THAT(sample.input.sizes(), ElementsAre(2));
    EXPECT_EQ(sample.weight.dim(), 0);
    EXPECT_EQ(std::any_cast<std::string>(sample.extra),
              "sample " + std::to_string(sample.input[0].item<std::int64_t>()));
    sample.input = sample.input * 10;
    return sample;
  });
  const Batch batch = mapped->get(Ids{4, 9}, seed);
  EXPECT_THAT(seeds, ElementsAre(seed(4), seed(9)));
  EXPECT_TRUE(at::equal(batch.input, at::tensor({40, 40, 90, 90}).view({2, 2})));
  EXPECT_TRUE(at::equal(batch.weight, at::tensor({2.0, 4.5})));
  EXPECT_THAT(batch["mask"].sizes(), ElementsAre(2, 3));
  const auto extras = std::any_cast<std::vector<std::any>>(batch.extra);
  EXPECT_EQ(std::any_cast<std::string>(extras.at(1)), "sample 9");
  EXPECT_EQ(mapped->size(), 10);
  EXPECT_EQ(mapped->fingerprint(), data->fingerprint());
}

/// A data set that sets ids, as one that replaces samples itself.
class Renamed final : public Dataset {
 public:
  std::int64_t size() const override { return 5; }
  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    Batch batch{.input = at::ones({std::ssize(ids)}), .samples = std::ssize(ids)};
    for (const std::int64_t id : ids) {
      batch.ids.push_back(100 + id);
    }
    return batch;
  }
};

TEST(Map, HasItsNameInTheFingerprint) {
  const auto data = tensor_dataset(at::arange(4));
  const auto same = [](Batch sample, std::uint64_t) { return sample; };
  const auto same_batch = [](Batch batch) { return batch; };
  EXPECT_EQ(map(data, same)->fingerprint(), data->fingerprint());
  EXPECT_EQ(map(data, same, "crop, version 2")->fingerprint(), data->fingerprint() + " mapped by crop, version 2");
  EXPECT_EQ(map_batches(data, same_batch)->fingerprint(), data->fingerprint());
  EXPECT_EQ(map_batches(data, same_batch, "scale")->fingerprint(), data->fingerprint() + " mapped by scale");
}

TEST(Map, KeepsTheIdsOfTheDataSet) {
  const auto same = [](Batch sample, std::uint64_t) { return Batch{.input = sample.input}; };
  EXPECT_THAT(map(std::make_shared<Renamed>(), same)->get(Ids{3, 1}, {}).ids, ElementsAre(103, 101));
  const auto batches = map_batches(std::make_shared<Renamed>(), [](Batch b) { return Batch{.input = b.input}; });
  const Batch batch = batches->get(Ids{3, 1}, {});
  EXPECT_THAT(batch.ids, ElementsAre(103, 101));
  EXPECT_EQ(batch.samples, 2);
  EXPECT_TRUE(map(images(5), same)->get(Ids{3}, {}).ids.empty()) << "the loader sets them";
}

TEST(Map, HasOtherRandomNumbersThanTheMapBelow) {
  const auto draw = [](Batch sample, std::uint64_t seed) {
    sample.fields.emplace_back(sample.has("first") ? "second" : "first",
                               at::scalar_tensor(static_cast<std::int64_t>(seed >> 1), at::kLong));
    return sample;
  };
  const Batch batch = map(map(images(4), draw), draw)->get(Ids{0, 3}, {.seed = 9});
  EXPECT_TRUE(batch["first"].ne(batch["second"]).all().item<bool>());
  const Batch alone = map(images(4), draw)->get(Ids{0, 3}, {.seed = 9});
  EXPECT_TRUE(at::equal(batch["second"], alone["first"])) << "the outer one has the seed of the sample";
}

TEST(Map, TakesImagesOfDifferentSizes) {
  const auto data = sample_dataset(9, [](std::int64_t id, std::uint64_t) {
    return Batch{.input = at::full({3, 4 + id, 5 + id}, id)};
  });
  EXPECT_THROW(data->get(Ids{0, 1}, {}), DataError);
  const auto cropped = map(data, [](Batch sample, std::uint64_t) {
    sample.input = sample.input.narrow(1, 0, 4).narrow(2, 0, 4);
    return sample;
  });
  EXPECT_THAT(cropped->get(Ids{0, 1, 8}, {}).input.sizes(), ElementsAre(3, 3, 4, 4));
}

TEST(Map, NamesTheSamplesOfAnException) {
  const auto throws = [](const Batch& batch) {
    if (batch.input.max().item<float>() >= 5 * 64) {
      throw std::runtime_error("cannot crop");
    }
  };
  const auto per_sample = map(images(10), [&](Batch sample, std::uint64_t) {
    throws(sample);
    return sample;
  });
  EXPECT_EQ(message_of<DataError>([&] {
              per_sample->get(Ids{3, 5}, {});
            }),
            "sample 5: std::runtime_error: cannot crop");
  EXPECT_EQ(message_of([&] { per_sample->get(Ids{3, 4}, {}); }), "no error");
  const auto per_batch = map_batches(images(10), [&](Batch batch) {
    throws(batch);
    return batch;
  });
  EXPECT_EQ(message_of<DataError>([&] {
              per_batch->get(Ids{3, 5}, {});
            }),
            "samples 3, 5 (2 samples): std::runtime_error: cannot crop");
  EXPECT_EQ(message_of([&] { per_batch->get(Ids{3, 4}, {}); }), "no error");
  EXPECT_THAT(message_of<DataError>([&] {
                map(images(10), [](Batch sample, std::uint64_t) {
                  sample["label"];
                  return sample;
                })->get(Ids{2}, {});
              }),
              StartsWith("sample 2: batch: found no field 'label'"));
  EXPECT_EQ(message_of([] { static_cast<void>(map(nullptr, augmented)); }),
            "map: the data set is null | give it what a factory such as tensor_dataset() returns");
  EXPECT_EQ(message_of([] { static_cast<void>(map(images(1), nullptr)); }), "map: the function is missing");
  EXPECT_THAT(message_of([] { map_batches(nullptr, [](Batch b) { return b; }); }),
              StartsWith("map_batches: the data set is null"));
}

TEST(MapBatches, NormalisesAWholeBatch) {
  const auto data = map_batches(images(10), [](Batch batch) {
    batch.input = (batch.input - 100) / 50;
    return batch;
  });
  EXPECT_TRUE(at::allclose(data->get(Ids{7, 2}, {}).input, (images(10)->get(Ids{7, 2}, {}).input - 100) / 50));
  EXPECT_TRUE(at::equal(data->get(Ids{7, 2}, {}).target, at::tensor({7, 2}, at::kLong)));
}

TEST(Take, GivesTheFirstSamples) {
  EXPECT_EQ(take(images(10), 3)->size(), 3);
  EXPECT_EQ(take(images(10), 30)->size(), 10);
  EXPECT_EQ(take(images(10), 0)->size(), 0);
  EXPECT_TRUE(at::equal(take(images(10), 3)->get(Ids{2, 0}, {}).target, at::tensor({2, 0}, at::kLong)));
  EXPECT_NE(take(images(10), 3)->fingerprint(), take(images(11), 3)->fingerprint());
  EXPECT_EQ(message_of([] { static_cast<void>(take(images(10), -1)); }), "take: count is -1, expected 0 or more");
  EXPECT_THAT(message_of([] { static_cast<void>(take(nullptr, 1)); }), StartsWith("take: the data set is null"));
}

/// Samples that carry their number, their seed and more.
std::shared_ptr<Dataset> seeded(std::int64_t first, std::int64_t size) {
  return sample_dataset(size, [first](std::int64_t id, std::uint64_t seed) {
    return Batch{.input = at::full({2}, first + id),
                 .target = at::scalar_tensor(static_cast<std::int64_t>(seed >> 1), at::kLong),
                 .fields = {{"row", at::full({3}, first + id)}},
                 .extra = first + id};
  });
}

TEST(Concat, GivesTheSamplesOfAllPartsInTheOrderOfTheRequest) {
  const auto data = concat({seeded(0, 3), seeded(3, 0), seeded(3, 4), seeded(7, 2)});
  EXPECT_EQ(data->size(), 9);
  const Ids ids = {8, 0, 5, 3, 2, 7, 5};
  const Batch batch = data->get(ids, {.seed = 1});
  EXPECT_TRUE(at::equal(batch.input.select(1, 0), at::tensor(ids)));
  EXPECT_TRUE(at::equal(batch["row"].select(1, 2), at::tensor(ids)));
  const auto extras = std::any_cast<std::vector<std::any>>(batch.extra);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(std::any_cast<std::int64_t>(extras.at(i)), ids[i]);
    EXPECT_TRUE(at::equal(data->get(Ids{ids[i]}, {.seed = 1}).target[0], batch.target[static_cast<std::int64_t>(i)]))
        << "a batch of one part has the seeds of a batch of several";
  }
  EXPECT_EQ(message_of([&] { data->get(Ids{9}, {}); }), "concat: found sample id 9, expected 0 to 8");
  const auto renamed = concat({std::make_shared<Renamed>(), std::make_shared<Renamed>()});
  EXPECT_TRUE(renamed->get(Ids{7}, {}).ids.empty());
  EXPECT_TRUE(renamed->get(Ids{7, 0}, {}).ids.empty());
  EXPECT_TRUE(subset(std::make_shared<Renamed>(), {2, 0})->get(Ids{1, 0}, {}).ids.empty()) << "they are not its own";
}

struct CountsCopies {
  explicit CountsCopies(int* counter) : copies(counter) {}
  CountsCopies(const CountsCopies& other) : copies(other.copies) { ++*copies; }
  CountsCopies& operator=(const CountsCopies&) = delete;
  int* copies;
};

TEST(Concat, CopiesEachExtraSoManyTimesInEveryBatch) {
  int copies = 0;
  const auto part = sample_dataset(100, [&](std::int64_t, std::uint64_t) {
    return Batch{.input = at::ones({1}), .extra = std::make_any<CountsCopies>(&copies)};
  });
  const auto data = concat({part, part});
  const auto copies_of = [&](std::int64_t samples) {
    Ids ids;
    for (std::int64_t i = 0; i < samples; ++i) {
      ids.push_back(i % 2 == 0 ? i / 2 : 100 + i / 2);
    }
    copies = 0;
    data->get(ids, {});
    return copies;
  };
  EXPECT_EQ(copies_of(100), 10 * copies_of(10));
}

TEST(Concat, GivesEveryPartASeed) {
  const auto part = seeded(0, 4);
  const SampleSeed seed{.seed = 3, .epoch = 2};
  const Batch batch = concat({part, part, part})->get(Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, seed);
  EXPECT_EQ(std::get<0>(at::_unique(batch.target)).numel(), 12) << "copies of a sample have different seeds";
  EXPECT_TRUE(at::equal(batch.target.narrow(0, 0, 4), part->get(Ids{0, 1, 2, 3}, seed).target));
}

TEST(Concat, IdentifiesItsParts) {
  const auto a = tensor_dataset(at::ones({4}));
  const auto b = tensor_dataset(at::zeros({4}));
  EXPECT_EQ(concat({a, b})->fingerprint(), "8 samples of (" + a->fingerprint() + " + " + b->fingerprint() + ")");
  EXPECT_NE(concat({a, b})->fingerprint(), concat({b, a})->fingerprint());
}

TEST(Concat, RejectsPartsWithOtherTensors) {
  const auto mixed = [](const Batch& a, const Batch& b) {
    const auto part = [](const Batch& sample) {
      return sample_dataset(3, [sample](std::int64_t, std::uint64_t) { return sample; });
    };
    const auto data = concat({part(a), part(b)});
    data->get(Ids{4, 5}, {});  // one part alone is always allowed
    return message_of<DataError>([&] { data->get(Ids{0, 4}, {}); });
  };
  const Batch a{.input = at::ones({2})};
  EXPECT_EQ(mixed(a, a), "no error");
  EXPECT_THAT(mixed(a, {.input = at::ones({3})}),
              StartsWith("concat: sample 4: found input of shape [3], expected [2] as in sample 0 | the parts begin at "
                         "the samples 0, 3;"));
  EXPECT_THAT(mixed(a, {.input = at::ones({2}, at::kLong)}),
              StartsWith("concat: sample 4: found input of type Long, expected Float as in sample 0"));
  EXPECT_THAT(mixed(a, {.input = at::ones({2}), .fields = {{"mask", at::ones({1})}}}),
              StartsWith("concat: sample 4: field 'mask' is not at the same place in sample 0"));
  EXPECT_THAT(mixed({.input = at::ones({2}), .fields = {{"mask", at::ones({1})}}}, a),
              StartsWith("concat: sample 4: no field 'mask', but sample 0 has it"));
  EXPECT_EQ(message_of([] { concat({}); }), "concat: found no data set, expected one or more");
  EXPECT_THAT(message_of([] { concat({images(1), nullptr}); }), StartsWith("concat, part 1: the data set is null"));
}

}  // namespace
}  // namespace lockstep
