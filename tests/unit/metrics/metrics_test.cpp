// Each metric against values of torchmetrics (tests/parity/metrics_reference.py), on several ranks and in batches.
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/metrics/aggregation.h>
#include <lockstep/metrics/classification.h>
#include <lockstep/metrics/regression.h>

#include "base/json.h"
#include "metrics/metric_set.h"
#include "support/message_of.h"
#include "support/thread_world.h"

namespace lockstep::metrics {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Json reference() {
  std::ifstream file(LOCKSTEP_TEST_DATA "/metrics/torchmetrics.json");
  std::stringstream text;
  text << file.rdbuf();
  return parse_json(text.str());
}

at::Tensor input(const Json& reference, const std::string& name) {
  const Json& entry = reference.at("inputs").at(name);
  const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
  return at::tensor(entry.at("values").get<std::vector<double>>(), at::kDouble)
      .view(shape)
      .to(entry.at("integers").get<bool>() ? at::kLong : at::kFloat);
}

template <class T>
T option(const Json& options, const char* name, T otherwise) {
  return options.contains(name) ? options.at(name).get<T>() : otherwise;
}

std::optional<std::int64_t> ignore_index(const Json& options) {
  return options.contains("ignore_index") ? std::optional(options.at("ignore_index").get<std::int64_t>())
                                          : std::nullopt;
}

Classification task(const Json& options) {
  const std::string name = options.at("task").get<std::string>();
  return name == "binary"       ? Classification::binary
         : name == "multiclass" ? Classification::multiclass
                                : Classification::multilabel;
}

Average average(const Json& options) {
  const auto name = option<std::string>(options, "average", "macro");
  return name == "micro"      ? Average::micro
         : name == "macro"    ? Average::macro
         : name == "weighted" ? Average::weighted
                              : Average::none;
}

ClassificationOptions classification(const Json& options) {
  return {.task = task(options),
          .classes = option<std::int64_t>(options, "classes", 0),
          .average = average(options),
          .top_k = option<std::int64_t>(options, "top_k", 1),
          .threshold = option(options, "threshold", 0.5),
          .ignore_index = ignore_index(options)};
}

/// A metric, and how it is given predictions and targets.
struct Metered {
  std::shared_ptr<Metric> metric;
  std::function<void(const at::Tensor&, const at::Tensor&)> update;
};

template <class AMetric, class... Arguments>
Metered of_pairs(Arguments&&... arguments) {
  auto metric = std::make_shared<AMetric>(std::forward<Arguments>(arguments)...);
  return {metric, [metric](const at::Tensor& a, const at::Tensor& b) { metric->update(a, b); }};
}

template <class AMetric>
Metered of_values() {
  auto metric = std::make_shared<AMetric>();
  return {metric, [metric](const at::Tensor& values, const at::Tensor&) { metric->update(values); }};
}

Metered make(const Json& options) {
  using Normalize = ConfusionMatrixOptions::Normalize;
  const std::string name = options.at("metric").get<std::string>();
  const std::map<std::string, std::function<Metered()>> makers = {
      {"Accuracy", [&] { return of_pairs<Accuracy>(classification(options)); }},
      {"Precision", [&] { return of_pairs<Precision>(classification(options)); }},
      {"Recall", [&] { return of_pairs<Recall>(classification(options)); }},
      {"F1Score", [&] { return of_pairs<F1Score>(classification(options)); }},
      {"ConfusionMatrix",
       [&] {
         const std::map<std::string, Normalize> names = {{"none", Normalize::none},
                                                         {"targets", Normalize::targets},
                                                         {"predictions", Normalize::predictions},
                                                         {"all", Normalize::all}};
         return of_pairs<ConfusionMatrix>(
             ConfusionMatrixOptions{.task = task(options),
                                    .classes = option<std::int64_t>(options, "classes", 0),
                                    .normalize = names.at(options.at("normalize").get<std::string>()),
                                    .ignore_index = ignore_index(options)});
       }},
      {"AUROC",
       [&] {
         return of_pairs<AUROC>(AUROCOptions{.task = task(options),
                                             .classes = option<std::int64_t>(options, "classes", 0),
                                             .average = average(options)});
       }},
      {"Perplexity", [&] { return of_pairs<Perplexity>(ignore_index(options)); }},
      {"MeanSquaredError", [] { return of_pairs<MeanSquaredError>(); }},
      {"RootMeanSquaredError", [] { return of_pairs<MeanSquaredError>(/*squared=*/false); }},
      {"MeanAbsoluteError", [] { return of_pairs<MeanAbsoluteError>(); }},
      {"R2Score", [&] { return of_pairs<R2Score>(option<std::int64_t>(options, "classes", 1)); }},
      {"PeakSignalNoiseRatio", [] { return of_pairs<PeakSignalNoiseRatio>(6.0); }},
      {"MeanMetric", [] { return of_pairs<MeanMetric>(); }},
      {"SumMetric", [] { return of_values<SumMetric>(); }},
      {"MinMetric", [] { return of_values<MinMetric>(); }},
      {"MaxMetric", [] { return of_values<MaxMetric>(); }},
  };
  return makers.at(name)();
}

TEST(Metrics, AreThoseOfTorchmetricsOnAnyNumberOfRanks) {
  const Json data = reference();
  ASSERT_GT(data.at("cases").size(), 100U);
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [&](World& world) {
      for (const Json& options : data.at("cases")) {
        const Metered metered = make(options);
        const at::Tensor predictions = input(data, options.at("predictions").get<std::string>());
        const at::Tensor targets = input(data, options.at("targets").get<std::string>());
        // Batches of two; the last rank of three has nothing.
        const int busy = std::max(1, ranks - (ranks == 3 ? 1 : 0));
        for (std::int64_t begin = 2 * world.rank(); begin < predictions.size(0) && world.rank() < busy;
             begin += 2 * busy) {
          const std::int64_t end = std::min(begin + 2, predictions.size(0));
          metered.update(predictions.slice(0, begin, end), targets.slice(0, begin, end));
        }
        const at::Tensor value = metered.metric->value(world);
        const auto expected = at::tensor(options.at("value").get<std::vector<double>>(), at::kDouble);
        EXPECT_TRUE(at::allclose(value.flatten(), expected, 1e-6, 1e-6))
            << ranks << " ranks: " << dump_json(options) << "\nfound " << value.flatten();
      }
    });
  }
}

