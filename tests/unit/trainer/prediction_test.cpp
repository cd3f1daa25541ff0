// Results of every sample, in order, for any number of ranks, in memory and in files.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>
#include <lockstep/data/stream.h>
#include <lockstep/sampling/epoch_order.h>
#include <lockstep/tensor/named_tensors.h>

#include "base/json.h"
#include "support/borrowed.h"
#include "support/captured_stderr.h"
#include "support/limited_memory.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class Predictor : public TinyTask {
 public:
  NamedTensors predict_step(const Batch& batch) override {
    EXPECT_FALSE(torch::autograd::GradMode::is_enabled());
    EXPECT_FALSE(net_->is_training());
    if (++calls == fails_at) {
      throw Error("the power is gone");
    }
    samples += batch.samples;
    const at::Tensor y = net_(batch.input);
    return {{"y", y}, {"class", y.squeeze(1) > 0}};
  }
  int calls = 0;
  std::int64_t samples = 0;
  int fails_at = 0;
};

Plan prediction_plan(int ranks) { return plan_for(ranks, in_memory({.precision = Precision::fp64, .batch_size = 3})); }

/// One batch of these samples, in double precision.
NamedTensors expected_of(const std::vector<std::int64_t>& ids, std::int64_t samples) {
  Predictor task;
  const at::NoGradGuard no_grad;
  task.module().to(at::kDouble);
  task.module().eval();
  Batch batch = tiny_data(samples)->get(ids, {});
  batch.input = batch.input.to(at::kDouble);
  NamedTensors all = task.predict_step(batch);
  all.insert(all.begin(), {"ids", at::tensor(ids)});
  return all;
}

NamedTensors expected(std::int64_t samples) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(samples));
  std::iota(ids.begin(), ids.end(), 0);
  return expected_of(ids, samples);
}

/// Matrices of other sizes add in another order; all else is equal.
void expect_same(const NamedTensors& found, const NamedTensors& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [name, tensor] = found[i];
    EXPECT_EQ(name, wanted[i].first);
    ASSERT_EQ(tensor.sizes(), wanted[i].second.sizes());
    ASSERT_EQ(tensor.scalar_type(), wanted[i].second.scalar_type()) << name;
    EXPECT_TRUE(tensor.is_floating_point() ? at::allclose(tensor, wanted[i].second, 0, 1e-12)
                                           : tensor.equal(wanted[i].second))
        << name;
  }
}

void expect_equal(const NamedTensors& found, const NamedTensors& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, wanted[i].first);
    EXPECT_TRUE(found[i].second.equal(wanted[i].second)) << found[i].first;
  }
}

NamedTensors first_rows(NamedTensors results, std::int64_t rows) {
  for (auto& [name, tensor] : results) {
    tensor = tensor.narrow(0, 0, rows);
  }
  return results;
}

TEST(Predict, GivesTheResultsInTheOrderOfTheDataForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::int64_t samples : {1, 7, 29}) {  // some ranks have nothing
      thread_world(ranks, [&](World& world) {
        const Plan plan = prediction_plan(ranks);
        Predictor task;
        DataLoader data(tiny_data(samples), plan.eval_loader, world);
        Trainer trainer(plan, world);
        const NamedTensors found = trainer.predict(task, data);
        EXPECT_TRUE(task.module().is_training());
        if (world.is_main()) {
          expect_same(found, expected(samples));
        } else {
          EXPECT_TRUE(found.empty());
        }
        expect_equal(trainer.predict(task, data), found);
      });
    }
  }
}

TEST(Predict, KeepsResultsWhoseMemoryTheTaskUsesAgain) {
  class Reusing final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override {
      memory_.resize_({batch.samples});
      at::sum_out(memory_, batch.input, at::IntArrayRef{1});
      return {{"sum", memory_}, {"first", memory_.narrow(0, 0, batch.samples)}};
    }

   private:
    at::Tensor memory_ = at::empty({0});
  };
  World world = World::single(c10::kCPU);
  const Plan plan = plan_for(1, in_memory({.batch_size = 4}));
  Reusing task;
  DataLoader data(tiny_data(12), plan.eval_loader, world);
  const NamedTensors found = Trainer(plan, world).predict(task, data);
  const at::Tensor expected = at::sin(at::arange(48, at::kFloat) * 0.37).view({12, 4}).sum(1);
  EXPECT_TRUE(at::allclose(tensor_of(found, "sum"), expected));
  EXPECT_TRUE(at::allclose(tensor_of(found, "first"), expected));
}

