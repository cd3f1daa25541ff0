// Fine-tunes a network that Python has trained: LoRA adapters in its two hidden layers and a lower learning rate for
// the output layer; all other weights are frozen. Then Python continues with the new weights.
//
//   python3 11_finetune.py pretrain pretrained.safetensors             learns sin(3 x)
//   ./11_finetune pretrained.safetensors finetuned.safetensors         learns sin(3 x) + x / 2 from 64 samples
//   python3 11_finetune.py check finetuned.safetensors
//
// load_tensors() reads files of torch.save as well. For a TorchScript file, lockstep::script_module() gives the whole
// model, so that no network has to be written in C++ (docs/checkpoints.md, "Models from Python").
#include <fmt/format.h>  // link fmt::fmt-header-only

#include <torch/torch.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/lockstep.h>
#include <lockstep/nn/lora.h>
#include <lockstep/tensor/tensor_file.h>

/// The parameters have the names of 11_finetune.py: hidden1.weight, hidden1.bias, ...
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return output->forward(torch::tanh(hidden2->forward(torch::tanh(hidden1->forward(x)))));
  }
  lockstep::LoraLinear hidden1 = register_module("hidden1", lockstep::LoraLinear(1, 64));
  lockstep::LoraLinear hidden2 = register_module("hidden2", lockstep::LoraLinear(64, 64));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(64, 1));
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  std::string from = "pretrained.safetensors";
  std::string to = "finetuned.safetensors";
  lockstep::Flags flags;
  flags
      .positional("from", &from, "weights to begin with: safetensors, or a state dict of torch.save",
                  lockstep::TextKind::existing_path)
      .positional("to", &to, "file of the new weights");

  const lockstep::TrainConfig defaults{.max_epochs = 0,
                                       .max_steps = 400,
                                       .global_batch_size = 32,
                                       .optim = {.schedule = "warmup:20+cosine"},
                                       .report = {.every_steps = 50}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    Net net;
    lockstep::load_module(*net, lockstep::load_tensors(from));  // an error names missing and unexpected weights
    lockstep::add_lora(*net, {.rank = 4, .alpha = 8, .select = "hidden*"});  // freezes everything but the adapters
    lockstep::unfreeze(*net, "output.*");

    lockstep::OptimizerSpec optimizer(lockstep::adamw({.lr = 1e-2}));
    optimizer.groups = {{.select = lockstep::named("output.*"), .lr_scale = 0.3, .weight_decay = 0}, {}};
    const auto task = lockstep::make_task(
        net, [](const auto& y, const auto& target) { return torch::mse_loss(y, target); }, optimizer);

    const auto x = torch::linspace(-1, 1, 64).unsqueeze(1);
    lockstep::DataLoader train(lockstep::tensor_dataset(x, torch::sin(3 * x) + x / 2), session.plan.loader,
                               session.world);
    const auto result = lockstep::Trainer(session).fit(*task, train);

    if (result.stop <= lockstep::StopKind::program && session.world.is_main()) {
      lockstep::save_tensors(to + ".adapter", lockstep::lora_tensors(*net));  // small: the adapters alone
      lockstep::merge_lora(*net);                                             // then the names are those of Python
      lockstep::save_tensors(to, lockstep::module_tensors(*net));
      session.print(fmt::format("the weights are in {}", to));
    }
  });
}