TEST(Metrics, NoticeAWrongValue) {  // the control of the test above
  const Json data = reference();
  Accuracy accuracy({.classes = 5, .average = Average::macro});
  accuracy.update(input(data, "scores"), input(data, "classes"));
  const double right = accuracy.compute().item<double>();
  accuracy.update(input(data, "scores").narrow(0, 0, 1), input(data, "classes").narrow(0, 0, 1));
  EXPECT_GT(std::abs(accuracy.compute().item<double>() - right), 1e-4);
}

TEST(Metrics, LeaveAnEarlierValueAsItWas) {
  const Json data = reference();
  for (const Json& options : data.at("cases")) {
    const Metered metered = make(options);
    const at::Tensor predictions = input(data, options.at("predictions").get<std::string>());
    const at::Tensor targets = input(data, options.at("targets").get<std::string>());
    metered.update(predictions, targets);
    const at::Tensor value = metered.metric->compute();
    const at::Tensor kept = value.clone();
    metered.update(predictions, targets);
    EXPECT_TRUE(at::allclose(value, kept, 0, 0, /*equal_nan=*/true)) << dump_json(options);
  }
}

TEST(Metrics, WithTwoStatesOfOneNameAreRefused) {
  class Two final : public Metric {
   public:
    at::Tensor compute() const override { return first_ + second_; }

   private:
    at::Tensor& first_ = add_sum("sum");
    at::Tensor& second_ = add_sum("sum");
  };
  EXPECT_EQ(message_of<ConfigError>([] { Two(); }),
            "metric state 'sum': found two states of this name | give each state its own name");
}

