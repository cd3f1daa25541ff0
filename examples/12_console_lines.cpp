// The console lines of other systems, for scripts that read them: 02_multi_device.cpp with a callback that prints them.
//
//   ./12_console_lines 10 2 --lines tutorial                 those of PyTorch's ddp-tutorial-series
//   ./12_console_lines 10 2 --lines perceptrain --nprocs 2   those of perceptrain
//
// They go to the standard output; lockstep's own lines are on the standard error.
#include <cstdio>

#include <fmt/format.h>  // link fmt::fmt-header-only

#include <torch/torch.h>

#include <lockstep/lockstep.h>

// 2,048 points on a noisy plane.
std::shared_ptr<lockstep::Dataset> make_data() {
  const auto x = torch::rand({2048, 20});
  const auto y = x.matmul(torch::linspace(-1, 1, 20).unsqueeze(1)) + 0.1 * torch::randn({2048, 1});
  return lockstep::tensor_dataset(x, y);
}

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);  // the next line of this rank may be an epoch away
}

/// A line of each rank at the start of an epoch, one of the main rank after a save, two of each rank after a resume.
/// Epochs are counted from 0. The script for one GPU calls a checkpoint a checkpoint, that for torchrun a snapshot.
class TutorialLines : public lockstep::Callback {
 public:
  std::string name() const override { return "tutorial_lines"; }
  std::uint32_t stages() const override {
    return lockstep::Stage::fit_start | lockstep::Stage::step_start | lockstep::Stage::checkpoint_saved;
  }
  bool is_light() const override { return true; }

  void on(const lockstep::StageContext& at) override {
    if (at.stage == lockstep::Stage::fit_start && at.state.step > 0) {
      print_line("Loading snapshot");
      print_line(fmt::format("Resuming training from snapshot at Epoch {}", at.state.epoch));
    } else if (at.stage == lockstep::Stage::step_start && at.batches->epoch != epoch_) {
      epoch_ = at.batches->epoch;
      print_line(fmt::format("[GPU{}] Epoch {} | Batchsize: {} | Steps: {}", at.world.rank(), epoch_,
                             at.batches->local_samples, at.train->steps_per_epoch().value_or(0)));
    } else if (at.stage == lockstep::Stage::checkpoint_saved && at.world.is_main()) {
      print_line(fmt::format("Epoch {} | Training {} saved at {}", epoch_,
                             at.world.size() == 1 ? "checkpoint" : "snapshot",
                             lockstep::run_directory(at.plan.config) + "/checkpoints"));
    }
  }

 private:
  std::int64_t epoch_ = -1;
};

/// A line of each rank at the end of an epoch, with the means of all ranks.
void print_perceptrain_line(const lockstep::StageContext& at) {
  std::string line =
      fmt::format("P {:>2}|{:<7}| Iteration {:>7}|", at.world.rank(), at.world.device().str(), at.state.epoch);
  for (const auto& [name, value] : *at.metrics) {
    line += name == "epoch_loss" ? fmt::format(" Train_Loss: {:.7f} -", value)
                                 : fmt::format(" train_{}: {:.7f}", name.substr(6), value);  // after "epoch_"
  }
  print_line(line);
}

int main(int argc, char** argv) {
  std::string lines = "tutorial";
  lockstep::Flags flags;
  flags.positional("max_epochs").positional("checkpoint.every_epochs");
  flags.add("lines", &lines, "whose console lines: tutorial or perceptrain");

  const lockstep::TrainConfig defaults{.max_epochs = 10, .report = {.epoch_means = true}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    auto task = lockstep::make_task(
        torch::nn::Linear(20, 1), [](const auto& y, const auto& target) { return torch::mse_loss(y, target); },
        lockstep::sgd({.lr = 0.1}));
    lockstep::DataLoader train(make_data(), session.plan.loader, session.world);
    lockstep::Trainer trainer(session);
    if (lines == "tutorial") {
      trainer.add(std::make_shared<TutorialLines>());
    } else if (lines == "perceptrain") {
      trainer.on(lockstep::Stage::epoch_report, print_perceptrain_line, {.is_light = true});
    } else {
      throw lockstep::ConfigError("--lines " + lines + ": expected tutorial or perceptrain");
    }
    trainer.fit(*task, train);
  });
}
