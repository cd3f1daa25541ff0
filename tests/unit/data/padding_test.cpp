#include <any>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/embedding.h>

#include <lockstep/base/error.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/padding.h>
#include <lockstep/data/transforms.h>
#include <lockstep/world/world.h>

#include "support/message_of.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::StartsWith;
using Ids = std::vector<std::int64_t>;

/// Sample i has i + 1 tokens i, i + 1, ..., and targets of twice the tokens.
Batch tokens(std::int64_t id) {
  const at::Tensor input = at::arange(id, 2 * id + 1);
  return {.input = input, .target = input * 2, .fields = {{"frames", input.to(at::kFloat).expand({2, id + 1})}}};
}

std::shared_ptr<Dataset> sentences(std::int64_t size) {
  return sample_dataset(size, [](std::int64_t id, std::uint64_t) { return tokens(id); });
}

at::Tensor rows(std::vector<std::vector<std::int64_t>> values) {
  std::vector<at::Tensor> all;
  for (const auto& row : values) {
    all.push_back(at::tensor(row));
  }
  return at::stack(all);
}

TEST(Padding, FillsUpToTheLongestSampleOfTheBatch) {
  const auto data = padded(sentences(9), {{.value = -1, .mask = "mask"},
                                          {.field = "target", .value = -100},
                                          {.field = "frames", .dimension = -1, .value = 0.5, .mask = "frames.mask"}});
  const Batch batch = data->get(Ids{1, 3, 0}, {});
  EXPECT_TRUE(at::equal(batch.input, rows({{1, 2, -1, -1}, {3, 4, 5, 6}, {0, -1, -1, -1}})));
  EXPECT_TRUE(at::equal(batch.target, rows({{2, 4, -100, -100}, {6, 8, 10, 12}, {0, -100, -100, -100}})));
  EXPECT_EQ(batch["mask"].scalar_type(), at::kBool);
  EXPECT_TRUE(at::equal(batch["mask"], batch.input.ge(0)));
  EXPECT_TRUE(at::equal(batch["frames.mask"], batch["mask"]));
  EXPECT_THAT(batch["frames"].sizes(), ElementsAre(3, 2, 4));
  EXPECT_EQ(batch["frames"].scalar_type(), at::kFloat);
  EXPECT_EQ(batch["frames"][0][1][1].item<float>(), 2);
  EXPECT_EQ(batch["frames"][0][1][2].item<float>(), 0.5F);
  EXPECT_EQ(batch.fields.size(), 3U) << "target has no mask";
  EXPECT_EQ(data->get(Ids{5}, {}).input.size(1), 6) << "nothing is added to a sample alone";
  EXPECT_EQ(data->fingerprint(), sentences(9)->fingerprint());
}

TEST(Padding, RoundsLengthsUpToAMultiple) {
  const auto data = padded(
      sentences(40), {{.multiple_of = 8, .mask = "mask"}, {.field = "target"}, {.field = "frames", .dimension = 1}});
  for (const auto& [longest, expected] : {std::pair{0, 8}, {6, 8}, {7, 8}, {8, 16}, {31, 32}}) {
    const Batch batch = data->get(Ids{longest, 0}, {});
    EXPECT_THAT(batch.input.sizes(), ElementsAre(2, expected)) << longest + 1 << " tokens";
    EXPECT_EQ(batch["mask"].sum().item<std::int64_t>(), longest + 1 + 1);
    EXPECT_EQ(batch.target.size(1), longest + 1);
  }
}