TEST(Metrics, BeginAgainAfterReset) {
  MeanMetric mean;
  mean.update(at::full({3}, 4.0));
  EXPECT_EQ(mean.compute().item<double>(), 4.0);
  mean.reset();
  mean.update(at::full({2}, 1.0));
  EXPECT_EQ(mean.compute().item<double>(), 1.0);
}

TEST(Metrics, KeepNoGraph) {
  const at::Tensor values = at::ones({4}).requires_grad_();
  MeanMetric mean;
  mean.update(values * 2);
  EXPECT_FALSE(mean.compute().requires_grad());

  class Careless final : public Metric {
   public:
    void update(const at::Tensor& values) { sum_ += values.sum(); }
    at::Tensor compute() const override { return sum_; }

   private:
    at::Tensor& sum_ = add_sum("sum");
  } careless;
  careless.update(values * 2);
  thread_world(1, [&](World& world) {
    EXPECT_THAT(message_of([&] { careless.value(world); }), HasSubstr("keeps an autograd graph"));
  });
}

// Gloo's own minimum and maximum drop NaN, depending on the rank that has it.
TEST(Metrics, ShowAValueThatIsNotANumberFromAnyRank) {
  for (const int ranks : {1, 2, 3}) {
    for (int where = 0; where < ranks; ++where) {
      thread_world(ranks, [&](World& world) {
        MinMetric smallest;
        MaxMetric largest;
        const double mine = world.rank() == where ? std::nan("") : 2.0 + world.rank();
        smallest.update(at::full({2}, mine));
        largest.update(at::full({2}, mine));
        EXPECT_TRUE(std::isnan(smallest.value(world).item<double>())) << where << " of " << ranks;
        EXPECT_TRUE(std::isnan(largest.value(world).item<double>())) << where << " of " << ranks;
      });
    }
  }
}

TEST(Metrics, OfWholeNumbersAreExact) {
  class Counts final : public Metric {
   public:
    void update(std::int64_t value) {
      smallest_ = at::minimum(smallest_, at::scalar_tensor(value, at::kLong));
      sum_ = sum_ + value;
    }
    at::Tensor compute() const override { return at::stack({smallest_, sum_}); }

   private:
    at::Tensor& smallest_ =
        add_state("smallest", at::full({}, std::numeric_limits<std::int64_t>::max(), at::kLong), StateReduction::min);
    at::Tensor& sum_ = add_state("sum", at::zeros({}, at::kLong), StateReduction::sum);
  };
  constexpr std::int64_t kLarge = (std::int64_t{1} << 53) + 1;  // float64 has no such number
  thread_world(2, [&](World& world) {
    Counts counts;
    EXPECT_EQ(counts.value(world)[0].item<std::int64_t>(), std::numeric_limits<std::int64_t>::max());
    if (world.is_main()) {
      counts.update(kLarge);
    }
    EXPECT_TRUE(at::equal(counts.value(world), at::full({2}, kLarge, at::kLong)));
  });
}

TEST(Metrics, WhoseStatesChangeTheirShapeOrKindAreRefused) {
  class Growing final : public Metric {
   public:
    void update(const at::Tensor& values) { sum_ = sum_ + values.sum(0); }
    at::Tensor compute() const override { return sum_; }

   private:
    at::Tensor& sum_ = add_state("sum", at::zeros({}, at::kLong), StateReduction::sum);
  };
  World world = World::single(c10::Device(c10::kCPU));
  Growing shape;
  shape.update(at::ones({4, 3}, at::kLong));
  EXPECT_THAT(message_of([&] { shape.value(world); }), HasSubstr("has become Long [3], expected Long [] as it began"));
  Growing kind;
  kind.update(at::ones({4}, at::kFloat));
  EXPECT_THAT(message_of([&] { kind.value(world); }), HasSubstr("has become Float [], expected Long []"));
}

TEST(Metrics, RefuseSoftTargets) {
  Accuracy accuracy({.task = Classification::binary});
  EXPECT_THAT(message_of([&] {
                accuracy.update(at::tensor({0.9, 0.2}), at::tensor({0.95, 0.05}));
              }),
              HasSubstr("Accuracy: found classes with fractions"));
  accuracy.update(at::tensor({0.9, 0.2}), at::tensor({1.0, 0.0}));
  EXPECT_EQ(accuracy.compute().item<double>(), 1);
}

