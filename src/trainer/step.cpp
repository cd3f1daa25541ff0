// One training step. The loop that calls it is in trainer.cpp.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/step.h>
#include <lockstep/trainer/task.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "optim/grad_norm.h"
#include "trainer/in_precision.h"
#include "trainer/spike_gate.h"
#include "world/agreement.h"
#include "world/world_access.h"

namespace lockstep {

StepOutput Task::training_step(const Batch&) {
  throw ConfigError("the task has no training_step()",
                    "override it, or override optimize(), and validation_step() where there is validation data");
}

NamedTensors Task::predict_step(const Batch&) {
  throw ConfigError("the task has no predict_step()", "override it: it returns the tensors to keep, by name");
}

namespace {

// If the count is zero, the mean may be NaN.
at::Tensor times_count(const at::Tensor& value, const at::Tensor& count) {
  return at::where(count > 0, value.detach().to(at::kDouble) * count, 0);
}

// Its value can be read at once, which takes a hundredth of the time of an operation on tensors.
bool is_float_on_host(const at::Tensor& value) {
  return value.is_cpu() && value.scalar_type() == at::kFloat && value.numel() == 1 && !value.is_neg();
}

// Flags of 0 and 1; an undefined one is 0.
at::Tensor any_of(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() ? at::maximum(a, b) : a.defined() ? a : b;
}

}  // namespace

void Task::optimize(Step& step) {
  if (step.optimizer_count() > 1) {
    throw Error(fmt::format("the task has {} optimizers, and the default optimize() updates only the first",
                            step.optimizer_count()),
                "override Task::optimize and update each of them");
  }
  OptimizerStep& optimizer = step.optimizer();
  optimizer.zero_grad();
  for (const Batch& batch : step.batches()) {
    const StepOutput out = optimizer.forward(batch, [this](const Batch& b) { return training_step(b); });
    optimizer.backward(out);  // weighted by its share of the global batch; the last one reduces while it runs
    step.add(out);            // loss and metrics stay on the device
  }
  optimizer.update();  // mean over the global batch, clip, schedule, optimizer
}

Step::Step(const Context& context) : context_(context) {
  optimizers_.reserve(context_.strategy.optimizer_count());
  for (std::size_t i = 0; i < context_.strategy.optimizer_count(); ++i) {
    optimizers_.emplace_back(*this, context_.strategy.optimizer(i));
  }
}

StepOutput OptimizerStep::forward(const Batch& batch, const std::function<StepOutput(const Batch&)>& f) {
  optimizer_.begin_forward(/*reduce=*/step_.is_last(batch));
  step_.last_samples_ = batch.samples;
  if (batch.samples == 0) {
    return {};
  }
  StepOutput output = in_precision(step_.context_.config, step_.context_.world.device().type(), batch, f);
  if (output.loss.defined() && output.loss.dim() != 0) {
    throw Error(fmt::format("the loss has shape [{}], expected a scalar", fmt::join(output.loss.sizes(), ", ")),
                "reduce it over the batch, for example with mean()");
  }
  return output;
}

void OptimizerStep::backward(const StepOutput& output) {
  const std::int64_t samples = step_.last_samples_;
  check_counts(output);
  if (evaluation_ != nullptr) {
    evaluation_->add(output, samples);
  }
  (output.loss.defined() ? step_.with_loss_ : step_.without_loss_) |= samples > 0;
  if (!output.loss.defined()) {
    optimizer_.backward_nothing();
    return;
  }
  if (step_.looks_at_losses()) {  // before the backward, which sends it
    optimizer_.add_loss(output.count.defined() ? times_count(output.loss, output.count)
                                               : output.loss.detach() * step_.weight(samples));
  }
  if (output.count.defined()) {
    optimizer_.add_count(output.count);
    optimizer_.backward(output.loss, output.count.detach().to(output.loss.dtype()));
  } else {
    optimizer_.backward(output.loss, step_.context_.loss_factor * step_.weight(samples));
  }
}

// Weights in counts and weights in samples must not be mixed.
void OptimizerStep::check_counts(const StepOutput& output) {
  if (!output.loss.defined()) {
    return;
  }
  if (counted_.value_or(output.count.defined()) != output.count.defined()) {
    throw Error("one micro-batch of this step has a count, another one has none",
                "set StepOutput::count for every micro-batch of an optimizer, or for none");
  }
  counted_ = output.count.defined();
}

// If all counts of a step are 0, its gradients are zero and remain zero.
void OptimizerStep::finish() {
  optimizer_.finish();
  if (const auto count = optimizer_.mean_count(); count.defined()) {
    optimizer_.scale_grads(at::where(count > 0, count.reciprocal() * step_.context_.loss_factor, 0));
  }
}

// As the gradients, of the whole global batch. 0 if all counts of the step are 0.
at::Tensor OptimizerStep::mean_loss() {
  const at::Tensor loss = optimizer_.mean_loss();
  const at::Tensor count = optimizer_.mean_count();
  return count.defined() ? at::where(count > 0, loss / count, 0) : loss;
}

void OptimizerStep::update() {
  const at::NoGradGuard no_grad;
  finish();
  if (step_.context_.after_backward != nullptr) {
    (*step_.context_.after_backward)(optimizer_);
  }
  optimizer_.clip_groups();
  const double limit = step_.context_.config.optim.max_grad_norm;
  SpikeGate* spikes = step_.context_.spikes;
  if (limit > 0 || spikes != nullptr) {
    step_.grad_norm_ = optimizer_.grad_norm();
  }
  at::Tensor not_finite;
  at::Tensor spike;
  if (step_.looks_at_losses()) {
    const at::Tensor loss = mean_loss();
    if (step_.context_.config.optim.non_finite == NonFinitePolicy::skip) {
      not_finite = loss.isfinite().logical_not_().to(at::kFloat);
    }
    if (spikes != nullptr) {
      const auto index = static_cast<std::size_t>(this - step_.optimizers_.data());
      spike = spikes->check(step_.number(), index, loss, step_.grad_norm_);
    }
    optimizer_.skip_if(any_of(not_finite, spike));
  }
  if (limit > 0) {
    optimizer_.scale_grads(clip_factor(step_.grad_norm_, limit));
  } else if (const double largest = step_.context_.config.optim.max_grad_value; largest > 0) {
    optimizer_.clamp_grads(largest);
  }
  optimizer_.set_lr(step_.context_.at);
  optimizer_.step();
  step_.skipped_ = any_of(step_.skipped_, any_of(optimizer_.skipped(), not_finite));
  step_.spike_ = any_of(step_.spike_, spike);
}

StepOutput OptimizerStep::minimize(const std::function<StepOutput()>& closure) {
  if (step_.context_.spikes != nullptr) {
    throw ConfigError("--spike.policy skip: an optimizer with a closure updates the parameters several times in a step",
                      "use another policy, such as rollback");
  }
  if (optimizer_.loss_scale().defined()) {
    throw ConfigError("--precision fp16_mixed: an optimizer with a closure calculates losses that cannot be scaled",
                      "use --precision bf16_mixed or fp32");
  }
  MicroBatches first;
  optimizer_.set_lr(step_.context_.at);
  optimizer_.torch_optimizer().step([&] {
    const at::AutoGradMode gradients(true);
    MicroBatches evaluation;
    evaluation_ = &evaluation;
    closure();
    evaluation_ = nullptr;
    finish();
    if (first.empty()) {
      first = evaluation;
    }
    return evaluation.mean_over_ranks(step_.context_.world) * step_.context_.loss_factor;
  });
  step_.last_samples_ = first.samples();
  return first.output();
}

// The reduction averages over ranks, so a weight of 1 is an equal share of the global batch.
double Step::weight(std::int64_t samples) const noexcept {
  return static_cast<double>(samples * context_.world.size()) / static_cast<double>(context_.batches.global_samples);
}

bool Step::looks_at_losses() const noexcept {
  return context_.spikes != nullptr || context_.config.optim.non_finite == NonFinitePolicy::skip;
}

void Step::add(const StepOutput& output) {
  if (!output.loss.defined()) {
    return;
  }
  context_.meter.add(output, last_samples_);
  if (context_.epoch_meter != nullptr) {
    context_.epoch_meter->add(output, last_samples_);
  }
  added_.add(output, last_samples_);
}

StepResult Step::result() const {
  return {.loss = added_.empty() ? at::Tensor() : added_.mean([](const StepOutput& out) { return out.loss; }),
          .grad_norm = grad_norm_,
          .skipped = skipped_,
          .spike = spike_,
          .lr = context_.strategy.optimizer().lr()};
}

void MicroBatches::add(const StepOutput& output, std::int64_t samples) {
  if (!output.loss.defined()) {
    return;
  }
  StepOutput kept(output.loss.detach());
  kept.count = output.count;
  for (const auto& [name, value] : output.metrics) {
    kept.metrics.emplace_back(name, value.detach());
  }
  parts_.emplace_back(std::move(kept), samples);
}

std::int64_t MicroBatches::samples() const {
  return std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& part) { return sum + part.second; });
}