// The ranks of a test share their memory. It had the results of all ranks eight times when each rank gathered them.
TEST(Predict, NeedsMemoryForAllResultsOnTheMainRankOnly) {
  constexpr std::int64_t kRowBytes = std::int64_t{1} << 20;
  class Wide final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override {
      return {{"x", batch.input.select(1, 0).unsqueeze(1).expand({batch.samples, kRowBytes / 4})}};
    }
  };
  constexpr int kRanks = 3;
  constexpr std::int64_t kSamples = 36;
  std::vector<std::int64_t> ids(kSamples);
  std::iota(ids.begin(), ids.end(), 0);
  const auto samples = tiny_data(kSamples);
  const at::Tensor expected = samples->get(ids, {}).input.select(1, 0);
  std::int64_t peak = 0;
  {
    const LimitedMemory memory;
    thread_world(kRanks, [&](World& world) {
      const Plan plan = plan_for(kRanks, in_memory({.batch_size = 1}));
      Wide task;
      DataLoader data(samples, plan.eval_loader, world);
      const NamedTensors found = Trainer(plan, world).predict(task, data);
      if (world.is_main()) {
        EXPECT_TRUE(tensor_of(found, "x").select(1, 7).equal(expected));
      }
    });
    peak = LimitedMemory::peak();
  }
  EXPECT_LT(peak, 6 * kSamples * kRowBytes);
}

TEST(Predict, IntoFilesContinuesAfterAFailureWithAnotherNumberOfRanks) {
  for (const auto& [first, second] : {std::pair{1, 1}, {2, 2}, {1, 3}, {3, 1}, {4, 2}}) {
    const TempDir dir;
    const auto predict = [&](int ranks, int fails_at, std::atomic<std::int64_t>* samples) {
      thread_world(ranks, [&](World& world) {
        const Plan plan = prediction_plan(ranks);
        Predictor task;
        task.fails_at = fails_at;
        DataLoader data(tiny_data(53), plan.eval_loader, world);
        Trainer(plan, world).predict(task, data, dir.path() / "out", /*every_steps=*/2);
        if (samples != nullptr) {
          *samples += task.samples;
        }
      });
    };
    EXPECT_THAT(message_of([&] { predict(first, 4, nullptr); }), HasSubstr("the power is gone"));
    EXPECT_THAT(message_of([&] { load_predictions(dir.path() / "out"); }), HasSubstr("is not complete"));
    std::atomic<std::int64_t> samples = 0;
    predict(second, 0, &samples);
    EXPECT_EQ(samples, 53 - 2 * 3 * first) << "the two steps of the first file are not predicted again";
    expect_same(load_predictions(dir.path() / "out"), expected(53));
    predict(first, 1, nullptr);  // complete: nothing is called
  }
}

TEST(Predict, IntoFilesSaysAfterAFailureThatItContinues) {
  for (const int fails_at : {2, 4}) {  // before and after the first file
    const TempDir dir;
    World world = World::single(c10::kCPU);
    std::string told;
    WorldAccess::on_what_is_left(world) = [&](const std::string& text) { told = text; };
    const Plan plan = prediction_plan(1);
    Predictor task;
    task.fails_at = fails_at;
    DataLoader data(tiny_data(53), plan.eval_loader, world);
    EXPECT_THROW(Trainer(plan, world).predict(task, data, dir.path() / "out", /*every_steps=*/2), Error);
    EXPECT_EQ(told, fails_at == 2 ? ""
                                  : fmt::format("2 steps in {} are predicted; without the cause of this failure the "
                                                "same command continues there",
                                                (dir.path() / "out").string()));
  }
}

TEST(Predict, WritesNothingInATrial) {
  const TempDir dir;
  thread_world(2, [&](World& world) {
    const Plan plan = plan_for(2, in_memory({.precision = Precision::fp64, .fast_dev_run = 2, .batch_size = 3}));
    Predictor task;
    DataLoader data(tiny_data(53), plan.eval_loader, world);
    Trainer trainer(plan, world);
    for (int time = 1; time <= 2; ++time) {
      trainer.predict(task, data, dir.path() / "out");
      EXPECT_EQ(task.samples, time * 2 * 3) << "two steps of this rank";
    }
    const NamedTensors in_memory = trainer.predict(task, data);
    if (world.is_main()) {
      expect_same(in_memory, first_rows(expected(53), 2 * 6));
    }
  });
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "out"));
  const auto error = error_of<CheckpointError>([&] { load_predictions(dir.path() / "out"); });
  EXPECT_THAT(error.hint(), HasSubstr("--fast_dev_run writes no predictions"));
}