TEST(Metrics, RefuseOptionsAndShapesThatDoNotFit) {
  EXPECT_THAT(message_of([] { Accuracy({.classes = 1, .threshold = 2}); }),
              HasSubstr("Accuracy: classes is 1, expected 2"));
  EXPECT_THAT(message_of([] { Accuracy({.classes = 1, .threshold = 2}); }), HasSubstr("threshold is 2"));
  EXPECT_THAT(message_of([] { Recall({.classes = 3, .top_k = 4}); }), HasSubstr("Recall: top_k is 4"));
  EXPECT_EQ(message_of([] { AUROC({.classes = 2}); }),
            "AUROC: classes is 2, and the task is binary | set task to multiclass or multilabel, or leave out classes");
  EXPECT_THAT(message_of([] { AUROC({.task = Classification::multiclass, .classes = 3, .average = Average::micro}); }),
              HasSubstr("average is micro"));
  EXPECT_THAT(message_of([] { Quantile({0.5, 2}, 1); }), HasSubstr("the quantile 2"));
  EXPECT_THAT(message_of([] { Quantile({0.9999999, 1}); }), HasSubstr("found two quantiles with the name p100"));
  EXPECT_THAT(message_of([] { Quantile({0.5}, 1e-9); }), HasSubstr("expected 0.00001 or more and less than 1"));
  EXPECT_THAT(message_of([] { PeakSignalNoiseRatio(0); }), HasSubstr("data_range is 0"));
  EXPECT_THAT(message_of([] { R2Score(0); }), HasSubstr("outputs is 0"));
  Accuracy accuracy({.classes = 3});
  EXPECT_THAT(message_of([&] {
                accuracy.update(at::rand({4, 2}), at::zeros({4}, at::kLong));
              }),
              HasSubstr("Accuracy: found predictions of shape [4, 2] and targets of shape [4], expected scores [N, 3"));
  EXPECT_THAT(message_of([&] {
                accuracy.update(at::rand({4, 3}), at::full({4}, 3, at::kLong));
              }),
              HasSubstr("Accuracy: found the target 3, expected 0 to 2"));
  EXPECT_THAT(message_of([&] { accuracy.update(at::full({4}, -1, at::kLong), at::zeros({4}, at::kLong)); }),
              HasSubstr("Accuracy: found the prediction -1"));
  const auto refused = [](auto&& metric) {
    return message_of([&] { metric.update(at::rand({4, 5}), at::zeros({4, 6, 7}, at::kLong)); });
  };
  EXPECT_THAT(refused(Precision({.classes = 3})), StartsWith("Precision: found predictions of shape [4, 5]"));
  EXPECT_THAT(refused(Recall({.task = Classification::binary})), StartsWith("Recall: found predictions"));
  EXPECT_THAT(refused(F1Score({.task = Classification::multilabel, .classes = 3})), StartsWith("F1Score: found "));
  EXPECT_THAT(refused(ConfusionMatrix({.classes = 3})), StartsWith("ConfusionMatrix: found predictions"));
  EXPECT_THAT(refused(AUROC()), StartsWith("AUROC: found predictions"));
  EXPECT_THAT(refused(Perplexity()), StartsWith("Perplexity: found predictions"));
  MeanSquaredError error;
  EXPECT_THAT(message_of([&] { error.update(at::ones({2}), at::ones({2, 1})); }), HasSubstr("expected equal shapes"));
}

// 0.7 cannot be written exactly, so a plain sum of them is not ten times 0.7.
TEST(R2Score, OfConstantTargetsIsOneOrZero) {
  const at::Tensor targets = at::full({10}, 0.7, at::kDouble);
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [&](World& world) {
      R2Score wrong;
      R2Score right;
      wrong.update(targets + 0.1, targets);
      right.update(targets, targets);
      wrong.update(at::empty({0}), at::empty({0}));
      EXPECT_EQ(wrong.value(world).item<double>(), 0);
      EXPECT_EQ(right.value(world).item<double>(), 1);
    });
  }
}

