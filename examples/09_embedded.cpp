// lockstep inside a program that has a main loop and arguments of its own. A slow function is replaced by a network: in
// each round the program evaluates the function at new points, trains the network with all points so far, and looks
// whether it is good enough. There is no lockstep::run: the library does not parse arguments, handle signals, print a
// table or end the process.
//
//   ./09_embedded 0.05                                      until the error is below 0.05, with one rank
//   lockstep run --nproc-per-node 2 -- ./09_embedded 0.05   ranks of any launcher: torchrun, Slurm, MPI, ...
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

/// The slow function. Shape: [N, 1] -> [N, 1].
torch::Tensor simulate(const torch::Tensor& x) { return torch::sin(3 * x) * torch::exp(-x * x); }

/// New points of this rank and their values, from all ranks together. Shape: [N, 2].
torch::Tensor measure(lockstep::World& world, std::int64_t count, torch::Generator& random) {
  const auto x = 4 * torch::rand({count / world.size(), 1}, random) - 2;
  return world.all_gather(torch::cat({x, simulate(x)}, 1).to(world.device())).cpu();
}

int train_until(double tolerance) {
  constexpr int kRounds = 10;
  const lockstep::TrainConfig config{.max_epochs = 0,
                                     .max_steps = 200,
                                     .global_batch_size = 32,
                                     .checkpoint = {.enabled = false},
                                     .report = {.jsonl = false, .csv = false}};
  const lockstep::LogScope log([](lockstep::LogLevel, std::string_view message) {  // into the log of this program
    std::fprintf(stderr, "simulation: %.*s\n", static_cast<int>(message.size()), message.data());
  });
  lockstep::Session session = lockstep::Session::connect(config);  // one rank if no launcher has started this process
  lockstep::World& world = session.world;

  namespace nn = torch::nn;
  nn::Sequential net(nn::Linear(1, 32), nn::Tanh(), nn::Linear(32, 32), nn::Tanh(), nn::Linear(32, 1));
  const auto task = lockstep::make_task(
      net, [](const auto& y, const auto& target) { return torch::mse_loss(y, target); }, lockstep::adam({.lr = 5e-3}));

  torch::Generator random = torch::make_generator<torch::CPUGeneratorImpl>(static_cast<std::uint64_t>(world.rank()));
  const auto grid = torch::linspace(-2, 2, 101).unsqueeze(1);
  torch::Tensor points;
  for (int round = 1; round <= kRounds; ++round) {
    const auto more = measure(world, 64, random);
    points = points.defined() ? torch::cat({points, more}) : more;

    lockstep::DataLoader data(lockstep::tensor_dataset(points.slice(1, 0, 1), points.slice(1, 1, 2)),
                              session.plan.loader, world);
    lockstep::Trainer(session.plan, world).fit(*task, data);  // the weights continue, the optimizer begins again

    torch::NoGradGuard no_grad;
    const auto error = (net->forward(grid.to(world.device())).cpu() - simulate(grid)).abs().max().item<double>();
    if (world.is_main()) {
      std::printf("round %d: %d points, largest error %.3f\n", round, static_cast<int>(points.size(0)), error);
    }
    if (error < tolerance) {  // the weights are the same on all ranks, and so is the decision
      return EXIT_SUCCESS;
    }
  }
  return EXIT_FAILURE;
}

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // several ranks: a write to the connection of a dead rank is an error, not the end
  try {
    return train_until(argc > 1 ? std::atof(argv[1]) : 0.05);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", lockstep::error_text(error).c_str());
    return static_cast<int>(lockstep::exit_code_of(error));
  }
}
