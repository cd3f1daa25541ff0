// What the C++ blocks of the documents use without declaring it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <lockstep/data/replay_buffer.h>
#include <lockstep/lockstep.h>

namespace docs {

using torch::Tensor;

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return head->forward(torch::relu(backbone->forward(x.flatten(1)))); }
  torch::nn::Linear backbone = register_module("backbone", torch::nn::Linear(64, 32));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 10));
};
TORCH_MODULE(Net);

struct Digits : lockstep::Task {
  torch::nn::Module& module() override { return *net; }
  std::vector<lockstep::OptimizerSpec> optimizers() override { return {lockstep::adamw()}; }
  lockstep::StepOutput training_step(const lockstep::Batch& batch) override {
    return torch::cross_entropy_loss(net->forward(batch.input), batch.target);
  }
  Net net{};
};

/// The class around a block that overrides functions of a Task or a Callback.
struct Members : lockstep::Task, lockstep::Callback {
  torch::nn::Module& module() override { return *net_; }
  std::vector<lockstep::OptimizerSpec> optimizers() override { return {lockstep::adamw()}; }
  std::string name() const override { return "block"; }
  std::uint32_t stages() const override { return lockstep::Stage::epoch_end; }
  void on(const lockstep::StageContext&) override {}
  lockstep::StepOutput discriminator_loss(const lockstep::Batch& batch) { return training_step(batch); }
  lockstep::StepOutput generator_loss(const lockstep::Batch& batch) { return training_step(batch); }
  Net net_{};
  torch::nn::Linear backbone_{64, 32};
};

inline std::shared_ptr<lockstep::Dataset> load_digits(const std::string& part) {
  const std::int64_t count = part == "train" ? 512 : 128;
  return lockstep::tensor_dataset(torch::rand({count, 64}), torch::randint(10, {count}));
}

// What fragments name without making it. They are compiled, and never run.
inline lockstep::OptimizerSpec spec{lockstep::adamw()};
inline std::vector<torch::nn::Linear> blocks{};
inline Tensor x, activations, class_of;
inline std::shared_ptr<const lockstep::Dataset> images, photos, drawings, scans, sentences;
inline Tensor loss(const Tensor& output, const Tensor& target) { return torch::mse_loss(output, target); }
inline Tensor token_losses(const Tensor& logits, const Tensor&) { return logits; }
inline Tensor simulate(Net&, const Tensor& input) { return input.sum(); }
inline std::string generate(NetImpl&) { return {}; }
inline Tensor decode(NetImpl&) { return {}; }
inline void sample_images(const lockstep::StageContext&) {}
inline void upload_checkpoints(const lockstep::StageContext&) {}
inline void write_samples(torch::nn::Module&, std::int64_t) {}
inline lockstep::Batch play(lockstep::Task&, int) { return {}; }
inline void delete_rows_after(std::int64_t) {}
inline void insert(std::int64_t, std::string_view, double) {}
struct Database : lockstep::MetricSink {
  explicit Database(std::int64_t) {}
  void write(std::int64_t, std::span<const lockstep::MetricValue>) override {}
};
struct Player : lockstep::Callback {
  Player(lockstep::Task&, lockstep::ReplayBuffer&) {}
  std::string name() const override { return "player"; }
  std::uint32_t stages() const override { return lockstep::Stage::step_end; }
  void on(const lockstep::StageContext&) override {}
};

}  // namespace docs