// The squares of such times have more digits than a double.
TEST(R2Score, OfTargetsFarFromZeroIsExact) {
  const at::Tensor targets = 1.7e9 + at::arange(1000, at::kDouble) / 1000;
  const double expected = 1 - 1000 * 0.01 / (targets - targets.mean()).square().sum().item<double>();
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [&](World& world) {
      R2Score score;
      for (const at::Tensor& batch : targets.tensor_split(6)) {
        const at::Tensor mine = batch.slice(0, world.rank(), std::nullopt, world.size());
        score.update(mine + 0.1, mine);
      }
      EXPECT_NEAR(score.value(world).item<double>(), expected, 1e-5) << ranks << " ranks";
    });
  }
}

TEST(R2Score, OfSmallTargetsIsThatOfLargeOnes) {
  const at::Tensor targets = at::arange(1, 5, at::kDouble);
  for (const double scale : {1.0, 1e-3}) {
    R2Score score;
    score.update(scale * targets / 2, scale * targets);
    EXPECT_NEAR(score.compute().item<double>(), -0.5, 1e-9);
  }
}

TEST(Metrics, OfExtremesIgnoreBatchesWithoutValues) {
  MinMetric smallest;
  MaxMetric largest;
  for (const at::Tensor& values : {at::empty({0}), at::tensor({3.0, 5.0}), at::empty({0})}) {
    smallest.update(values);
    largest.update(values);
  }
  EXPECT_EQ(smallest.compute().item<double>(), 3);
  EXPECT_EQ(largest.compute().item<double>(), 5);
}

TEST(Metrics, OfAClassWithoutTargetsHaveNoArea) {
  AUROC area({.task = Classification::multiclass, .classes = 3, .average = Average::none});
  AUROC mean({.task = Classification::multiclass, .classes = 3});
  const at::Tensor scores = at::tensor({0.7, 0.2, 0.1, 0.1, 0.8, 0.1}).view({2, 3});
  const at::Tensor targets = at::tensor({0, 1}, at::kLong);
  area.update(scores, targets);
  mean.update(scores, targets);
  const at::Tensor areas = area.compute();
  EXPECT_EQ(areas[0].item<double>(), 1.0);
  EXPECT_TRUE(std::isnan(areas[2].item<double>()));
  EXPECT_EQ(mean.compute().item<double>(), 1.0);
}

// 0.9 and 0.3 could be probabilities, so only the whole data set tells that they are logits.
TEST(Metrics, OfLogitsDoNotDependOnHowTheSamplesAreDivided) {
  const at::Tensor logits = at::tensor({0.9, 0.3, -0.5, 0.4, 0.1, 5.0, 0.8, -2.0, 0.2, 30.0, 31.0, 0.6});
  const at::Tensor flags = at::tensor({1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0}, at::kLong);
  const at::Tensor classes = at::tensor({0, 2, 1, 1}, at::kLong);
  const auto binary = Classification::binary;
  const ClassificationOptions labels{.task = Classification::multilabel, .classes = 3, .average = Average::none};
  struct Case {
    std::function<Metered()> make;
    at::Tensor predictions;
    at::Tensor targets;
  };
  const std::vector<Case> cases = {
      {[&] { return of_pairs<Accuracy>(ClassificationOptions{.task = binary}); }, logits, flags},
      {[&] { return of_pairs<F1Score>(ClassificationOptions{.task = binary, .threshold = 0.6}); }, logits, flags},
      {[&] { return of_pairs<Precision>(labels); }, logits.view({4, 3}), flags.view({4, 3})},
      {[&] { return of_pairs<ConfusionMatrix>(ConfusionMatrixOptions{.task = binary}); }, logits, flags},
      {[&] { return of_pairs<ConfusionMatrix>(ConfusionMatrixOptions{.task = labels.task, .classes = 3}); },
       logits.view({4, 3}), flags.view({4, 3})},
      {[&] { return of_pairs<AUROC>(); }, logits, flags},
      {[&] { return of_pairs<AUROC>(AUROCOptions{.task = labels.task, .classes = 3, .average = Average::none}); },
       logits.view({4, 3}), flags.view({4, 3})},
      {[&] { return of_pairs<AUROC>(AUROCOptions{.task = Classification::multiclass, .classes = 3}); },
       logits.view({4, 3}), classes}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [make, predictions, targets] = cases[i];
    const Metered at_once = make();
    at_once.update(predictions, targets);
    const at::Tensor expected = at_once.metric->compute();
    const Metered sure = make();  // the same samples as probabilities
    sure.update(i + 1 == cases.size() ? predictions.softmax(1) : predictions.to(at::kDouble).sigmoid(), targets);
    EXPECT_TRUE(at::equal(sure.metric->compute(), expected)) << "case " << i;
    for (const int ranks : {1, 2, 3}) {
      thread_world(ranks, [&](World& world) {
        const Metered one_by_one = make();
        for (std::int64_t row = world.rank(); row < predictions.size(0); row += world.size()) {
          one_by_one.update(predictions.narrow(0, row, 1), targets.narrow(0, row, 1));
        }
        EXPECT_TRUE(at::equal(one_by_one.metric->value(world), expected)) << "case " << i << ", " << ranks << " ranks";
      });
    }
  }
}

