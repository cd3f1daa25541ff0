// What the Trainer costs per step, beside the same loop written by hand with the same optimizer, and beside forward and
// backward alone. "all on": with clipping, a schedule, an average of the weights and a metric, in both. "memory
// returned": with memory.keep_freed off. "plain": the loop by hand clips and averages with plain loops. "watched": a
// metric, early stopping by it, and every 50 steps a report with the times of the phases of each rank; its ratio is to
// the Trainer.
//
// One process, one thread. A round runs every contestant once in random order; ratios are formed within a round.
// Reported: the smallest and the median time of a step, and the median ratio to the hand-written loop that does the
// same with a 95 % bootstrap interval.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "one_batch.h"

namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int layers, std::int64_t width) {
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(register_module(fmt::format("l{}", i), torch::nn::Linear(width, width)));
    }
    head_ = register_module("head", torch::nn::Linear(width, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers_) {
      x = torch::relu(layer(x));
    }
    return head_(x);
  }
  std::vector<torch::nn::Linear> layers_;
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}

double run_trainer(lockstep::Session& session, Net net, const lockstep::Batch& batch, std::int64_t steps) {
  auto task = lockstep::make_task(std::move(net), loss_of, lockstep::adamw());
  OneBatch data(batch, steps);
  lockstep::Trainer(session).fit(*task, data);
  return data.seconds();
}

double run_hand_loop(Net net, const lockstep::Batch& batch, std::int64_t steps) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> vectors;
  for (const auto& parameter : net->parameters()) {
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  }
  groups.emplace_back(matrices);
  groups.emplace_back(vectors);
  const auto optimizer = lockstep::adamw()(std::move(groups));
  OneBatch data(batch, steps);
  while (const auto* step = data.next()) {
    optimizer->zero_grad();
    const auto loss = loss_of(net->forward(step->micro[0].input), step->micro[0].target);
    loss.backward();
    optimizer->step();
  }
  return data.seconds();
}

constexpr double kLongestNorm = 0.5;
constexpr double kDecay = 0.999;
constexpr double kSteps = 1e6;  // of the cosine

torch::Tensor accuracy_of(const torch::Tensor& output, const torch::Tensor& target) {
  return output.argmax(1).eq(target).to(torch::kFloat).mean();
}

class MeasuredTask final : public lockstep::Task {
 public:
  explicit MeasuredTask(Net net) : net_(std::move(net)) {}
  torch::nn::Module& module() override { return *net_; }
  std::vector<lockstep::OptimizerSpec> optimizers() override {
    return {{lockstep::adamw(), fmt::format("cosine:for={}", static_cast<std::int64_t>(kSteps))}};
  }
  lockstep::StepOutput training_step(const lockstep::Batch& batch) override {
    const auto output = net_->forward(batch.input);
    lockstep::StepOutput step(loss_of(output, batch.target));
    const torch::NoGradGuard no_grad;
    step.metrics.emplace_back("accuracy", accuracy_of(output, batch.target));
    return step;
  }

 private:
  Net net_;
};

double run_trainer_with_metric(lockstep::Session& session, Net net, const lockstep::Batch& batch, std::int64_t steps) {
  MeasuredTask task(std::move(net));
  OneBatch data(batch, steps);
  lockstep::Trainer(session).fit(task, data);
  return data.seconds();
}

double run_trainer_with_all(lockstep::Session& session, Net net, const lockstep::Batch& batch, std::int64_t steps) {
  MeasuredTask task(std::move(net));
  OneBatch data(batch, steps);
  lockstep::Trainer trainer(session);
  trainer.add(std::make_shared<lockstep::WeightAverage>(lockstep::WeightAverageOptions{.decay = kDecay}));
  trainer.fit(task, data);
  return data.seconds();
}

/// How a loop by hand clips gradients and averages weights.
struct Arithmetic {
  void (*clip)(std::vector<torch::Tensor>& gradients);
  void (*average)(std::vector<torch::Tensor>& average, const std::vector<torch::Tensor>& parameters);
};

constexpr Arithmetic kForeach{
    .clip =
        [](std::vector<torch::Tensor>& gradients) {
          const auto norm = torch::stack(torch::_foreach_norm(gradients)).norm();
          torch::_foreach_mul_(gradients, (kLongestNorm / (norm + 1e-6)).clamp_max(1));
        },
    .average =
        [](std::vector<torch::Tensor>& average, const std::vector<torch::Tensor>& parameters) {
          torch::_foreach_lerp_(average, parameters, 1 - kDecay);
        }};

