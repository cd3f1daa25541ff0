// Must not compile: make_task() of a module instead of its holder.
#include <torch/nn/module.h>

#include <lockstep/trainer/task.h>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};

int main() {
  const auto loss = [](const at::Tensor& output, const at::Tensor&) { return output; };
  return lockstep::make_task(Net(), loss, lockstep::OptimizerSpec{}) == nullptr ? 1 : 0;
}