TEST(Metrics, TakeProbabilitiesBesideANaNForProbabilities) {
  Accuracy accuracy({.task = Classification::binary});
  accuracy.update(at::tensor({0.2, 0.3, std::nan("")}), at::tensor({0, 0, 1}, at::kLong));
  EXPECT_DOUBLE_EQ(accuracy.compute().item<double>(), 2.0 / 3);
}

// Its memory doubles: a copy of all earlier scores in each update would take a time that is quadratic in them.
TEST(AUROC, OfManyUpdatesIsThatOfOne) {
  const at::Tensor scores = at::arange(1000, at::kDouble).mul(0.37).frac();
  const at::Tensor targets = (at::arange(1000, at::kLong) % 3).eq(0).to(at::kLong);
  AUROC at_once;
  at_once.update(scores, targets);
  AUROC one_by_one;
  for (std::int64_t row = 0; row < 500; ++row) {
    one_by_one.update(scores.narrow(0, row, 1), targets.narrow(0, row, 1));
  }
  World world = World::single(c10::Device(c10::kCPU));
  const double half = one_by_one.value(world).item<double>();
  for (std::int64_t row = 500; row < 1000; ++row) {
    one_by_one.update(scores.narrow(0, row, 1), targets.narrow(0, row, 1));
    one_by_one.update(at::empty({0}), at::empty({0}));
  }
  EXPECT_EQ(one_by_one.compute().item<double>(), at_once.compute().item<double>());
  EXPECT_NE(half, at_once.compute().item<double>());
}

TEST(Quantile, HasTheRelativeErrorThatItPromises) {
  const at::Tensor values = at::cat({at::randn({5000}, at::kDouble).exp(), -at::rand({3000}, at::kDouble),
                                     at::zeros({500}, at::kDouble), at::tensor({1e30, -1e30, 1e-30})});
  const std::vector<double> asked{0, 0.001, 0.25, 0.36, 0.5, 0.9, 0.999, 1};
  const at::Tensor sorted = std::get<0>(values.sort());
  thread_world(3, [&](World& world) {
    Quantile quantile(asked, 0.02);
    quantile.update(values.slice(0, world.rank(), std::nullopt, world.size()));
    quantile.update(at::full({7}, std::numeric_limits<double>::quiet_NaN()));
    const at::Tensor found = quantile.value(world);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const auto rank = static_cast<std::int64_t>(asked[i] * static_cast<double>(values.numel() - 1));
      const double exact = std::clamp(sorted[rank].item<double>(), -1e9, 1e9);
      EXPECT_NEAR(found[static_cast<std::int64_t>(i)].item<double>(), exact, 0.02 * std::abs(exact) + 1e-9) << asked[i];
    }
  });
  EXPECT_THAT(Quantile({0.5, 0.999}).element_names(), testing::ElementsAre("p50", "p99.9"));
  EXPECT_TRUE(std::isnan(Quantile({0.5}).compute().item<double>()));
}

