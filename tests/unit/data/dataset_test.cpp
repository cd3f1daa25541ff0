#include <any>
#include <exception>
#include <set>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using Ids = std::vector<std::int64_t>;

// Computed by another program: three rounds of splitmix64.
TEST(SampleSeed, IsFrozen) {
  struct Case {
    std::uint64_t seed;
    std::int64_t epoch;
    std::int64_t sample;
    std::uint64_t value;
  };
  for (const auto& [seed, epoch, sample, value] : {
           Case{0, 0, 0, 0x238275bc38fcbe91U},
           Case{42, 0, 0, 0x6310bf04d8207f46U},
           Case{42, 0, 1, 0xb682ee25ce24109eU},
           Case{42, 1, 0, 0x93be8420bb55b94cU},
           Case{42, 3, 1'000'000'007, 0x51f3f241ed55ef36U},
           Case{0xffffffffffffffffU, 1'000'000, 9'000'000'000'000'000'000, 0x5bc4bb46ef8682f0U},
       }) {
    EXPECT_EQ((SampleSeed{seed, epoch}(sample)), value)
        << "seed " << seed << " epoch " << epoch << " sample " << sample;
  }
}

TEST(SampleSeed, DiffersBySeedEpochAndSample) {
  std::set<std::uint64_t> values;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::int64_t epoch = 0; epoch < 10; ++epoch) {
      for (std::int64_t sample = 0; sample < 10; ++sample) {
        values.insert(SampleSeed{seed, epoch}(sample));
      }
    }
  }
  EXPECT_EQ(values.size(), 1000U);
}

TEST(TensorDataset, PicksRowsInOrder) {
  const at::Tensor input = at::arange(60).reshape({10, 2, 3});
  const at::Tensor target = at::arange(10).to(at::kByte);
  const struct {
    const char* name;
    at::Tensor input;
  } cases[] = {
      {"contiguous", input.clone()},
      {"transposed", input.transpose(1, 2).contiguous().transpose(1, 2)},
      {"every second column", input.repeat_interleave(2, 2).slice(2, 0, 6, 2)},
      {"a slice of a larger tensor", at::cat({input - 1, input}).slice(0, 10)},
      {"half precision", input.to(at::kHalf)},
  };
  for (const auto& [name, rows] : cases) {
    const Batch batch = tensor_dataset(rows, target)->get(Ids{7, 0, 7, 9}, {});
    const at::Tensor index = at::tensor({7, 0, 7, 9}, at::kLong);
    for (const std::int64_t i : {0, 1, 2, 3}) {
      const std::int64_t id = index[i].item<std::int64_t>();
      EXPECT_TRUE(at::equal(batch.input[i], rows[id])) << name;
      EXPECT_EQ(batch.target[i].item<std::int64_t>(), id) << name;
    }
  }
}

TEST(TensorDataset, MayHaveWeightsAndFields) {
  const Batch tensors{.input = at::arange(12).view({4, 3}),
                      .target = at::arange(4),
                      .fields = {{"mask", at::arange(8).view({4, 2}).gt(3)}, {"meta.length", at::arange(4) * 10}},
                      .weight = at::arange(4, at::kDouble)};
  const auto data = tensor_dataset(tensors);
  const Ids ids{3, 0};
  const at::Tensor rows = at::tensor(ids);
  const Batch batch = data->get(ids, {});
  EXPECT_TRUE(at::equal(batch.input, tensors.input.index_select(0, rows)));
  EXPECT_TRUE(at::equal(batch.target, rows));
  EXPECT_TRUE(at::equal(batch.weight, rows.to(at::kDouble)));
  EXPECT_TRUE(at::equal(batch["mask"], tensors["mask"].index_select(0, rows)));
  EXPECT_TRUE(at::equal(batch["meta.length"], rows * 10));
  EXPECT_THAT(data->fingerprint(), testing::HasSubstr(", fields.mask [4, 2] Bool "));
  EXPECT_EQ(tensor_dataset({.input = tensors.input, .target = tensors.target})->fingerprint(),
            tensor_dataset(tensors.input, tensors.target)->fingerprint());
}

TEST(TensorDataset, MayHaveNoTargetAndEmptyRows) {
  EXPECT_FALSE(tensor_dataset(at::ones({3}))->get(Ids{2}, {}).target.defined());
  const Batch empty_rows = tensor_dataset(at::ones({3, 0}))->get(Ids{2, 1}, {});
  EXPECT_THAT(empty_rows.input.sizes(), ElementsAre(2, 0));
}

TEST(TensorDataset, GivesBatchesOfItsOwnMemoryWithoutAGraph) {
  const at::Tensor input = at::ones({4, 2}).requires_grad_();
  const Batch batch = tensor_dataset(input)->get(Ids{0, 1, 2, 3}, {});
  EXPECT_NE(batch.input.data_ptr(), input.data_ptr());
  EXPECT_FALSE(batch.input.requires_grad());
}

