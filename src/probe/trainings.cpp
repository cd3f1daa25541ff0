#include "probe/trainings.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/dataset.h>
#include <lockstep/trainer/trainer.h>

#include "base/duration.h"
#include "base/median.h"

namespace lockstep {
namespace {

constexpr std::int64_t kInputs = 16;
constexpr std::int64_t kSteps = 12;
constexpr double kDropout = 0.1;

torch::nn::Sequential make_net(double dropout) {
  torch::nn::Sequential net(torch::nn::Linear(kInputs, 32), torch::nn::Tanh(), torch::nn::Dropout(dropout),
                            torch::nn::Linear(32, 1));
  net->to(at::kDouble);
  return net;
}

/// Its size divides by no batch, so that the last step of an epoch is smaller.
std::shared_ptr<Dataset> make_data(const Plan& plan) {
  const std::int64_t samples = 3 * plan.loader.batch.global_batch_size + 5;
  const auto input = at::arange(samples * kInputs, at::kDouble).mul(0.37).sin().reshape({samples, kInputs});
  return tensor_dataset(input, input.sum(1, true).tanh());
}

struct Training {
  torch::nn::Sequential net{};
  std::int64_t first_step = 0;  // after that of the checkpoint from which it resumed
};

using OnStep = std::function<void(const StageContext&)>;

/// A fit in a run directory of its own, up to `steps`.
Training train(Plan plan, World& world, std::string_view name, std::int64_t steps, double dropout,
               const OnStep& on_step = {}) {
  plan.config.run_dir += fmt::format("/{}", name);
  plan.config.max_steps = steps;
  at::manual_seed(plan.config.seed);
  Training training{.net = make_net(dropout)};
  const auto task = make_task(
      training.net, [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); },
      adamw({.lr = 0.01}));
  DataLoader data(make_data(plan), plan.loader, world);
  Trainer trainer(plan, world, TrainControl());
  trainer.on(Stage::fit_start, [&](const StageContext& at) { training.first_step = at.state.step; });
  if (on_step) {
    trainer.on(Stage::step_end, on_step, {.is_light = true});
  }
  trainer.fit(*task, data);
  return training;
}

std::string bytes_of(const torch::nn::Module& module) {
  std::string bytes;
  for (const auto& [name, tensor] : module_tensors(module)) {
    const at::Tensor host = tensor.cpu().contiguous();
    bytes.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  }
  return bytes;
}

/// Equal numbers: equal weights, bit for bit.
std::string digest(const torch::nn::Module& module) {
  return fmt::format("{:016x}", std::hash<std::string>{}(bytes_of(module)));
}

/// The largest difference of a parameter, relative to its largest element.
double distance(const torch::nn::Module& a, const torch::nn::Module& b) {
  double largest = 0;
  const auto left = module_tensors(a);
  const auto right = module_tensors(b);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto difference = (left[i].second - right[i].second.to(left[i].second.device())).abs().max() /
                            right[i].second.abs().max().to(left[i].second.device());
    const double found = difference.item<double>();
    largest = std::isfinite(found) ? std::max(largest, found) : found;
  }
  return largest;
}

/// The plan of one rank that trains the same global batches. It saves nothing.
Plan alone(const Plan& plan) {
  TrainConfig config = plan.config;
  config.nprocs = 1;
  config.devices = {};
  config.backend = Backend::automatic;
  config.global_batch_size = plan.loader.batch.global_batch_size;
  config.batch_size = config.global_batch_size;
  config.accumulation = 1;
  return Session::single(config).plan;
}

/// As an image that is decoded keeps a core busy, in plain code that LibTorch's threads do not share.
Batch calculated_sample(std::int64_t id, std::uint64_t) {
  constexpr int kSines = 20'000;  // about a quarter of a millisecond
  double sum = 0;
  for (int i = 0; i < kSines; ++i) {
    sum += std::sin(static_cast<double>(id + i));
  }
  return {.input = at::full({1}, sum)};
}

Plan without_checkpoints(Plan plan) {
  plan.config.checkpoint.enabled = false;
  return plan;
}

}  // namespace

void check_training(Session& session, Results& results) {
  constexpr double kLimit = 1e-10;  // docs/testing.md
  World& world = session.world;
  double found = 0;
  std::string weights;
  results.check("training", [&]() -> std::string {
    const Plan plan = without_checkpoints(session.plan);
    const double dropout = results.is_falsified("training") ? 0.5 : 0;
    const Training all = train(plan, world, "training", kSteps, dropout);
    weights = digest(*all.net);
    const std::vector<std::string> replicas = world.gather(weights);
    if (std::ranges::count(replicas, weights) != world.size()) {
      return "after a training the ranks have different weights";
    }
    if (!world.is_main()) {
      return {};
    }
    World own = World::single(world.device());
    const Training one = train(alone(plan), own, "alone", kSteps, 0);
    found = distance(*all.net, *one.net);
    return found <= kLimit ? ""
                           : fmt::format(
                                 "after {} steps the weights differ from those of one rank by {:.1e}, "
                                 "expected at most {:.0e}",
                                 kSteps, found, kLimit);
  });
  results.measured("training", {{"steps", kSteps}, {"difference", found}, {"limit", kLimit}, {"weights", weights}});
}

