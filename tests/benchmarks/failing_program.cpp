// A run of which one rank throws, for failure_bench.py: it notes the moment and throws, as peers/failing.py does.
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace {

struct Options {
  std::string folder;
  std::int64_t rank = 0;
  std::int64_t step = 20;
};

class Fail final : public lockstep::Callback {
 public:
  explicit Fail(const Options& options) : options_(options) {}
  std::string name() const override { return "fail"; }
  std::uint32_t stages() const override { return 0U | lockstep::Stage::step_end; }
  void on(const lockstep::StageContext& context) override {
    if (context.state.step == options_.step && context.world.rank() == options_.rank) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();  // CLOCK_MONOTONIC
      std::ofstream(options_.folder + "/failed") << fmt::format("{:.6f}\n", std::chrono::duration<double>(now).count());
      throw std::runtime_error("cannot decode sample 4411");
    }
  }

 private:
  const Options& options_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  lockstep::Flags flags;
  flags.positional("folder", &options.folder, "where the moment is noted")
      .add("fail_rank", &options.rank, "rank that throws")
      .add("fail_step", &options.step, "step after which it throws");
  const lockstep::TrainConfig defaults{.compute_setup = lockstep::ComputeSetup::cpu,
                                       .max_epochs = 0,
                                       .max_steps = 1'000'000,
                                       .batch_size = 16,
                                       .checkpoint = {.enabled = false},
                                       .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    auto task = lockstep::make_task(
        torch::nn::Sequential(torch::nn::Linear(32, 32), torch::nn::ReLU(), torch::nn::Linear(32, 10)),
        [](const auto& output, const auto& target) { return torch::cross_entropy_loss(output, target); },
        lockstep::adamw());
    lockstep::DataLoader train(
        lockstep::tensor_dataset(torch::arange(64 * 32).sin().view({64, 32}), torch::arange(64) % 10),
        session.plan.loader, session.world);
    lockstep::Trainer(session).add(std::make_shared<Fail>(options)).fit(*task, train);
  });
}