// Not a tensor made from host numbers: its copy to a GPU would wait.
MicroBatches::Sum MicroBatches::sum(const Value& value) const {
  Sum sum;
  for (const auto& [output, samples] : parts_) {
    at::Tensor term;
    if (output.count.defined()) {
      term = times_count(value(output), output.count);
      sum.count = sum.count.defined() ? sum.count + output.count : output.count.to(at::kDouble);
    } else {
      term = value(output) * static_cast<double>(samples);
      sum.samples += static_cast<double>(samples);
    }
    sum.values = sum.values.defined() ? sum.values + term : term;
  }
  return sum;
}

at::Tensor MicroBatches::mean(const Value& value) const {
  const at::NoGradGuard no_grad;
  if (parts_.size() == 1) {
    const StepOutput& only = parts_.front().first;
    return only.count.defined() ? at::where(only.count > 0, value(only), 0) : value(only);
  }
  const Sum all = sum(value);
  if (!all.count.defined()) {
    return all.values / all.samples;
  }
  const at::Tensor weight = all.count + all.samples;
  return at::where(weight > 0, all.values / weight, 0);
}

StepOutput MicroBatches::output() const {
  StepOutput mean_output;
  if (empty()) {
    return mean_output;
  }
  mean_output.loss = mean([](const StepOutput& out) { return out.loss; });
  mean_output.count = sum([](const StepOutput& out) { return out.loss; }).count;
  const NamedTensors& metrics = parts_.front().first.metrics;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    mean_output.metrics.emplace_back(metrics[i].first,
                                     mean([i](const StepOutput& out) { return out.metrics.at(i).second; }));
  }
  return mean_output;
}

