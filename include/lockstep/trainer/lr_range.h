// lockstep/trainer/lr_range.h
//
// Learning-rate range test: which learning rates train, before the real training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <lockstep/data/data_loader.h>
#include <lockstep/plan/plan.h>
#include <lockstep/trainer/task.h>
#include <lockstep/world/world.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Which learning rates find_lr() tries, and when it ends.
struct LrRangeOptions {
  double min_lr = 1e-8;  ///< of the first step
  double max_lr = 1;     ///< of the last step; the steps between grow by a constant factor
  std::int64_t steps = 100;
  double smoothing = 0.98;  ///< decay of the average of the losses, 0: none
  double stop_factor = 4;   ///< ends when the average exceeds the smallest one by this factor, of the averages of ten
                            ///< losses or more; 0: never
};

/// The learning rate and the loss of each step. With optim.lr_scaling divide the rate by its factor for --optim.lr.
struct LrRange {
  std::vector<double> lrs{};
  std::vector<double> losses{};  ///< averages (see LrRangeOptions::smoothing) of the means over all ranks
  /// Where the losses fall fastest over the logarithm of the rate, as lr_find of fastai ("steep") and of Lightning; by
  /// least squares over a third of the steps, before the average is smallest. nullopt: they fall nowhere clearly more
  /// than they vary from step to step, or too few steps were made.
  std::optional<double> suggestion{};
};

/// Collective. Trains with a learning rate that grows in every step (Smith 2017, "Cyclical learning rates for training
/// neural networks"), then restores the weights, gradients and random number generators, also if it throws, and the
/// position of `train`. Writes no files. All optimizers and groups have the same rate relation as in a training with
/// --optim.lr. Waits for the device in every step. A stop request takes effect after it. Throws: ConfigError (options),
/// and what Trainer::fit throws.
LrRange find_lr(const Plan& plan, World& world, Task& task, BatchSource& train, const LrRangeOptions& options = {});

/// A picture for a browser (SVG): the loss over the logarithm of the rate, with a line at the suggestion. Throws:
/// IoError.
void write_svg(const LrRange& range, const std::filesystem::path& file);
/// "lr,loss" and one line for each step, for a plot. Throws: IoError.
void write_csv(const LrRange& range, const std::filesystem::path& file);

}  // namespace lockstep