TEST(TensorDataset, RejectsInvalidTensors) {
  const struct {
    std::function<void()> act;
    const char* message;
  } cases[] = {
      {[] { tensor_dataset(at::Tensor()); },
       "tensor data set: input is undefined, expected a tensor of shape [N, ...]"},
      {[] { tensor_dataset(at::ones({})); }, "tensor data set: input has shape [], expected [N, ...]"},
      {[] { tensor_dataset(at::ones({3}), at::ones({})); }, "tensor data set: target has shape [], expected [N, ...]"},
      {[] {
         tensor_dataset(at::ones({100, 2}), at::ones({99}));
       },
       "tensor data set: found 99 rows of target, expected 100, one for each row of input"},
      {[] {
         tensor_dataset({.input = at::ones({4}), .fields = {{"mask", at::ones({3})}}});
       },
       "tensor data set: found 3 rows of fields.mask, expected 4, one for each row of input"},
      {[] {
         tensor_dataset({.input = at::ones({4}), .fields = {{"mask", at::Tensor()}}});
       },
       "tensor data set: fields.mask is undefined, expected a tensor of shape [N, ...]"},
      {[] { tensor_dataset({.input = at::ones({4}), .extra = 3}); },
       "tensor data set: found `extra`, expected tensors only"},
      {[] { tensor_dataset({.target = at::ones({4})}); },
       "tensor data set: input is undefined, expected a tensor of "
       "shape [N, ...]"},
      {[] {
         tensor_dataset(at::ones({3}))->get(Ids{0, 3}, {});
       },
       "tensor data set: found sample id 3, expected 0 to 2"},
      {[] { tensor_dataset(at::ones({3}))->get(Ids{-1}, {}); }, "tensor data set: found sample id -1, expected 0 to 2"},
  };
  for (const auto& [act, message] : cases) {
    EXPECT_THAT(message_of<DataError>(act), StartsWith(message));
  }
}

TEST(SampleDataset, StacksEveryTensorAndCollectsTheRest) {
  const auto data = sample_dataset(100, [](std::int64_t id, std::uint64_t seed) {
    return Batch{.input = at::full({2}, id),
                 .target = at::scalar_tensor(id),
                 .fields = {{"seed", at::scalar_tensor(static_cast<std::int64_t>(seed >> 1), at::kLong)}},
                 .weight = at::scalar_tensor(0.5),
                 .extra = std::to_string(id)};
  });
  const SampleSeed seed{.seed = 7, .epoch = 3};
  const Batch batch = data->get(Ids{31, 4}, seed);
  EXPECT_THAT(batch.input.sizes(), ElementsAre(2, 2));
  EXPECT_EQ(batch.input[0][1].item<std::int64_t>(), 31);
  EXPECT_THAT(batch.target.sizes(), ElementsAre(2));
  EXPECT_THAT(batch.weight.sizes(), ElementsAre(2));
  EXPECT_EQ(batch["seed"][1].item<std::int64_t>(), static_cast<std::int64_t>(seed(4) >> 1));
  const auto extras = std::any_cast<std::vector<std::any>>(batch.extra);
  EXPECT_EQ(std::any_cast<std::string>(extras.at(1)), "4");
}

TEST(SampleDataset, NamesTheSampleThatThrew) {
  const auto throwing = [](const auto& act) {
    return sample_dataset(100, [act](std::int64_t id, std::uint64_t) {
      if (id == 31) {
        act();
      }
      return Batch{.input = at::ones({2})};
    });
  };
  EXPECT_EQ(message_of<DataError>([&] {
              throwing([] { throw std::runtime_error("bad JPEG"); })->get(Ids{3, 31}, {});
            }),
            "sample 31: std::runtime_error: bad JPEG");
  EXPECT_EQ(message_of<DataError>([&] { throwing([] { throw IoError("a.png: no such file"); })->get(Ids{31}, {}); }),
            "sample 31: a.png: no such file");
  EXPECT_EQ(message_of<DataError>([&] { throwing([] { throw 42; })->get(Ids{31}, {}); }),
            "sample 31: unknown exception of type int");
  const auto nested = [] {
    try {
      throw std::runtime_error("the disk is away");
    } catch (...) {
      std::throw_with_nested(std::runtime_error("bad JPEG"));
    }
  };
  EXPECT_EQ(message_of<DataError>([&] { throwing(nested)->get(Ids{31}, {}); }),
            "sample 31: std::runtime_error: bad JPEG: caused by std::runtime_error: the disk is away");
  const std::string torch_message =
      message_of<DataError>([&] { throwing([] { at::ones({2}).view({3}); })->get(Ids{31}, {}); });
  EXPECT_THAT(torch_message, HasSubstr("sample 31: c10::Error: shape '[3]' is invalid"));
  EXPECT_THAT(torch_message, testing::Not(HasSubstr("frame #")));
  EXPECT_EQ(message_of<DataError>([&] {
              throwing([] { throw std::runtime_error("bad JPEG"); })->get(Ids{3, 30}, {});
            }),
            "no error");
}