TEST(MetricSet, KnowsAtTheStartWhichValueIsTooLargeForAReport) {
  class Median final : public Metric {
   public:
    at::Tensor compute() const override { return values_.median(); }

   private:
    at::Tensor& values_ = add_state("values", at::empty({0, 3}, at::kDouble), StateReduction::cat);
  };
  class NeedsAnUpdate final : public Metric {
   public:
    at::Tensor compute() const override { throw std::logic_error("no values"); }
  };
  ConfusionMatrix fits({.classes = 31});
  ConfusionMatrix large({.classes = 32});
  ConfusionMatrix of_labels({.task = Classification::multilabel, .classes = 250});
  Median median;
  NeedsAnUpdate needs_an_update;
  World world = World::single(c10::Device(c10::kCPU));
  MetricSet({{"fits", fits}, {"labels", of_labels}, {"median", median}, {"late", needs_an_update}}, world)
      .check_sizes();
  MetricSet metrics({{"fits", fits}, {"large", large}}, world);
  EXPECT_THAT(message_of<ConfigError>([&] { metrics.check_sizes(); }),
              HasSubstr("the metric 'large' has 1024 values, a report has at most 1000 of one metric"));
}

TEST(MetricSet, NamesTheMetricWhoseValueCannotBeComputed) {
  class Failing final : public Metric {
   public:
    explicit Failing(std::function<at::Tensor()> compute) : compute_(std::move(compute)) { count_ += 1; }
    at::Tensor compute() const override { return compute_(); }

   private:
    std::function<at::Tensor()> compute_;
    at::Tensor& count_ = add_sum("count");
  };
  World world = World::single(c10::Device(c10::kCPU));
  const auto found = [&](const std::function<at::Tensor()>& compute) {
    MeanMetric fine;
    fine.update(at::ones({2}));
    Failing late(compute);
    MetricSet metrics({{"fine", fine}, {"late", late}}, world);
    return message_of([&] { metrics.values(world); });
  };
  EXPECT_EQ(found([]() -> at::Tensor { throw std::logic_error("no values"); }),
            "the metric 'late': std::logic_error: no values");
  EXPECT_EQ(found([]() -> at::Tensor { throw Error("no targets"); }), "the metric 'late': no targets");
  EXPECT_THAT(found([] {
                return at::stack({at::zeros({}), at::zeros({3})});
              }),
              testing::StartsWith("the metric 'late': c10::Error: stack expects each tensor to be equal size"));
}

// Some of the states, as of a version in which others had another shape, would give a wrong value.
TEST(MetricSet, ContinuesAMetricAsAWholeOrNotAtAll) {
  World world = World::single(c10::Device(c10::kCPU));
  const auto values_after = [&](const std::string& left_out) {
    Recall first({.task = Classification::binary});
    MetricSet before({{"recall", first}}, world);
    first.update(at::tensor({1, 1, 0}), at::tensor({1, 1, 1}));
    NamedTensors saved = before.save(world);
    EXPECT_EQ(std::erase_if(saved, [&](const auto& state) { return state.first == left_out; }),
              left_out.empty() ? 0 : 1);
    Recall second({.task = Classification::binary});
    MetricSet after({{"recall", second}}, world);
    after.load(saved, world);
    second.update(at::tensor({1, 0}), at::tensor({1, 1}));
    return second.value(world).item<double>();
  };
  EXPECT_EQ(values_after(""), 0.6);
  EXPECT_EQ(values_after("recall.true_positives"), 0.5);
}

TEST(Metrics, OnRanksWithOtherStatesAreRefused) {
  const auto compare = [] {
    thread_world(3, [](World& world) {
      Accuracy accuracy({.classes = world.rank() == 1 ? 4 : 3});
      accuracy.value(world);
    });
  };
  EXPECT_THAT(message_of(compare), HasSubstr("rank 1 has the metric state"));
}

}  // namespace
}  // namespace lockstep::metrics
