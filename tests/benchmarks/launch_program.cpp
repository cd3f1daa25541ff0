// One training step, for launch_bench.py: every rank reports when its first step was done, then waits to be released.
// The work is that of peers/first_step.py, number for number.
#include <chrono>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kWidth = 32;
constexpr std::int64_t kClasses = 10;

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(), torch::nn::Linear(kWidth, kWidth),
                            torch::nn::ReLU(), torch::nn::Linear(kWidth, kClasses));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(0.2 * torch::arange(parameter.numel()).sin().view_as(parameter));
  }
  return net;
}

std::shared_ptr<lockstep::Dataset> make_data() {
  return lockstep::tensor_dataset(torch::arange(kRows * kWidth).sin().view({kRows, kWidth}),
                                  torch::arange(kRows) % kClasses);
}

class ReportAndWait final : public lockstep::Callback {
 public:
  explicit ReportAndWait(std::string folder) : folder_(std::move(folder)) {}
  std::string name() const override { return "report_and_wait"; }
  std::uint32_t stages() const override { return 0U | lockstep::Stage::step_end; }
  void on(const lockstep::StageContext& context) override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();  // CLOCK_MONOTONIC
    double weights = 0;
    for (const auto& parameter : context.module.parameters()) {
      weights += parameter.detach().abs().sum().item<double>();
    }
    std::ofstream(folder_ + "/report") << fmt::format("{} {} {:.6f} {:.9g} {:.9g}\n", context.world.rank(), getpid(),
                                                      std::chrono::duration<double>(now).count(),
                                                      context.step.loss.item<double>(), weights);
    const std::ifstream released(folder_ + "/go");  // a fifo: opens when the other end does
  }

 private:
  std::string folder_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  lockstep::Flags flags;
  flags.positional("folder", &folder, "where the fifos report and go are");
  const lockstep::TrainConfig defaults{.compute_setup = lockstep::ComputeSetup::cpu,
                                       .max_steps = 1,
                                       .batch_size = 16,
                                       .sampler = {.order = lockstep::SampleOrder::pytorch, .shuffle = false},
                                       .checkpoint = {.enabled = false},
                                       .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    lockstep::OptimizerSpec optimizer = lockstep::adamw();
    optimizer.groups = {lockstep::GroupSpec{}};  // one group, as in Python: biases decay too
    auto task = lockstep::make_task(
        make_net(), [](const auto& output, const auto& target) { return torch::cross_entropy_loss(output, target); },
        optimizer);
    lockstep::DataLoader train(make_data(), session.plan.loader, session.world);
    lockstep::Trainer(session).add(std::make_shared<ReportAndWait>(folder)).fit(*task, train);
  });
}
