// A rank of exchange_bench.py and step_bench.py: trains an MLP or a CNN on the same batch. The main rank prints the
// time of each step in nanoseconds, and the last loss. The work is that of peers/step_model.py.
#include <cstdint>
#include <cstdio>

#include <fmt/format.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "one_batch.h"

int main(int argc, char** argv) {
  std::int64_t layers = 2;
  std::int64_t width = 32;
  std::int64_t steps = 300;
  bool images = false;
  lockstep::Flags flags;
  flags.add("layers", &layers, "hidden layers").add("width", &width, "of each").add("steps", &steps, "to measure");
  flags.add("images", &images, "the layers are convolutions, each followed by pooling, on images of 32x32");
  const lockstep::TrainConfig defaults{
      .compute_setup = lockstep::ComputeSetup::cpu, .max_epochs = 0, .max_steps = 1'000'000'000, .barebones = true};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    torch::nn::Sequential net;
    for (std::int64_t i = 0; i < layers; ++i) {
      if (images) {
        net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(i == 0 ? 3 : width, width, 3).padding(1)));
        net->push_back(torch::nn::MaxPool2d(2));
      } else {
        net->push_back(torch::nn::Linear(width, width));
      }
      net->push_back(torch::nn::ReLU());
    }
    net->push_back(torch::nn::Flatten());
    const std::int64_t features = images ? width * (32 >> layers) * (32 >> layers) : width;
    net->push_back(torch::nn::Linear(features, 10));
    const auto task = lockstep::make_task(
        net, [](const auto& output, const auto& target) { return torch::cross_entropy_loss(output, target); },
        lockstep::adamw({.weight_decay = 0}));
    const at::Tensor input = images ? torch::randn({16, 3, 32, 32}) : torch::randn({16, width});
    OneBatch data({.input = input, .target = torch::randint(10, {16}), .samples = 16}, steps, session.world.size());
    at::Tensor loss;
    lockstep::Trainer trainer(session);
    trainer.on(lockstep::Stage::fit_end, [&](const lockstep::StageContext& at) { loss = at.step.loss; });
    trainer.fit(*task, data);
    if (session.world.is_main()) {
      for (const double time : data.times()) {
        fmt::print("step {:.0f}\n", 1e9 * time);
      }
      fmt::print("loss {}\n", loss.item<double>());
      std::fflush(stdout);
    }
  });
}