at::Tensor MicroBatches::mean_over_ranks(World& world) const {
  const at::NoGradGuard no_grad;
  auto totals = at::zeros({2}, at::device(world.device()).dtype(at::kDouble));
  if (!empty()) {
    const Sum mine = sum([](const StepOutput& out) { return out.loss; });
    totals.select(0, 0).copy_(mine.values);
    totals.select(0, 1).add_(mine.samples);
    if (mine.count.defined()) {
      totals.select(0, 1).add_(mine.count);
    }
  }
  world.all_reduce(totals, Reduce::sum);
  const auto weight = totals.select(0, 1);
  return at::where(weight > 0, totals.select(0, 0) / weight, 0);
}

constexpr std::string_view kSum = "sum.";
constexpr std::string_view kCounts = "counts";
constexpr std::string_view kSamples = "samples";

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
    continue_restored();
  }
  if (names_.size() != output.metrics.size() + 1) {
    throw Error(fmt::format("a step returned {} metrics, the first one {}", output.metrics.size(), names_.size() - 1),
                "return the same metrics from every step");
  }
  const auto add_weighted = [&](at::Tensor& sum, const at::Tensor& value) {
    if (output.count.defined()) {
      sum.add_(times_count(value, output.count));
    } else if (is_float_on_host(value) && sum.is_cpu()) {
      *sum.mutable_data_ptr<double>() += static_cast<double>(samples) * double{*value.const_data_ptr<float>()};
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

// A rank without samples so far gets the names from the others. With two different sets of names, sums of different
// metrics would be added.
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
      const auto shown = [](const std::string& names) { return printable(join(split(names, '\n'), ", ")); };
      throw_about_rank(rank, world,
                       CommError(fmt::format("rank {} reports other metrics than rank {}: '{}' and '{}'", rank, known,
                                             shown(all[rank]), shown(all[known])),
                                 "return the same metrics on every rank", ExitCode::disagree));
    }
  }
  if (known < all.size()) {
    names_ = split(all[known], '\n');
  } else {
    names_ = restored_.names;  // no rank added anything since
  }
  agreed_ = !names_.empty();
  if (sums_.empty()) {
    continue_restored();
  }
}

