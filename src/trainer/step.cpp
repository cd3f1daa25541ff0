// One training step: the other half of the page that trainer.cpp begins.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/precision.h>
#include <lockstep/trainer/step.h>
#include <lockstep/trainer/task.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "optim/grad_norm.h"

namespace lockstep {

void Task::optimize(Step& step) {
  step.zero_grad();
  for (const Batch& batch : step.batches()) {
    const StepOutput out = step.forward(batch, [this](const Batch& b) { return training_step(b); });
    step.backward(
        out);       // weighted by its share of the global batch; the last one's gradients are reduced while it runs
    step.add(out);  // loss and metrics stay on the device
  }
  step.update();  // mean over the global batch, clip, schedule, optimizer
}

StepOutput Step::forward(const Batch& batch, const std::function<StepOutput(const Batch&)>& f, std::size_t set) {
  context_.strategy.begin_forward(/*reduce=*/is_last(batch), set);
  samples_ = batch.samples;
  if (samples_ == 0) {
    return {};
  }
  const AutocastScope precision(context_.config.precision, context_.world.device().type());
  return f(batch);
}

void Step::backward(const StepOutput& output, std::size_t set) {
  Strategy& strategy = context_.strategy;
  if (!output.loss.defined()) {
    strategy.backward_nothing(set);
  } else if (output.count.defined()) {
    strategy.add_count(output.count, set);
    strategy.backward(output.loss, output.count.detach().to(output.loss.dtype()), set);
  } else {
    strategy.backward(output.loss, share(), set);
  }
}

// Ranks average, so a weight of 1 is a rank's fair share of the global batch.
double Step::share() const noexcept {
  return static_cast<double>(samples_ * context_.world.size()) / static_cast<double>(context_.batches.global_samples);
}

void Step::add(const StepOutput& output) {
  if (!output.loss.defined()) {
    return;
  }
  context_.meter.add(output, samples_);
  losses_.push_back(output.loss.detach());
  loss_samples_.push_back(static_cast<double>(samples_));
}

void Step::finish(std::size_t set) {
  context_.strategy.finish(set);
  if (const auto count = context_.strategy.mean_count(set); count.defined()) {
    context_.strategy.scale_grads(count.reciprocal(), set);
  }
}

void Step::update(std::size_t set) {
  Strategy& strategy = context_.strategy;
  const at::NoGradGuard no_grad;
  finish(set);
  if (const double limit = context_.config.optim.max_grad_norm; limit > 0) {
    grad_norm_ = strategy.grad_norm(set);
    strategy.scale_grads(clip_factor(grad_norm_, limit), set);
  }
  strategy.set_lr_factor(context_.lr_factor, set);
  strategy.step(set);
}

StepOutput Step::minimize(const std::function<StepOutput()>& closure, std::size_t set) {
  StepOutput first;
  context_.strategy.set_lr_factor(context_.lr_factor, set);
  context_.strategy.optimizer(set).step([&] {
    const at::AutoGradMode gradients(true);
    const StepOutput out = closure();
    finish(set);
    if (!first.loss.defined()) {
      first = out;
    }
    auto mean = out.loss.defined() ? out.loss.detach() * share() : at::zeros({}, at::device(context_.world.device()));
    context_.world.all_reduce(mean, Reduce::mean);
    return mean;
  });
  return first;
}

StepResult Step::result() const {
  StepResult result{.loss = {}, .grad_norm = grad_norm_, .lr = context_.strategy.lr()};
  if (losses_.size() == 1) {
    result.loss = losses_.front();
  } else if (!losses_.empty()) {
    const at::NoGradGuard no_grad;
    auto sum = losses_[0] * loss_samples_[0];  // no tensor of weights: copying one to a GPU would wait
    for (std::size_t i = 1; i < losses_.size(); ++i) {
      sum.add_(losses_[i], loss_samples_[i]);
    }
    result.loss = sum / std::accumulate(loss_samples_.begin(), loss_samples_.end(), 0.0);
  }
  return result;
}

void Meter::add(const StepOutput& output, std::int64_t samples) {
  const at::NoGradGuard no_grad;
  if (sums_.empty()) {
    const auto zero = at::zeros({}, output.loss.options().dtype(at::kDouble));
    if (names_.empty()) {
      names_.emplace_back("loss");
      for (const auto& [name, value] : output.metrics) {
        names_.push_back(name);
      }
    }
    for (std::size_t i = 0; i < names_.size(); ++i) {
      sums_.push_back(zero.clone());
    }
    counts_ = zero.clone();
  }
  if (names_.size() != output.metrics.size() + 1) {
    throw Error(fmt::format("a step returned {} metrics, the first one {}", output.metrics.size(), names_.size() - 1),
                "return the same metrics from every step");
  }
  const auto add_weighted = [&](at::Tensor& sum, const at::Tensor& value) {
    if (output.count.defined()) {
      sum.add_(value * output.count);
    } else {
      sum.add_(value, samples);
    }
  };
  add_weighted(sums_[0], output.loss);
  for (std::size_t i = 0; i < output.metrics.size(); ++i) {
    if (output.metrics[i].first != names_[i + 1]) {
      throw Error(
          fmt::format("metric {} is called '{}', in the first step '{}'", i, output.metrics[i].first, names_[i + 1]),
          "return the same metrics in the same order from every step");
    }
    add_weighted(sums_[i + 1], output.metrics[i].second);
  }
  if (output.count.defined()) {
    counts_.add_(output.count);
  } else {
    samples_ += static_cast<double>(samples);
  }
}

// A rank that had no samples yet learns the names from the others; two different sets of names would add up different
// things.
void Meter::agree_on_names(World& world) {
  const auto all = world.gather(join(names_, "\n"));
  std::size_t known = all.size();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) {
      continue;
    }
    if (known == all.size()) {
      known = rank;
    } else if (all[rank] != all[known]) {
      throw CommError(fmt::format("rank {} reports other metrics than rank {}: '{}' and '{}'", rank, known,
                                  printable(all[rank]), printable(all[known])),
                      "return the same metrics on every rank", ExitCode::disagree);
    }
  }
  if (known < all.size()) {
    names_ = split(all[known], '\n');
    agreed_ = true;
  }
}

std::vector<std::pair<std::string, double>> Meter::take(World& world) {
  const at::NoGradGuard no_grad;
  if (!agreed_) {
    agree_on_names(world);
  }
  if (!agreed_) {
    return {};
  }
  const auto options = at::TensorOptions().device(world.device()).dtype(at::kDouble);
  auto totals = at::zeros({static_cast<std::int64_t>(names_.size()) + 1}, options);
  if (!sums_.empty()) {
    auto values = sums_;
    values.push_back(counts_ + samples_);
    totals = at::stack(values).to(at::kDouble);
  }
  world.all_reduce(totals, Reduce::sum);
  const auto host = totals.cpu();
  const double* value = host.const_data_ptr<double>();
  const double weight = value[names_.size()];
  std::vector<std::pair<std::string, double>> means;
  for (std::size_t i = 0; i < names_.size() && weight > 0; ++i) {
    means.emplace_back(names_[i], value[i] / weight);
  }
  sums_.clear();
  samples_ = 0;
  return means;
}

}  // namespace lockstep