/// What is fastest on one CPU: plain loops, compiled for it.
constexpr Arithmetic kPlainLoops{
    .clip =
        [](std::vector<torch::Tensor>& gradients) {
          double squares = 0;
          for (const auto& gradient : gradients) {
            constexpr std::int64_t kLanes = 8;  // so that additions do not wait for each other
            std::array<double, kLanes> sums{};
            const float* const values = gradient.const_data_ptr<float>();
            std::int64_t i = 0;
            for (; i + kLanes <= gradient.numel(); i += kLanes) {
              for (std::int64_t lane = 0; lane < kLanes; ++lane) {
                const double value = values[i + lane];
                sums[static_cast<std::size_t>(lane)] += value * value;
              }
            }
            for (; i < gradient.numel(); ++i) {
              sums[0] += static_cast<double>(values[i]) * values[i];
            }
            squares = std::accumulate(sums.begin(), sums.end(), squares);
          }
          const auto factor = static_cast<float>(std::min(1.0, kLongestNorm / (std::sqrt(squares) + 1e-6)));
          for (auto& gradient : gradients) {
            float* const values = gradient.mutable_data_ptr<float>();
            for (std::int64_t i = 0; i < gradient.numel(); ++i) {
              values[i] *= factor;
            }
          }
        },
    .average =
        [](std::vector<torch::Tensor>& average, const std::vector<torch::Tensor>& parameters) {
          for (std::size_t tensor = 0; tensor < average.size(); ++tensor) {
            float* const to = average[tensor].mutable_data_ptr<float>();
            const float* const from = parameters[tensor].const_data_ptr<float>();
            for (std::int64_t i = 0; i < average[tensor].numel(); ++i) {
              to[i] += static_cast<float>(1 - kDecay) * (from[i] - to[i]);
            }
          }
        }};

double run_hand_loop_with_all(Net net, const lockstep::Batch& batch, std::int64_t steps, const Arithmetic& arithmetic) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->parameters());
  const auto optimizer = lockstep::adamw()(std::move(groups));
  auto& options = optimizer->param_groups().front().options();
  const double lr = options.get_lr();
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> average;
  for (const auto& parameter : net->parameters()) {
    parameters.push_back(parameter.detach());
    average.push_back(parameter.detach().clone());
  }
  const std::vector<torch::Tensor> leaves = net->parameters();
  auto loss_sum = torch::zeros({}, torch::kDouble);
  auto accuracy_sum = torch::zeros({}, torch::kDouble);
  OneBatch data(batch, steps);
  std::int64_t count = 0;
  while (const auto* step = data.next()) {
    const lockstep::Batch& micro = step->micro[0];
    optimizer->zero_grad();
    const auto output = net->forward(micro.input);
    const auto loss = loss_of(output, micro.target);
    loss.backward();
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    for (const auto& leaf : leaves) {
      gradients.push_back(leaf.grad());
    }
    arithmetic.clip(gradients);
    options.set_lr(lr * (1 + std::cos(M_PI * static_cast<double>(count++) / kSteps)) / 2);
    optimizer->step();
    arithmetic.average(average, parameters);
    loss_sum.add_(loss, micro.samples);
    accuracy_sum.add_(accuracy_of(output, micro.target), micro.samples);
  }
  return data.seconds();
}