TEST(Predict, StopsOnRequestAndContinues) {
  const TempDir dir;
  for (const bool asks : {true, false}) {
    thread_world(2, [&](World& world) {
      const Plan plan = prediction_plan(2);
      TrainControl control;
      Trainer trainer(plan, world, control);
      Predictor task;
      DataLoader data(tiny_data(29), plan.eval_loader, world);
      if (asks) {
        control.request_stop("enough", StopKind::terminate);
        EXPECT_THROW(trainer.predict(task, data), Stopped);
        EXPECT_THROW(trainer.predict(task, data, dir.path() / "out", 1), Stopped);
        EXPECT_EQ(control.agreed(), StopKind::terminate);
      } else {
        trainer.predict(task, data, dir.path() / "out", 1);
      }
    });
  }
  expect_same(load_predictions(dir.path() / "out"), expected(29));
}

TEST(Predict, OfAStreamIsInTheOrderOfItsSteps) {
  class Echo final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override { return {{"x", batch.input}}; }
  };
  const std::vector<std::vector<std::int64_t>> orders{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
                                                      {0, 2, 4, 1, 3, 5, 6, 8, 7, 9},
                                                      {0, 3, 6, 1, 4, 7, 2, 5, 8, 9},
                                                      {0, 4, 8, 1, 5, 9, 2, 6, 3, 7}};
  for (const int ranks : {1, 2, 3, 4}) {
    const TempDir dir;
    thread_world(ranks, [&](World& world) {
      const auto numbers = [](std::int64_t, int rank, int world_size) -> SampleSource {
        return [n = static_cast<std::int64_t>(rank), world_size]() mutable {
          const std::int64_t now = std::exchange(n, n + world_size);
          return now < 10 ? std::optional<Batch>(Batch{.input = at::full({1}, now)}) : std::nullopt;
        };
      };
      const Plan plan = prediction_plan(ranks);
      Echo task;
      DataLoader data(sample_stream(numbers), plan.eval_loader, world);
      Trainer trainer(plan, world);
      const NamedTensors found = trainer.predict(task, data);
      trainer.predict(task, data, dir.path() / "out", 1);
      if (world.is_main()) {
        const at::Tensor order = at::tensor(orders[static_cast<std::size_t>(ranks) - 1]).view({10, 1});
        ASSERT_EQ(found.size(), 1U);
        EXPECT_TRUE(found[0].second.equal(order)) << found[0].second;
        EXPECT_TRUE(load_predictions(dir.path() / "out").at(0).second.equal(order));
      }
    });
  }
}

TEST(Predict, OfAWeightedOrderHasARowForEachDraw) {
  std::vector<double> weights(23);
  std::iota(weights.begin(), weights.end(), 1.0);
  const auto order = weighted_order(weights, {.samples = 29});
  std::vector<std::int64_t> drawn(29);
  order->fill({.seed = prediction_plan(1).eval_loader.seed}, 0, drawn);
  std::ranges::sort(drawn);
  ASSERT_NE(std::ranges::adjacent_find(drawn), drawn.end()) << "a sample is drawn twice";
  const NamedTensors wanted = expected_of(drawn, 23);
  for (const int ranks : {1, 2, 3, 4}) {
    const TempDir dir;
    thread_world(ranks, [&](World& world) {
      const Plan plan = prediction_plan(ranks);
      Predictor task;
      DataLoader data(tiny_data(23), plan.eval_loader, world, order);
      Trainer trainer(plan, world);
      const NamedTensors found = trainer.predict(task, data);
      trainer.predict(task, data, dir.path() / "out", 2);
      if (world.is_main()) {
        expect_same(found, wanted);
        expect_same(load_predictions(dir.path() / "out"), wanted);
      }
    });
  }
}

// The ids 0 to 4 are in both loaders.
TEST(Predict, KeepsTheLoadersOfACombinedLoaderApart) {
  class Echo final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override { return {{"x", batch.input.select(1, 0)}}; }
  };
  std::vector<std::int64_t> all(12);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::int64_t> of_second(all.begin() + 5, all.end());
  const at::Tensor expected = tiny_data(12)->get(all, {}).input.select(1, 0).to(at::kDouble);
  for (const int ranks : {1, 2, 3}) {
    const TempDir dir;
    thread_world(ranks, [&](World& world) {
      const Plan plan = prediction_plan(ranks);
      DataLoader first(take(tiny_data(12), 5), plan.eval_loader, world);
      DataLoader second(subset(tiny_data(12), of_second), plan.eval_loader, world);
      CombinedLoader both({borrowed(first), borrowed(second)}, CombineMode::max_size);
      Echo task;
      Trainer trainer(plan, world);
      const NamedTensors found = trainer.predict(task, both);
      trainer.predict(task, both, dir.path() / "out", 1);
      if (world.is_main()) {
        const at::Tensor loaders = at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1}, at::kLong);
        for (const NamedTensors& results : {found, load_predictions(dir.path() / "out")}) {
          EXPECT_TRUE(tensor_of(results, "loaders").equal(loaders));
          EXPECT_TRUE(tensor_of(results, "x").equal(expected)) << tensor_of(results, "x");
        }
      }
    });
  }
}