void measure_step(Session& session, Results& results) {
  constexpr std::int64_t kWarmUp = 10;
  constexpr std::int64_t kMeasured = 100;
  Plan plan = without_checkpoints(session.plan);
  plan.config.report.every_steps = 2;
  plan.config.report.jsonl = true;
  plan.config.report.csv = true;
  // A report is written after the step, so every second interval has one.
  std::vector<double> intervals[2];
  auto last = std::chrono::steady_clock::now();
  train(plan, session.world, "steps", kWarmUp + kMeasured, 0, [&](const StageContext& at) {
    if (at.state.step > kWarmUp) {
      intervals[at.state.step % 2].push_back(seconds_since(last));
    }
    last = std::chrono::steady_clock::now();
  });
  const double step = median(intervals[0]);
  results.measured("step", {{"seconds", step}, {"report_seconds", std::max(0.0, median(intervals[1]) - step)}});
}

void measure_threads(Session& session, Results& results) {
  constexpr int kRepeats = 7;
  constexpr std::int64_t kSize = 512;
  const int threads_before = at::get_num_threads();
  const at::Tensor a = at::rand({kSize, kSize});
  Json times = Json::array();
  for (int threads = threads_before; threads >= 1; threads /= 2) {
    at::set_num_threads(threads);
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      session.world.barrier("threads");
      const auto start = std::chrono::steady_clock::now();
      at::mm(a, a);
      seconds.push_back(seconds_since(start));
    }
    times.push_back({{"threads", threads}, {"seconds", median(std::move(seconds))}});
  }
  at::set_num_threads(threads_before);
  results.measured("threads", {{"times", std::move(times)}});
}

void measure_workers(Session& session, Results& results) {
  constexpr int kMostWorkers = 8;
  constexpr std::int64_t kSize = 256;
  constexpr int kRounds = 2;
  const at::Tensor a = at::rand({kSize, kSize}, session.world.device());
  const auto step = [&] { at::mm(a, a)[0][0].item<float>(); };
  const auto time_of = [](const auto& work) {
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      work();
      seconds.push_back(seconds_since(start));
    }
    return median(std::move(seconds));
  };
  const LoaderPlan& loader = session.plan.loader;
  const auto data = sample_dataset(loader.batch.global_batch_size, calculated_sample);
  const std::vector<std::int64_t> ids(static_cast<std::size_t>(loader.batch.batch_size), 0);
  session.world.barrier("workers");
  const double step_s = time_of(step);
  const double batch_s = time_of([&] { data->get(ids, {}); });

  std::map<int, double> best;
  for (int round = 0; round < kRounds; ++round) {  // another program may disturb one of them
    for (int workers = 0; workers <= std::clamp(session.plan.threads_per_rank, 2, kMostWorkers);
         workers = std::max(1, 2 * workers)) {
      const std::int64_t steps = 10 + 4 * workers;  // many more than can be ready before the first one
      LoaderPlan plan = loader;
      plan.data.workers = workers;
      plan.data.prefetch = std::max(loader.data.prefetch, workers);
      DataLoader batches(data, plan, session.world);
      const auto take = [&](std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          batches.next();
          step();
        }
      };
      take(2 + workers);
      session.world.barrier("workers");
      const auto start = std::chrono::steady_clock::now();
      take(steps);
      const double seconds = seconds_since(start) / static_cast<double>(steps);
      const auto [known, is_new] = best.emplace(workers, seconds);
      known->second = std::min(known->second, seconds);
    }
  }
  Json times = Json::array();
  for (const auto& [workers, seconds] : best) {
    times.push_back({{"workers", workers}, {"seconds", seconds}});
  }
  results.measured("workers", {{"default", loader.data.workers},
                               {"step_seconds", step_s},
                               {"batch_seconds", batch_s},
                               {"times", std::move(times)}});
}

void save_half(Session& session, Results& results) {
  constexpr std::int64_t kBytes = 32 << 20;
  const Training whole = train(session.plan, session.world, "whole", kSteps, kDropout);
  train(session.plan, session.world, "half", kSteps / 2, kDropout);
  results.measured("whole", {{"weights", digest(*whole.net)}});

  CheckpointStore store(session.plan.config.run_dir + "/disk", session.plan.config.checkpoint, session.world);
  CheckpointContents contents;
  contents.tensors["data"] = {{"data", at::rand({kBytes / static_cast<std::int64_t>(sizeof(float))})}};
  contents.per_rank = rng_state(session.world.device());
  std::vector<double> seconds;
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto start = std::chrono::steady_clock::now();
    store.save(step, contents);
    seconds.push_back(seconds_since(start));
  }
  results.measured("save", {{"bytes", kBytes}, {"seconds", median(std::move(seconds))}});
}

void resume_half(Session& session, Results& results) {
  const double dropout = results.is_falsified("resume") ? 0.5 : kDropout;
  const Training half = train(session.plan, session.world, "half", kSteps, dropout);
  results.measured("resumed",
                   {{"weights", digest(*half.net)}, {"first_step", half.first_step}, {"expected_step", kSteps / 2}});
}

void lose_a_rank(Session& session, Results& results) {
  constexpr std::int64_t kLastStep = 3;
  const bool is_lost = session.world.rank() == session.world.size() - 1;
  results.measured("lost", {{"rank", session.world.size() - 1}, {"step", kLastStep}});
  session.world.barrier("the line above is written");
  train(session.plan, session.world, "lost", kSteps, 0, [&](const StageContext& at) {
    if (is_lost && at.state.step == kLastStep) {
      std::raise(SIGKILL);
    }
  });
}

}  // namespace lockstep
