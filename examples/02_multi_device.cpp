// Training on all devices: 01_single_device.cpp with one changed line. On a machine without GPUs, set the number of
// ranks.
//
//   ./02_multi_device 10 2                              all GPUs of this machine
//   ./02_multi_device 10 2 --nprocs 2                   two ranks
//   torchrun --no-python --nproc-per-node 2 ./02_multi_device 10 2
#include <torch/torch.h>

#include <lockstep/lockstep.h>

// 2,048 points on a noisy plane.
std::shared_ptr<lockstep::Dataset> make_data() {
  const auto x = torch::rand({2048, 20});
  const auto y = x.matmul(torch::linspace(-1, 1, 20).unsqueeze(1)) + 0.1 * torch::randn({2048, 1});
  return lockstep::tensor_dataset(x, y);
}

int main(int argc, char** argv) {
  lockstep::Flags flags;
  flags.positional("max_epochs").positional("checkpoint.every_epochs");

  const lockstep::TrainConfig defaults{.max_epochs = 10};  // changed: no .nprocs = 1
  return lockstep::run(defaults, flags, argc, argv, [](lockstep::Session& session) {
    auto task = lockstep::make_task(
        torch::nn::Linear(20, 1), [](const auto& y, const auto& target) { return torch::mse_loss(y, target); },
        lockstep::sgd({.lr = 0.1}));
    lockstep::DataLoader train(make_data(), session.plan.loader, session.world);
    lockstep::Trainer(session).fit(*task, train);
  });
}
