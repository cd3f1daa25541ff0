// A rank of exchange_bench.py and step_bench.py: trains an MLP on the same batch. The main rank prints the time of each
// step in nanoseconds, and the last loss. The work is that of peers/exchange.py and peers/stepping.py.
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
  lockstep::Flags flags;
  flags.add("layers", &layers, "hidden layers").add("width", &width, "of each").add("steps", &steps, "to measure");
  const lockstep::TrainConfig defaults{
      .compute_setup = lockstep::ComputeSetup::cpu, .max_epochs = 0, .max_steps = 1'000'000'000, .barebones = true};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    torch::nn::Sequential net;
    for (std::int64_t i = 0; i < layers; ++i) {
      net->push_back(torch::nn::Linear(width, width));
      net->push_back(torch::nn::ReLU());
    }
    net->push_back(torch::nn::Linear(width, 10));
    const auto task = lockstep::make_task(
        net, [](const auto& output, const auto& target) { return torch::cross_entropy_loss(output, target); },
        lockstep::adamw({.weight_decay = 0}));
    OneBatch data({.input = torch::randn({16, width}), .target = torch::randint(10, {16}), .samples = 16}, steps,
                  session.world.size());
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