// The ids 0 to 3 are in all loaders.
TEST(Predict, KeepsTheLoadersOfNestedCombinedLoadersApart) {
  class Echo final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override { return {{"x", batch.input.select(1, 0)}}; }
  };
  World world = World::single(c10::kCPU);
  const Plan plan = prediction_plan(1);
  const at::Tensor rows = at::arange(48, at::kFloat).view({12, 4});
  std::vector<std::shared_ptr<BatchSource>> loaders;
  for (std::int64_t first = 0; first < 12; first += 4) {
    loaders.push_back(std::make_shared<DataLoader>(tensor_dataset(rows.narrow(0, first, 4)), plan.eval_loader, world));
  }
  const auto inner = std::make_shared<CombinedLoader>(std::vector{loaders[0], loaders[1]}, CombineMode::max_size);
  CombinedLoader all({inner, loaders[2]}, CombineMode::max_size);
  Echo task;
  const NamedTensors found = Trainer(plan, world).predict(task, all);
  EXPECT_TRUE(tensor_of(found, "loaders").equal(at::arange(3).repeat_interleave(4)));
  EXPECT_TRUE(tensor_of(found, "x").to(at::kFloat).equal(rows.select(1, 0)));
}

// With three ranks the first step is a part of a step.
TEST(Predict, OfACombinedLoaderContinuesWithMoreRanks) {
  class Failing final : public TinyTask {
   public:
    explicit Failing(int fails_at) : fails_at_(fails_at) {}
    NamedTensors predict_step(const Batch& batch) override {
      if (++calls_ == fails_at_) {
        throw Error("the power is gone");
      }
      return {{"x", batch.input.select(1, 0)}};
    }

   private:
    int fails_at_;
    int calls_ = 0;
  };
  const TempDir dir;
  const auto predict = [&](int ranks, int fails_at) {
    thread_world(ranks, [&](World& world) {
      const Plan plan = prediction_plan(ranks);
      DataLoader first(tiny_data(31), plan.eval_loader, world);
      DataLoader second(tiny_data(23), plan.eval_loader, world);
      CombinedLoader both({borrowed(first), borrowed(second)}, CombineMode::max_size);
      Failing task(fails_at);
      Trainer(plan, world).predict(task, both, dir.path() / "out", /*every_steps=*/1);
    });
  };
  EXPECT_THAT(message_of([&] { predict(1, 3); }), HasSubstr("the power is gone"));
  const CapturedStderr silent;
  predict(3, 0);
  const NamedTensors found = load_predictions(dir.path() / "out");
  EXPECT_TRUE(tensor_of(found, "ids").equal(at::cat({at::arange(31), at::arange(23)})));
  EXPECT_TRUE(tensor_of(found, "loaders").equal(at::cat({at::zeros({31}, at::kLong), at::ones({23}, at::kLong)})));
}

TEST(Predict, OfADataSetAndAStreamHasTheStepsOfTheStream) {
  class Echo final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override { return {{"x", batch.input.select(1, 0)}}; }
  };
  const TempDir dir;
  World world = World::single(c10::kCPU);
  const Plan plan = prediction_plan(1);
  DataLoader first(tiny_data(4), plan.eval_loader, world);
  const auto sevens = [](std::int64_t, int, int) -> SampleSource {
    return
        [n = 0]() mutable { return n++ < 4 ? std::optional<Batch>(Batch{.input = at::full({2}, 7.0)}) : std::nullopt; };
  };
  DataLoader second(sample_stream(sevens), plan.eval_loader, world);
  CombinedLoader both({borrowed(first), borrowed(second)}, CombineMode::sequential);
  Echo task;
  Trainer trainer(plan, world);
  const NamedTensors found = trainer.predict(task, both);
  trainer.predict(task, both, dir.path() / "out", /*every_steps=*/1);
  for (const NamedTensors& results : {found, load_predictions(dir.path() / "out")}) {
    EXPECT_TRUE(tensor_of(results, "ids").equal(at::tensor({0, 1, 2, 3, 2, 2, 2, 3}, at::kLong)))
        << tensor_of(results, "ids");
    EXPECT_TRUE(tensor_of(results, "x").narrow(0, 4, 4).equal(at::full({4}, 7.0, at::kDouble)));
  }
}

