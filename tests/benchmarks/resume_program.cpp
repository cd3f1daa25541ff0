// lockstep's part of resume_bench.py; the work is that of peers/resuming.py.
#include <chrono>
#include <string>

#include <fmt/format.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace {

constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kWidth = 8;

void say(const lockstep::Batch& batch) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();  // CLOCK_MONOTONIC
  std::string line = fmt::format("{:.6f}", std::chrono::duration<double>(now).count());
  for (const std::int64_t id : batch.ids) {
    line += fmt::format(" {}", id);
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

struct Fit final : lockstep::Task {
  explicit Fit(bool tells_) : tells(tells_) {}
  torch::nn::Module& module() override { return *net; }
  std::vector<lockstep::OptimizerSpec> optimizers() override { return {lockstep::adamw({.lr = 1e-3})}; }
  lockstep::StepOutput training_step(const lockstep::Batch& batch) override { return net(batch.input).square().mean(); }
  void optimize(lockstep::Step& step) override {
    Task::optimize(step);
    if (tells) {
      say(step.batches().front());
    }
  }
  bool tells;
  torch::nn::Linear net{kWidth, 1};
};

}  // namespace

int main(int argc, char** argv) {
  std::string phase;
  std::int64_t steps = 0;
  lockstep::Flags flags;
  flags.positional("phase", &phase, "prepare or resume").positional("steps", &steps, "before the save");
  const lockstep::TrainConfig defaults{.compute_setup = lockstep::ComputeSetup::cpu,
                                       .max_epochs = 0,
                                       .batch_size = kBatch,
                                       .checkpoint = {.every_epochs = 0},
                                       .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    const auto ids = torch::arange((steps + 50) * kBatch);
    const auto input = (ids.to(torch::kFloat).unsqueeze(1) * 1e-6).expand({-1, kWidth});
    lockstep::DataLoader data(lockstep::tensor_dataset(input), session.plan.loader, session.world);
    Fit task(phase == "resume");
    lockstep::Trainer(session).fit(task, data);
    if (phase == "prepare") {
      say(data.next()->micro.front());
    }
  });
}
