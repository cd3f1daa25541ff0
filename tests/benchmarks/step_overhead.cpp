// What the Trainer costs per step, beside the same loop written by hand with the same optimizer, and beside forward and
// backward alone.
//
// One process, one thread. A round runs every contestant once in random order; ratios are formed within a round.
// Reported: the smallest and the median time of a step, and the median ratio to the hand-written loop with a 95 %
// bootstrap interval.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWarmUp = 50;

// The same batch again and again, and the time between two of its steps.
class OneBatch final : public lockstep::BatchSource {
 public:
  OneBatch(lockstep::Batch batch, std::int64_t steps) : steps_(steps) {
    step_.local_samples = step_.global_samples = batch.samples;
    step_.micro.push_back(std::move(batch));
  }
  const lockstep::StepBatches* next() override {
    if (served_ == kWarmUp) {
      start_ = Clock::now();
    }
    if (served_++ == kWarmUp + steps_) {
      seconds_ = std::chrono::duration<double>(Clock::now() - start_).count() / static_cast<double>(steps_);
      return nullptr;
    }
    return &step_;
  }
  std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
  lockstep::LoaderPosition position() const override { return {}; }
  void seek(const lockstep::LoaderPosition&) override {}
  double seconds() const { return seconds_; }

 private:
  std::int64_t steps_;
  lockstep::StepBatches step_;
  std::int64_t served_ = 0;
  Clock::time_point start_{};
  double seconds_ = 0;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int layers, std::int64_t width) {
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(width, width)));
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
  lockstep::Session session =
      lockstep::Session::single({.compute_setup = lockstep::ComputeSetup::cpu,
                                 .max_epochs = 0,
                                 .max_steps = 1'000'000'000,
                                 .checkpoint = {.enabled = false},
                                 .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}});
  at::set_num_threads(1);
  std::mt19937 random(1);
  struct Model {
    const char* name;
    int layers;
    std::int64_t width;
    std::int64_t steps;  // of a contestant in a round: short, so that a busy moment of the machine meets all of them
  };
  for (const auto& [name, layers, width, steps] :
       {Model{.name = "MLP, 3 layers of 32, batch 16", .layers = 2, .width = 32, .steps = 300},
        Model{.name = "deep, 100 layers of 64, batch 16", .layers = 100, .width = 64, .steps = 25}}) {
    const lockstep::Batch batch{.input = torch::randn({16, width}), .target = torch::randint(10, {16}), .samples = 16};
    const std::map<std::string, std::function<double()>> contestants{
        {"trainer", [&] { return run_trainer(session, Net(layers, width), batch, steps); }},
        {"hand loop", [&] { return run_hand_loop(Net(layers, width), batch, steps); }},
        {"floor", [&] { return run_floor(Net(layers, width), batch, steps); }}};
    constexpr int kRounds = 60;
    std::map<std::string, std::vector<double>> seconds;
    std::vector<std::string> order{"trainer", "hand loop", "floor"};
    for (int round = 0; round < kRounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const auto& contestant : order) {
        seconds[contestant].push_back(contestants.at(contestant)());
      }
    }
    fmt::print("{} ({} rounds of {} steps)\n", name, kRounds, steps);
    for (const auto& contestant : {"floor", "hand loop", "trainer"}) {
      std::vector<double> ratios;
      for (std::size_t i = 0; i < kRounds; ++i) {
        ratios.push_back(seconds[contestant][i] / seconds["hand loop"][i]);
      }
      std::vector<double> resampled;
      for (int sample = 0; sample < 2000; ++sample) {
        std::vector<double> draw;
        for (int i = 0; i < kRounds; ++i) {
          draw.push_back(ratios[std::uniform_int_distribution<std::size_t>(0, kRounds - 1)(random)]);
        }
        resampled.push_back(median(draw));
      }
      std::sort(resampled.begin(), resampled.end());
      const auto& all = seconds[contestant];
      fmt::print("  {:10} min {:8.1f} us  median {:8.1f} us  ratio {:.3f} [{:.3f}, {:.3f}]\n", contestant,
                 1e6 * *std::min_element(all.begin(), all.end()), 1e6 * median(all), median(ratios), resampled[50],
                 resampled[1949]);
    }
    std::fflush(stdout);
  }
}