TEST(Predict, NamesWhatIsWrong) {
  class Wrong final : public TinyTask {
   public:
    explicit Wrong(NamedTensors results) : results_(std::move(results)) {}
    NamedTensors predict_step(const Batch&) override { return results_; }

   private:
    NamedTensors results_;
  };
  World world = World::single(c10::kCPU);
  const Plan plan = prediction_plan(1);
  const auto text = [&](Task& task) {
    return message_of([&] {
      DataLoader data(tiny_data(6), plan.eval_loader, world);
      Trainer(plan, world).predict(task, data);
    });
  };
  TinyTask without;
  EXPECT_THAT(text(without), HasSubstr("the task has no predict_step()"));
  Wrong nothing({});
  EXPECT_THAT(text(nothing), HasSubstr("predict_step() returned nothing"));
  Wrong scalar({{"y", at::ones({})}});
  EXPECT_THAT(text(scalar), HasSubstr("returned 'y' of shape [] for 3 samples"));
  Wrong rows({{"y", at::ones({2, 5})}});
  EXPECT_THAT(text(rows), HasSubstr("returned 'y' of shape [2, 5] for 3 samples"));
  Wrong reserved({{"ids", at::ones({3})}});
  EXPECT_THAT(text(reserved), HasSubstr("'ids', which is a name of lockstep"));
  Wrong dtype({{"y", at::ones({3}, at::kComplexDouble)}});
  EXPECT_THAT(text(dtype), HasSubstr("which cannot be stored"));
}

TEST(Predict, RefusesABatchWithFewerIdsThanSamples) {
  class OneIdForEachBatch final : public BatchSource {
   public:
    const StepBatches* next() override {
      step_.micro.assign(1, Batch{.input = at::ones({3, 4}), .ids = {7}, .samples = 3});
      step_.ends_epoch = true;
      return &step_;
    }
    std::optional<std::int64_t> steps_per_epoch() const override { return 1; }
    LoaderPosition position() const override { return {}; }
    void seek(const LoaderPosition&) override {}

   private:
    StepBatches step_{};
  };
  World world = World::single(c10::kCPU);
  const Plan plan = prediction_plan(1);
  Predictor task;
  OneIdForEachBatch data;
  EXPECT_EQ(message_of<DataError>([&] { Trainer(plan, world).predict(task, data); }),
            "prediction: found a batch of 3 samples with 1 id | give each sample an id, or none");
}

TEST(Predict, NamesAResultWhoseRowsHaveAnotherShape) {
  class Growing final : public TinyTask {
   public:
    NamedTensors predict_step(const Batch& batch) override { return {{"y", at::ones({batch.samples, 2, ++size_})}}; }

   private:
    std::int64_t size_ = 0;
  };
  World world = World::single(c10::kCPU);
  const Plan plan = prediction_plan(1);
  Growing task;
  DataLoader data(tiny_data(6), plan.eval_loader, world);
  EXPECT_THAT(message_of([&] { Trainer(plan, world).predict(task, data); }),
              HasSubstr("'y' with rows of shape [2,2] for a batch, and [2,1] for the batches before"));
}

TEST(Predict, NamesRanksWithOtherResults) {
  EXPECT_THAT(message_of([] {
                thread_world(2, [](World& world) {
                  class Odd final : public TinyTask {
                   public:
                    explicit Odd(bool odd) : odd_(odd) {}
                    NamedTensors predict_step(const Batch& batch) override {
                      return {{odd_ ? "z" : "y", net_(batch.input)}};
                    }

                   private:
                    bool odd_;
                  };
                  const Plan plan = prediction_plan(2);
                  Odd task(world.rank() == 1);
                  DataLoader data(tiny_data(12), plan.eval_loader, world);
                  Trainer(plan, world).predict(task, data);
                });
              }),
              HasSubstr("rank 1 predicts"));
}

TEST(Predict, RefusesDamagedFiles) {
  const TempDir dir;
  EXPECT_THAT(message_of([&] { load_predictions(dir.path()); }), HasSubstr("contains no predictions"));
  std::ofstream(dir.path() / "predictions.json") << R"({"format": 1})";
  EXPECT_THAT(message_of([&] { load_predictions(dir.path()); }), HasSubstr("is damaged: \"step\" is missing"));
  std::ofstream(dir.path() / "predictions.json") << R"({"format": 1, "step": "x"})";
  EXPECT_THAT(message_of([&] { load_predictions(dir.path()); }),
              HasSubstr("is damaged: found \"x\", expected \"step\" to be an integer"));
}

