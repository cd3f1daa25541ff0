// A separate project that uses an installed lockstep.
#include <torch/torch.h>

#include <lockstep/lockstep.h>

int main(int argc, char** argv) {
  const lockstep::TrainConfig defaults{.max_epochs = 3};
  return lockstep::run(defaults, argc, argv, [](lockstep::Session& session) {
    const auto x = torch::rand({256, 4});
    auto task = lockstep::make_task(
        torch::nn::Linear(4, 1), [](const auto& y, const auto& target) { return torch::mse_loss(y, target); },
        lockstep::sgd({.lr = 0.1}));
    lockstep::DataLoader train(lockstep::tensor_dataset(x, x.sum(1, true)), session.plan.loader, session.world);
    lockstep::Trainer(session).fit(*task, train);
  });
}
