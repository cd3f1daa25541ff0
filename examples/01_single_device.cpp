// Training on one device. 02_multi_device.cpp does the same on several devices.
//
//   ./01_single_device 10 2                    ten epochs, a checkpoint every two
//   ./01_single_device 10 2 --batch_size 64
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

  const lockstep::TrainConfig defaults{.nprocs = 1, .max_epochs = 10};
  return lockstep::run(defaults, flags, argc, argv, [](lockstep::Session& session) {
    auto task = lockstep::make_task(
        torch::nn::Linear(20, 1), [](const auto& y, const auto& target) { return torch::mse_loss(y, target); },
        lockstep::sgd({.lr = 0.1}));
    lockstep::DataLoader train(make_data(), session.plan.loader, session.world);
    lockstep::Trainer(session).fit(*task, train);
  });
}