at::Tensor Meter::own_sums(const World& world) const {
  if (sums_.empty()) {
    return at::zeros({static_cast<std::int64_t>(names_.size()) + 2}, at::device(world.device()).dtype(at::kDouble));
  }
  std::vector<at::Tensor> values = sums_;
  values.push_back(counts_);
  values.push_back(at::full({}, samples_, counts_.options()));
  return at::stack(values).to(at::kDouble);
}

std::vector<std::pair<std::string, double>> Meter::means(World& world) {
  const at::NoGradGuard no_grad;
  if (!agreed_) {
    agree_on_names(world);
  }
  if (!agreed_) {
    return {};
  }
  at::Tensor totals = own_sums(world);
  world.all_reduce(totals, Reduce::sum);
  const auto host = WorldAccess::on_host(world, totals);
  const double* value = host.const_data_ptr<double>();
  const double weight = value[names_.size()] + value[names_.size() + 1];
  std::vector<std::pair<std::string, double>> means;
  for (std::size_t i = 0; i < names_.size() && weight > 0; ++i) {
    means.emplace_back(names_[i], value[i] / weight);
  }
  return means;
}

std::vector<std::pair<std::string, double>> Meter::take(World& world) {
  auto means = this->means(world);
  sums_.clear();
  samples_ = 0;
  return means;
}

NamedTensors Meter::save(World& world) {
  const at::NoGradGuard no_grad;
  if (!agreed_) {
    agree_on_names(world);
  }
  if (!agreed_ || !world.any(!sums_.empty())) {
    return {};
  }
  const at::Tensor all = WorldAccess::on_host(world, world.all_gather(own_sums(world).view({1, -1})));
  NamedTensors saved;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    saved.emplace_back(fmt::format("{}{}", kSum, names_[i]), all.select(1, static_cast<std::int64_t>(i)).contiguous());
  }
  saved.emplace_back(kCounts, all.select(1, -2).contiguous());
  saved.emplace_back(kSamples, all.select(1, -1).contiguous());
  return saved;
}

void Meter::load(const NamedTensors& sums, const World& world) {
  restored_ = {};
  for (const auto& [name, of_ranks] : sums) {
    at::Tensor mine = at::zeros({}, at::kDouble);
    for (std::int64_t rank = world.rank(); rank < of_ranks.size(0); rank += world.size()) {
      mine += of_ranks[rank];
    }
    if (name == kCounts) {
      restored_.counts = mine.to(world.device());
    } else if (name == kSamples) {
      restored_.samples = mine.item<double>();
    } else {
      restored_.names.push_back(name.substr(kSum.size()));
      restored_.sums.push_back(mine.to(world.device()));
    }
  }
}

// The program may have other metrics now.
void Meter::continue_restored() {
  if (restored_.names == names_) {
    sums_ = std::move(restored_.sums);
    counts_ = restored_.counts;
    samples_ = restored_.samples;
  }
  restored_ = {};
}

}  // namespace lockstep
