// Trains a TorchScript file on the tensors x and y of a file of torch.save, and writes it back.
#include <string>

#include <ATen/ATen.h>

#include <lockstep/checkpoint/script_module.h>
#include <lockstep/lockstep.h>
#include <lockstep/tensor/tensor_file.h>

int main(int argc, char** argv) {
  std::string model;
  std::string data;
  std::string result;
  lockstep::Flags flags;
  flags.positional("model", &model, "TorchScript file to train")
      .positional("data", &data, "file of torch.save with the tensors x and y under the key samples")
      .positional("result", &result, "TorchScript file to write");
  const lockstep::TrainConfig defaults{.sampler = {.shuffle = false}, .report = {.every_steps = 1}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    const auto net = lockstep::script_module(model);
    const lockstep::NamedTensors tensors = lockstep::load_tensors(data, "samples");
    lockstep::DataLoader loader(lockstep::tensor_dataset(tensors.at(0).second, tensors.at(1).second),
                                session.plan.loader, session.world);
    const auto loss = [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); };
    const auto task = lockstep::make_task(net, loss, lockstep::sgd({.lr = 0.05, .momentum = 0.9}));
    lockstep::Trainer(session).fit(*task, loader);
    if (session.world.is_main()) {
      net->save(result);
    }
  });
}
