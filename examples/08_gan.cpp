// Two optimizers in one task. A generator learns to put points on a circle, and a discriminator learns to tell them
// from real points. Each training step updates both; the gradients of both are averaged over all ranks.
//
//   ./08_gan                              one CPU rank, or all GPUs of this machine
//   ./08_gan --nprocs 2 --max_steps 500   off_circle, the mean distance from the circle, falls
#include <numbers>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

using torch::indexing::Slice;

constexpr std::int64_t kNoise = 4;  // random numbers from which the generator makes a point

torch::nn::Sequential make_net(std::int64_t inputs, std::int64_t outputs) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 64), torch::nn::LeakyReLU(), torch::nn::Linear(64, 64),
                               torch::nn::LeakyReLU(), torch::nn::Linear(64, outputs));
}

/// 4,096 points on a circle with radius 1.
std::shared_ptr<lockstep::Dataset> make_data() {
  const auto angle = 2 * std::numbers::pi * torch::rand({4096, 1});
  return lockstep::tensor_dataset(torch::cat({angle.cos(), angle.sin()}, 1));
}

struct NetsImpl : torch::nn::Module {
  torch::nn::Sequential generator = register_module("generator", make_net(kNoise, 2));
  torch::nn::Sequential discriminator = register_module("discriminator", make_net(2, 1));
};
TORCH_MODULE(Nets);

struct Gan final : lockstep::Task {
  torch::nn::Module& module() override { return *nets; }

  std::vector<lockstep::OptimizerSpec> optimizers() override {
    lockstep::OptimizerSpec discriminator(lockstep::adam({.lr = 2e-3, .beta1 = 0.5}));
    discriminator.name = "discriminator";
    discriminator.module = nets->discriminator.get();  // the parameters that this optimizer trains
    lockstep::OptimizerSpec generator(lockstep::adam({.lr = 1e-3, .beta1 = 0.5}));
    generator.name = "generator";
    generator.module = nets->generator.get();
    return {discriminator, generator};
  }

  void optimize(lockstep::Step& step) override {
    auto& discriminator = step.optimizer(0);  // in the order of optimizers()
    discriminator.zero_grad();
    for (const auto& batch : step.batches()) {  // the micro-batches; the backward of the last one reduces the gradients
      auto output = discriminator.forward(batch, [&](const auto& b) { return discriminator_loss(b); });
      discriminator.backward(output);
      output.loss.reset();  // the reports have the loss of the generator, and the metrics of both
      step.add(output);
    }
    discriminator.update();

    auto& generator = step.optimizer(1);
    generator.zero_grad();
    for (const auto& batch : step.batches()) {
      const auto output = generator.forward(batch, [&](const auto& b) { return generator_loss(b); });
      generator.backward(output);
      step.add(output);
    }
    generator.update();
  }

  torch::Tensor make_points(const lockstep::Batch& batch) {
    return nets->generator->forward(torch::randn({batch.samples, kNoise}, batch.input.options()));
  }

  lockstep::StepOutput discriminator_loss(const lockstep::Batch& batch) {
    const auto points = torch::cat({batch.input, make_points(batch).detach()});
    auto is_real = torch::zeros({points.size(0), 1}, points.options());
    is_real.index_put_({Slice(0, batch.samples)}, 1);
    const auto loss = torch::binary_cross_entropy_with_logits(nets->discriminator->forward(points), is_real);
    return {loss, {{"discriminator_loss", loss.detach()}}};
  }

  lockstep::StepOutput generator_loss(const lockstep::Batch& batch) {
    const auto points = make_points(batch);
    const auto verdict = nets->discriminator->forward(points);
    return {torch::binary_cross_entropy_with_logits(verdict, torch::ones_like(verdict)),
            {{"off_circle", (points.detach().norm(2, 1) - 1).abs().mean()}}};
  }

  Nets nets{};
};

int main(int argc, char** argv) {
  const lockstep::TrainConfig defaults{.max_epochs = 0, .max_steps = 2000, .global_batch_size = 256};
  return lockstep::run(defaults, argc, argv, [](lockstep::Session& session) {
    Gan task;
    lockstep::DataLoader train(make_data(), session.plan.loader, session.world);
    lockstep::Trainer(session).fit(task, train);
  });
}