TEST(Padding, FillsSeveralDimensionsOfATensor) {
  const auto images = sample_dataset(4, [](std::int64_t id, std::uint64_t) {  // [2, id + 1, 5 - id]
    return Batch{.input = at::full({2, id + 1, 5 - id}, id + 1, at::kByte)};
  });
  const auto data = padded(images, {{.dimension = 1, .value = 9, .mask = "rows"},
                                    {.dimension = -1, .value = 9, .multiple_of = 4, .mask = "columns"}});
  const Ids ids{2, 0, 3};
  const Batch batch = data->get(ids, {});
  EXPECT_THAT(batch.input.sizes(), ElementsAre(3, 2, 4, 8));
  const at::Tensor mask =
      (batch["rows"].unsqueeze(2) & batch["columns"].unsqueeze(1)).unsqueeze(1).expand_as(batch.input);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    EXPECT_TRUE(at::equal(batch.input[row].masked_select(mask[row]), images->get(Ids{ids[i]}, {}).input.flatten()));
    EXPECT_TRUE(batch.input[row].masked_select(mask[row].logical_not()).eq(9).all().item<bool>());
  }
}

TEST(Padding, WorksOnWhatMapAndConcatGive) {
  const auto shorter = [](Batch sample, std::uint64_t seed) {
    sample.input = sample.input.narrow(
        0, 0, 1 + static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(sample.input.size(0))));
    return Batch{.input = sample.input, .extra = sample.input.size(0)};
  };
  const auto whole = concat({map(sentences(5), shorter), map(sentences(7), shorter)});
  const auto data = padded(whole, {{.mask = "mask"}});
  const Ids ids = {11, 4, 2, 9, 3};
  const Batch batch = data->get(ids, {.seed = 4});
  const auto lengths = std::any_cast<std::vector<std::any>>(batch.extra);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const at::Tensor alone = whole->get(Ids{ids[i]}, {.seed = 4}).input[0];
    EXPECT_EQ(std::any_cast<std::int64_t>(lengths.at(i)), alone.size(0));
    const auto row = static_cast<std::int64_t>(i);
    EXPECT_TRUE(at::equal(batch.input[row].masked_select(batch["mask"][row]), alone));
  }
}

TEST(Padding, WorksInStreams) {
  const auto stream = sample_stream(
      [](std::int64_t, int, int) -> SampleSource {
        return [next = std::int64_t{0}]() mutable {
          return next < 5 ? std::optional(Batch{.input = tokens(next++).input}) : std::nullopt;
        };
      },
      {{.value = -1, .mask = "mask"}});
  stream->start_epoch(0, 0, 1);
  EXPECT_TRUE(at::equal(stream->next(3)->input, rows({{0, -1, -1}, {1, 2, -1}, {2, 3, 4}})));
  EXPECT_EQ(stream->next(3)->fields.at(0).second.sum().item<std::int64_t>(), 9);
}

TEST(Padding, NamesWhatCannotBePadded) {
  const auto error = [](std::vector<Padding> paddings, std::int64_t last = 3) {
    return message_of<DataError>([&] { padded(sentences(9), std::move(paddings))->get(Ids{1, last}, {}); });
  };
  EXPECT_THAT(error({{}}), StartsWith("sample 3: found target of shape [4], expected [2] as in sample 1 | the samples "
                                      "of a batch are stacked: give them one shape, or pad them with padded()"));
  EXPECT_EQ(error({{}}, 1), "no error") << "equal lengths need no padding";
  EXPECT_THAT(error({{.field = "tokens"}}), StartsWith("sample 1: found no 'tokens' to pad"));
  EXPECT_THAT(error({{.field = "weight"}}), StartsWith("sample 1: found no 'weight' to pad"));
  EXPECT_EQ(error({{.dimension = 1}}), "sample 1: found input of shape [2], expected dimension 1 to pad");
  EXPECT_EQ(error({{.dimension = -2}}), "sample 1: found input of shape [2], expected dimension -2 to pad");
  EXPECT_EQ(error({{.value = 0.5}}), "padding of 'input': value is 0.5, expected a whole number for type Long");
  EXPECT_EQ(error({{.field = "frames", .dimension = 1}, {.field = "frames", .dimension = -1}}),
            "padding of 'frames': dimension 1 of shape [2, 2] is padded twice");
  EXPECT_THAT(error({{.mask = "frames"}}),
              StartsWith("sample 1: found a field 'frames', which is the name of the mask of 'input'"));
  EXPECT_THAT(error({{}, {.field = "target"}, {.field = "frames", .dimension = 0}}),
              StartsWith("sample 3: found frames of shape [2, 4], expected [2, 2] with any size of dimension 0 as in "
                         "sample 1"));
}