TEST(MakeTask, PredictsWhatItsModuleReturns) {
  World world = World::single(c10::kCPU);
  const Plan plan = prediction_plan(1);
  const auto task = make_task(
      torch::nn::Linear(4, 2), [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); },
      sgd({.lr = 0.1}));
  DataLoader data(tiny_data(5), plan.eval_loader, world);
  const NamedTensors found = Trainer(plan, world).predict(*task, data);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[1].first, "output");
  EXPECT_EQ(found[1].second.sizes(), (std::vector<std::int64_t>{5, 2}));
}

/// Returns its two results in another order for every second batch.
class Swapping final : public TinyTask {
 public:
  NamedTensors predict_step(const Batch& batch) override {
    const at::Tensor y = net_(batch.input);
    return ++calls_ % 2 == 1 ? NamedTensors{{"y", y}, {"twice", 2 * y}} : NamedTensors{{"twice", 2 * y}, {"y", y}};
  }

 private:
  int calls_ = 0;
};

TEST(Prediction, IsNeverMixedWithThatOfOtherWeights) {
  for (const int ranks : {1, 2}) {
    const TempDir dir;
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({});
      config.batch_size = 4;
      const Plan plan = plan_for(ranks, config);
      class Predicting final : public TinyTask {
       public:
        NamedTensors predict_step(const Batch& batch) override { return {{"y", net_(batch.input)}}; }
      } task;
      DataLoader data(tiny_data(8), plan.eval_loader, world);
      Trainer trainer(plan, world);
      trainer.predict(task, data, dir.path() / "out");
      trainer.predict(task, data, dir.path() / "out");  // complete: it is left as it is
      {
        const at::NoGradGuard no_grad;
        task.module().parameters().front().add_(1);
      }
      EXPECT_THAT(message_of<CheckpointError>([&] { trainer.predict(task, data, dir.path() / "out"); }),
                  HasSubstr("contains predictions of other weights"));
    });
  }
}

TEST(Prediction, IsNeverMixedWithThatOfOtherData) {
  for (const int ranks : {1, 2}) {
    for (const int fails_at : {0, 2}) {  // complete, and interrupted after the first file
      const TempDir dir;
      const auto predict = [&](double shift, int failing_call) {
        thread_world(ranks, [&](World& world) {
          const Plan plan = prediction_plan(ranks);
          Predictor task;
          task.fails_at = failing_call;
          const at::Tensor x = at::arange(15 * 4, at::kFloat).view({15, 4}) + shift;
          DataLoader data(tensor_dataset(x, x.sum(1, true)), plan.eval_loader, world);
          Trainer(plan, world).predict(task, data, dir.path() / "out", /*every_steps=*/1);
        });
      };
      EXPECT_THAT(message_of([&] { predict(0, fails_at); }),
                  HasSubstr(fails_at == 0 ? "no error" : "the power is gone"));
      EXPECT_THAT(message_of<CheckpointError>([&] { predict(1, 0); }),
                  HasSubstr("contains predictions of other data: 15 samples"));
      EXPECT_EQ(message_of([&] { predict(0, 0); }), "no error") << "the same data continues";
    }
  }
}

TEST(Prediction, LeavesOutSamplesThatCannotBeLoaded) {
  // 6 and 7 are neighbours, 9 to 11 are a whole batch.
  const std::vector<std::int64_t> bad{2, 6, 7, 9, 10, 11, 28};
  const auto some_bad = [&] {
    return sample_dataset(29, [&](std::int64_t id, std::uint64_t) -> Batch {
      const bool is_bad = std::ranges::find(bad, id) != bad.end();
      if (is_bad && id % 2 == 0) {
        throw std::runtime_error("not an image");
      }
      const at::Tensor input = tiny_data(29)->get({&id, 1}, {}).input[0];
      return {.input = is_bad ? input / 0 : input};
    });
  };
  std::vector<std::int64_t> good(29);
  std::iota(good.begin(), good.end(), 0);
  std::erase_if(good, [&](std::int64_t id) { return std::ranges::find(bad, id) != bad.end(); });
  NamedTensors wanted = expected(29);
  for (auto& [name, tensor] : wanted) {
    tensor = tensor.index_select(0, at::tensor(good, at::kLong));
  }
  for (const int ranks : {1, 2, 3}) {
    const TempDir dir;
    thread_world(ranks, [&](World& world) {
      TrainConfig config = in_memory({.precision = Precision::fp64, .batch_size = 3});
      config.data.max_bad_samples = 7;
      config.data.check_finite = true;
      const Plan plan = plan_for(ranks, config);
      Predictor task;
      DataLoader data(some_bad(), plan.eval_loader, world);
      Trainer trainer(plan, world);
      const NamedTensors found = trainer.predict(task, data);
      trainer.predict(task, data, dir.path() / "out", /*every_steps=*/1);
      if (world.is_main()) {
        expect_same(found, wanted);
        expect_same(load_predictions(dir.path() / "out"), wanted);
      }
    });
  }
}