double run_floor(Net net, const lockstep::Batch& batch, std::int64_t steps) {
  OneBatch data(batch, steps);
  while (const auto* step = data.next()) {
    for (auto& parameter : net->parameters()) {
      parameter.mutable_grad().reset();
    }
    loss_of(net->forward(step->micro[0].input), step->micro[0].target).backward();
  }
  return data.seconds();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  at::set_num_threads(1);
  lockstep::set_log_level(lockstep::LogLevel::off);
  lockstep::TrainConfig config{.compute_setup = lockstep::ComputeSetup::cpu,
                               .max_epochs = 0,
                               .max_steps = 1'000'000'000,
                               .checkpoint = {.enabled = false},
                               .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}};
  lockstep::Session session = lockstep::Session::single(config);
  config.optim.max_grad_norm = kLongestNorm;
  lockstep::Session clipping = lockstep::Session::single(config);
  config.optim.max_grad_norm = 0;
  config.memory.keep_freed = false;
  lockstep::Session returning = lockstep::Session::single(config);
  config.memory.keep_freed = true;
  const auto directory = std::filesystem::temp_directory_path() / "lockstep_step_overhead";
  std::filesystem::remove_all(directory);
  config.early_stop = {.metric = "accuracy", .mode = lockstep::MonitorMode::max, .patience = 1'000'000'000};
  config.report = {.every_steps = 50, .progress = false, .step_times = true};
  std::mt19937 random(1);
  struct Model {
    const char* name;
    int layers;
    std::int64_t width;
    std::int64_t steps;  // of a contestant in a round: short, so that a busy moment of the machine meets all of them
    int rounds;
  };
  for (const auto& [name, layers, width, steps, rounds] :
       {Model{.name = "MLP, 3 layers of 32, batch 16", .layers = 2, .width = 32, .steps = 300, .rounds = 60},
        Model{.name = "deep, 100 layers of 64, batch 16", .layers = 100, .width = 64, .steps = 25, .rounds = 60},
        Model{.name = "MLP, 4 layers of 512, batch 16", .layers = 4, .width = 512, .steps = 100, .rounds = 30},
        Model{.name = "large, 4 layers of 2048, batch 16", .layers = 4, .width = 2048, .steps = 5, .rounds = 20}}) {
    const lockstep::Batch batch{.input = torch::randn({16, width}), .target = torch::randint(10, {16}), .samples = 16};
    config.run_dir = directory / std::to_string(width);  // a run has one model
    lockstep::Session watching = lockstep::Session::single(config);
    at::set_num_threads(1);  // the session has taken its share of the cores
    const std::map<std::string, std::function<double()>> contestants{
        {"trainer", [&] { return run_trainer(session, Net(layers, width), batch, steps); }},
        {"memory returned", [&] { return run_trainer(returning, Net(layers, width), batch, steps); }},
        {"hand loop", [&] { return run_hand_loop(Net(layers, width), batch, steps); }},
        {"watched", [&] { return run_trainer_with_metric(watching, Net(layers, width), batch, steps); }},
        {"floor", [&] { return run_floor(Net(layers, width), batch, steps); }},
        {"trainer, all on", [&] { return run_trainer_with_all(clipping, Net(layers, width), batch, steps); }},
        {"hand loop, all on", [&] { return run_hand_loop_with_all(Net(layers, width), batch, steps, kForeach); }},
        {"plain, all on", [&] { return run_hand_loop_with_all(Net(layers, width), batch, steps, kPlainLoops); }}};
    std::map<std::string, std::vector<double>> seconds;
    std::vector<std::string> order;
    for (const auto& [contestant, run] : contestants) {
      order.push_back(contestant);
    }
    for (int round = 0; round < rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const auto& contestant : order) {
        seconds[contestant].push_back(contestants.at(contestant)());
      }
    }
    fmt::print("{} ({} rounds of {} steps)\n", name, rounds, steps);
    for (const std::string contestant : {"floor", "hand loop", "trainer", "memory returned", "hand loop, all on",
                                         "plain, all on", "trainer, all on", "watched"}) {
      const std::string peer = contestant == "watched"          ? "trainer"
                               : contestant.ends_with("all on") ? "hand loop, all on"
                                                                : "hand loop";
      std::vector<double> ratios;
      for (std::size_t i = 0; i < static_cast<std::size_t>(rounds); ++i) {
        ratios.push_back(seconds[contestant][i] / seconds[peer][i]);
      }
      std::vector<double> resampled;
      for (int sample = 0; sample < 2000; ++sample) {
        std::vector<double> draw;
        for (int i = 0; i < rounds; ++i) {
          draw.push_back(ratios[std::uniform_int_distribution<std::size_t>(0, ratios.size() - 1)(random)]);
        }
        resampled.push_back(median(draw));
      }
      std::sort(resampled.begin(), resampled.end());
      const auto& all = seconds[contestant];
      fmt::print("  {:17} min {:8.1f} us  median {:8.1f} us  ratio {:.3f} [{:.3f}, {:.3f}]\n", contestant,
                 1e6 * *std::min_element(all.begin(), all.end()), 1e6 * median(all), median(ratios), resampled[50],
                 resampled[1949]);
    }
    std::fflush(stdout);
  }
  std::filesystem::remove_all(directory);
}