TEST(Padding, RejectsInvalidPaddingsTogether) {
  EXPECT_THAT(message_of([] { static_cast<void>(padded(nullptr, {})); }), StartsWith("padded: the data set is null"));
  const std::vector<Padding> wrong = {{.multiple_of = 0, .mask = "mask"}, {.dimension = 1, .value = 2, .mask = "mask"}};
  const auto start = [](std::int64_t, int, int) -> SampleSource { return {}; };
  for (const bool stream : {false, true}) {
    const auto error = error_of<ConfigError>([&] {
      stream ? static_cast<void>(sample_stream(start, wrong)) : static_cast<void>(padded(sentences(3), wrong));
    });
    ASSERT_EQ(error.problems().size(), 3U);
    EXPECT_EQ(error.problems()[0].what, "padding of 'input': multiple_of is 0, expected 1 or more");
    EXPECT_EQ(error.problems()[1].what,
              "padding of 'input': found the values 0 and 2, expected one for all dimensions");
    EXPECT_EQ(error.problems()[2].what, "padding of 'input': another mask is called 'mask' too");
  }
}

/// Learns a number for each token; the loss is the mean over tokens, without the padded ones.
class TokenTask final : public Task {
 public:
  explicit TokenTask(bool counts_padding) : counts_padding_(counts_padding) {
    const at::NoGradGuard no_grad;
    net_->weight.fill_(0.1);
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.3})}; }
  StepOutput training_step(const Batch& batch) override {
    const at::Tensor squares = (net_(batch.input).squeeze(-1) - at::cos(batch.target)).square();
    const at::Tensor mask = counts_padding_ ? at::ones_like(batch["mask"]) : batch["mask"];
    const at::Tensor count = mask.sum();
    StepOutput output((squares * mask).sum() / count);
    output.count = count;
    return output;
  }

 private:
  bool counts_padding_;
  torch::nn::Embedding net_{20, 1};
};

at::Tensor trained(int ranks, std::int64_t batch_size, bool counts_padding = false) {
  const Plan plan = plan_for(ranks, in_memory({.max_epochs = 2, .batch_size = batch_size, .global_batch_size = 5}));
  at::Tensor weight;
  thread_world(ranks, [&](World& world) {
    TokenTask task(counts_padding);
    DataLoader data(
        padded(map(sentences(9),
                   [](Batch sample, std::uint64_t) { return Batch{.input = sample.input, .target = sample.target}; }),
               {{.mask = "mask"}, {.field = "target"}}),
        plan.loader, world);
    Trainer(plan, world).fit(task, data);
    if (world.is_main()) {
      weight = task.module().parameters()[0].detach().clone();
    }
  });
  return weight;
}

// The lengths differ between micro-batches and ranks.
TEST(Padding, TrainsAlikeWithAccumulationAndSeveralRanks) {
  const at::Tensor expected = trained(1, 5);
  for (const auto& [ranks, batch_size] : {std::pair{1, 2}, {1, 1}, {2, 3}, {2, 1}, {3, 1}}) {
    EXPECT_LT((trained(ranks, batch_size) - expected).abs().max().item<double>(), 1e-6)
        << ranks << " ranks, batches of " << batch_size;
  }
  EXPECT_GT(
      (trained(2, 1, /*counts_padding=*/true) - trained(1, 5, /*counts_padding=*/true)).abs().max().item<double>(),
      1e-3);
}

}  // namespace
}  // namespace lockstep