/// A plan whose steps have 6 samples on any number of ranks.
Plan limited_plan(int ranks, StepCount most) {
  return plan_for(
      ranks,
      in_memory(
          {.precision = Precision::fp64, .batch_size = 6, .global_batch_size = 6, .predict = {.max_batches = most}}));
}

bool is_marked_as_limited(const std::filesystem::path& directory) {
  return parse_json(read_text(directory / "predictions.json")).at("limited").get<bool>();
}

TEST(PredictionLimit, GivesTheSameSamplesOnAnyNumberOfRanksAndSaysSo) {
  struct Case {
    StepCount most;
    int steps;
  };
  // 29 samples are 5 steps.
  for (const Case& c : {Case{0, 5}, Case{2, 2}, Case{5, 5}, Case{9, 5}, Case{StepCount::percent(1), 1},
                        Case{StepCount::percent(50), 3}, Case{StepCount::percent(100), 5}}) {
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{} steps, {} ranks", c.steps, ranks));
      const TempDir dir;
      const bool is_part = c.steps < 5;
      const NamedTensors wanted = first_rows(expected(29), std::min(29, 6 * c.steps));
      NamedTensors in_memory;
      CapturedStderr captured;
      thread_world(ranks, [&](World& world) {
        const Plan plan = limited_plan(ranks, c.most);
        Predictor task;
        DataLoader data(tiny_data(29), plan.eval_loader, world);
        Trainer trainer(plan, world);
        NamedTensors found = trainer.predict(task, data);
        trainer.predict(task, data, dir.path() / "out", /*every_steps=*/2);
        if (world.is_main()) {
          in_memory = std::move(found);
        }
      });
      const NamedTensors in_files = load_predictions(dir.path() / "out");
      const std::string told = captured.text();
      expect_same(in_memory, wanted);
      expect_equal(in_files, in_memory);
      EXPECT_EQ(is_marked_as_limited(dir.path() / "out"), is_part);
      EXPECT_EQ(told.find("the prediction used the first ") != std::string::npos, is_part) << told;
      EXPECT_EQ(told.find("has predictions of the first ") != std::string::npos, is_part) << told;
    }
  }
}