TEST(SampleDataset, NamesSamplesThatDoNotStack) {
  const Batch first{.input = at::ones({2, 3}), .fields = {{"mask", at::ones({4})}}};
  const auto other = [&](const auto& change) {
    Batch second = first;
    change(second);
    return message_of<DataError>([&] {
      sample_dataset(10, [&](std::int64_t id, std::uint64_t) { return id == 5 ? second : first; })->get(Ids{8, 5}, {});
    });
  };
  EXPECT_EQ(other([](Batch&) {}), "no error");
  EXPECT_THAT(other([](Batch& b) {
                b.input = at::ones({2, 4});
              }),
              StartsWith("sample 5: found input of shape [2, 4], expected [2, 3] as in sample 8"));
  EXPECT_THAT(other([](Batch& b) {
                b.input = at::ones({2, 3}, at::kDouble);
              }),
              StartsWith("sample 5: found input of type Double, expected Float as in sample 8"));
  EXPECT_THAT(other([](Batch& b) { b.target = at::ones({}); }),
              StartsWith("sample 5: found a tensor target, expected none as in sample 8"));
  EXPECT_THAT(other([](Batch& b) { b.fields[0].second = at::Tensor(); }),
              StartsWith("sample 5: found no tensor mask, expected one as in sample 8"));
  EXPECT_THAT(other([](Batch& b) { b.fields[0].first = "maks"; }),
              StartsWith("sample 5: field 'maks' is not at the same place in sample 8"));
  EXPECT_THAT(other([](Batch& b) { b.fields.emplace_back("more", at::ones({1})); }),
              StartsWith("sample 5: field 'more' is not at the same place in sample 8"));
  EXPECT_THAT(other([](Batch& b) { b.fields.clear(); }), StartsWith("sample 5: no field 'mask', but sample 8 has it"));
}

TEST(SampleDataset, HasItsNameInTheFingerprint) {
  const auto get = [](std::int64_t, std::uint64_t) { return Batch{}; };
  EXPECT_EQ(sample_dataset(3, get)->fingerprint(), "3 samples");
  EXPECT_EQ(sample_dataset(3, get, "tiles 2")->fingerprint(), "3 samples of tiles 2");
}

TEST(TensorDataset, HasTheValuesOfViewsThatOnlyMarkTheirMemory) {
  const at::Tensor conjugate = at::complex(at::arange(4, at::kFloat), at::ones({4})).conj();
  EXPECT_TRUE(at::equal(tensor_dataset(conjugate)->get(Ids{0, 1, 2, 3}, {}).input, conjugate.resolve_conj()));
  const at::Tensor negative = at::_neg_view(at::arange(4, at::kFloat));
  EXPECT_TRUE(at::equal(tensor_dataset(negative)->get(Ids{0, 1, 2, 3}, {}).input, negative.resolve_neg()));
}

TEST(SampleDataset, RejectsAnEmptyFunction) {
  EXPECT_EQ(message_of<DataError>([] { sample_dataset(-1, [](std::int64_t, std::uint64_t) { return Batch{}; }); }),
            "sample data set: size is -1, expected 0 or more");
  EXPECT_EQ(message_of<DataError>([] { sample_dataset(3, {}); }), "sample data set: the function is missing");
}

TEST(Subset, RenumbersAndKeepsTheSeedOfTheSample) {
  const auto whole = sample_dataset(10, [](std::int64_t id, std::uint64_t seed) {
    return Batch{.input = at::tensor({id, static_cast<std::int64_t>(seed >> 1)})};
  });
  const auto part = subset(whole, {9, 2, 5});
  const SampleSeed seed{.seed = 1};
  EXPECT_EQ(part->size(), 3);
  EXPECT_TRUE(at::equal(part->get(Ids{2, 0}, seed).input, whole->get(Ids{5, 9}, seed).input));
}

TEST(Subset, RejectsInvalidIds) {
  const auto whole = tensor_dataset(at::ones({10}));
  EXPECT_EQ(message_of<DataError>([&] {
              static_cast<void>(subset(whole, {9, 10}));
            }),
            "subset: found sample id 10, expected 0 to 9");
  EXPECT_EQ(message_of<DataError>([&] { static_cast<void>(subset(subset(whole, {}), {0})); }),
            "subset: found sample id 0, and the data set is empty");
  EXPECT_EQ(message_of<DataError>([&] {
              subset(whole, {9, 2})->get(Ids{2}, {});
            }),
            "subset: found sample id 2, expected 0 to 1");
  EXPECT_THAT(message_of<DataError>([] { static_cast<void>(subset(nullptr, {})); }),
              HasSubstr("subset: the data set is null"));
}

}  // namespace
}  // namespace lockstep