TEST(PredictionLimit, GoesOnWithALargerOneAndWithAnotherNumberOfRanks) {
  for (const auto& [first, second] : {std::pair{1, 1}, {1, 3}, {2, 4}, {4, 2}, {3, 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks, then {}", first, second));
    const TempDir dir;
    const CapturedStderr silent;
    const auto predict = [&](int ranks, StepCount most, int fails_at = 0) {
      std::atomic<std::int64_t> samples = 0;
      thread_world(ranks, [&](World& world) {
        const Plan plan = limited_plan(ranks, most);
        Predictor task;
        task.fails_at = fails_at;
        DataLoader data(tiny_data(53), plan.eval_loader, world);
        Trainer(plan, world).predict(task, data, dir.path() / "out", /*every_steps=*/1);
        samples += task.samples;
      });
      return samples.load();
    };
    const auto expect_rows = [&](std::int64_t rows) {
      expect_same(load_predictions(dir.path() / "out"), first_rows(expected(53), rows));
      EXPECT_EQ(is_marked_as_limited(dir.path() / "out"), rows < 53);
    };
    EXPECT_EQ(predict(first, 2), 12);
    expect_rows(12);
    EXPECT_EQ(predict(second, 2), 0) << "it is left as it is";
    EXPECT_THAT(message_of([&] { predict(first, 5, /*fails_at=*/2); }), HasSubstr("the power is gone"));
    EXPECT_THAT(message_of([&] { load_predictions(dir.path() / "out"); }), HasSubstr("is not complete"));
    EXPECT_EQ(predict(second, 5), 12) << "steps 4 and 5";
    expect_rows(30);
    EXPECT_EQ(predict(first, 4), 0) << "it has more already";
    expect_rows(30);
    EXPECT_EQ(predict(second, 0), 23) << "the rest";
    expect_rows(53);
    EXPECT_EQ(predict(first, 4), 0);
    expect_rows(53);
  }
}

TEST(PredictionLimit, CountsStepsOfOneSize) {
  const auto predict = [](const std::filesystem::path& directory, int ranks, TrainConfig config, int fails_at = 0) {
    thread_world(ranks, [&](World& world) {
      TrainConfig of_rank = config;
      of_rank.precision = Precision::fp64;
      of_rank.predict.max_batches = 4;
      const Plan plan = plan_for(ranks, in_memory(of_rank));
      Predictor task;
      task.fails_at = fails_at;
      DataLoader data(tiny_data(53), plan.eval_loader, world);
      Trainer(plan, world).predict(task, data, directory, /*every_steps=*/1);
    });
  };
  struct Case {
    int first;  // ranks
    int second;
    std::int64_t global_batch;  // of the training; 0: not given
    std::int64_t batch_size;    // with which the second start continues
    bool needs_global_batch;
  };
  for (const auto& [first, second, global_batch, batch_size, needs_global_batch] :
       {Case{1, 3, 0, 1, false}, Case{4, 1, 0, 12, false}, Case{2, 4, 0, 2, true}, Case{4, 2, 48, 6, false}}) {
    SCOPED_TRACE(fmt::format("{} ranks, then {}", first, second));
    const TempDir dir;
    const CapturedStderr silent;
    const std::filesystem::path out = dir.path() / "out";
    const TrainConfig config{.batch_size = 3, .global_batch_size = global_batch};
    EXPECT_THAT(message_of([&] { predict(out, first, config, /*fails_at=*/3); }), HasSubstr("the power is gone"));
    const std::int64_t of_step = 3 * first;
    const std::string refused = message_of<CheckpointError>([&] { predict(out, second, config); });
    EXPECT_THAT(refused, HasSubstr(fmt::format("has 2 steps with a global batch of {}, and now it is {}: "
                                               "--predict.max_batches counts steps",
                                               of_step, 3 * second)));
    EXPECT_THAT(refused, HasSubstr(needs_global_batch ? fmt::format("use --batch_size {} --global_batch_size {}, or",
                                                                    batch_size, of_step)
                                                      : fmt::format("use --batch_size {}, or", batch_size)));
    predict(out, second, {.batch_size = batch_size, .global_batch_size = needs_global_batch ? of_step : global_batch});
    expect_same(load_predictions(out), first_rows(expected(53), 4 * of_step));
  }
}

TEST(PredictionLimit, IsReachedAlsoIfAStopComesInItsLastStep) {
  const TempDir dir;
  const CapturedStderr silent;
  World world = World::single(c10::kCPU);
  const Plan plan = limited_plan(1, 2);
  DataLoader data(tiny_data(53), plan.eval_loader, world);
  TrainControl control;
  Trainer trainer(plan, world, control);
  trainer.on(Stage::predict_batch_end, [&](const StageContext& at) {
    if (at.batch_number == 2) {
      control.request_stop("enough", StopKind::terminate);
    }
  });
  Predictor task;
  EXPECT_THROW(trainer.predict(task, data, dir.path() / "out", /*every_steps=*/1), Stopped);
  EXPECT_EQ(task.samples, 12);
  Predictor later;
  Trainer(plan, world).predict(later, data, dir.path() / "out", /*every_steps=*/1);
  EXPECT_EQ(later.samples, 0);
  expect_same(load_predictions(dir.path() / "out"), first_rows(expected(53), 12));
}

// The recipe "Predictions".
TEST(Prediction, InADirectoryOfItsStepWorksInEveryStart) {
  const TempDir dir;
  std::int64_t step = 0;
  const auto start = [&](std::int64_t epochs) {
    Session session = Session::single(
        {.compute_setup = ComputeSetup::cpu, .max_epochs = epochs, .batch_size = 4, .run_dir = dir.path() / "run"});
    Predictor task;
    DataLoader train(tiny_data(8), session.plan.loader, session.world);
    DataLoader samples(tiny_data(8), session.plan.eval_loader, session.world);
    Trainer trainer(session);
    step = trainer.fit(task, train).state.step;
    const std::string directory = run_directory(session.plan.config) + "/predictions-" + std::to_string(step);
    trainer.predict(task, samples, directory);
    const std::int64_t predicted = task.samples;
    expect_equal(load_predictions(directory), trainer.predict(task, samples));
    return predicted;
  };
  EXPECT_EQ(start(1), 8);
  EXPECT_EQ(step, 2);
  EXPECT_EQ(start(1), 0) << "nothing has changed";
  EXPECT_EQ(start(2), 8) << "of other weights";
  EXPECT_EQ(step, 4);
}

TEST(Prediction, RefusesResultsInAnotherOrder) {
  World world = World::single(c10::kCPU);
  TrainConfig config = in_memory({});
  config.batch_size = 4;
  const Plan plan = plan_for(1, config);
  Swapping task;
  DataLoader data(tiny_data(8), plan.eval_loader, world);
  EXPECT_THAT(message_of([&] { Trainer(plan, world).predict(task, data); }),
              testing::HasSubstr("return the same tensors in the same order for every batch"));
}

}  // namespace
}  // namespace lockstep
