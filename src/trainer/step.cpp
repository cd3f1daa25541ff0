// One training step. The loop that calls it is in fit.cpp.
#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/step.h>
#include <lockstep/trainer/task.h>
#include <lockstep/world/world.h>

#include "base/temporary_value.h"
#include "data/mean_square.h"
#include "optim/grad_norm.h"
#include "optim/loss_scaler.h"
#include "tensor/find_tensor.h"
#include "trainer/in_precision.h"
#include "trainer/micro_batches.h"
#include "trainer/output_check.h"
#include "trainer/pass_graphs.h"
#include "trainer/step_context.h"
#include "trainer/times_count.h"

namespace lockstep {

StepOutput Task::training_step(const Batch&) {
  throw ConfigError("the task has no training_step()",
                    "override it, or override optimize(), and validation_step() where there is validation data");
}

NamedTensors Task::predict_step(const Batch&) {
  throw ConfigError("the task has no predict_step()", "override it: it returns the tensors to keep, by name");
}

namespace {

/// What minimize() returned, for Step::add.
struct Minimized {
  StepOutput mean{};
  MicroBatches parts{};
};

/// Clipping by value makes infinity finite, so FiniteWatch needs the norm of before.
bool has_norm(const OptimConfig& config) { return config.max_grad_norm > 0 || config.max_grad_value > 0; }

/// `norm`: of the gradients; it is used only with optim.max_grad_norm.
void clip(StrategyOptimizer& optimizer, const OptimConfig& config, const at::Tensor& norm) {
  if (config.max_grad_norm > 0) {
    optimizer.scale_grads(clip_factor(norm, config.max_grad_norm));
  } else if (config.max_grad_value > 0) {
    optimizer.clamp_grads(config.max_grad_value);
  }
}

/// The address and the version of each gradient. Each write increases the version.
using GradientVersions = std::vector<std::pair<const c10::TensorImpl*, std::uint32_t>>;

GradientVersions versions_of_gradients(StrategyOptimizer& optimizer) {
  GradientVersions versions;
  for (auto& group : optimizer.torch_optimizer().param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.mutable_grad();
      versions.emplace_back(gradient.unsafeGetTensorImpl(), gradient.defined() ? gradient._version() : 0);
    }
  }
  return versions;
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
    // Forward and backward, weighted by its share of the global batch; the last backward reduces while it runs. Loss
    // and metrics stay on the device.
    step.add(optimizer.pass(batch, [this](const Batch& b) { return training_step(b); }));
  }
  optimizer.update();  // mean over the global batch, clip, schedule, optimizer
}

// What a public header declares at namespace level leaves the library, so it declares members.
struct OptimizerStep::Outputs : MicroBatches {};
struct Step::Outputs : MicroBatches {};

Step::Step(const Context& context) : context_(context), added_(std::make_unique<Outputs>()) {
  optimizers_.reserve(context_.strategy.optimizer_count());
  for (std::size_t i = 0; i < context_.strategy.optimizer_count(); ++i) {
    // make_unique cannot call a private constructor.
    optimizers_.push_back(std::unique_ptr<OptimizerStep>(new OptimizerStep(*this, i, context_.strategy.optimizer(i))));
  }
}

Step::~Step() = default;

void Step::begin(const StepBatches& batches, const TrainState& before, const ScheduleStep& at, double loss_factor) {
  now_ = {.batches = &batches, .before = before, .at = at, .loss_factor = loss_factor};
  now_.inputs = mean_square_of_inputs();
  added_->clear();
  for (const auto& optimizer : optimizers_) {
    optimizer->counted_.reset();
    optimizer->forwards_ = 0;
    optimizer->has_last_backward_ = false;
    optimizer->grad_norm_.reset();
  }
  if (context_.buffers != nullptr) {
    context_.buffers->take();
  }
}

void OptimizerStep::zero_grad() {
  optimizer_.zero_grad();
  forwards_ = 0;
  has_last_backward_ = false;
  is_used_ = false;
  changed_by_.reset();
}

StepOutput OptimizerStep::pass(const Batch& batch, const std::function<StepOutput(const Batch&)>& f) {
  begin_forward(batch);
  PassGraphs* const graphs = step_.context_.graphs;
  if (graphs == nullptr || batch.samples == 0) {
    StepOutput output = evaluate(batch, f);
    backward(output);
    return output;
  }
  StepOutput output = graphs->run({.batch = batch,
                                   .weight = step_.weight(batch.samples),
                                   .loss_factor = step_.now_.loss_factor,
                                   .begins_step = forwards_ == 1},
                                  [&](const Batch& values) {
                                    StepOutput found = evaluate(values, f);
                                    run_backward(found);
                                    return found;
                                  });
  note(output);
  return output;
}

// A task that calls this may do anything between forward and backward.
StepOutput OptimizerStep::forward(const Batch& batch, const std::function<StepOutput(const Batch&)>& f) {
  if (step_.context_.graphs != nullptr) {
    step_.context_.graphs->stop("the task overrides optimize()");
  }
  begin_forward(batch);
  return evaluate(batch, f);
}

void OptimizerStep::begin_forward(const Batch& batch) {
  // The forwards are counted, because the batch may be a copy of one of the step.
  const bool is_last = ++forwards_ >= step_.batches().size();
  optimizer_.begin_forward(is_last ? Gradients::reduce : Gradients::accumulate);
  step_.now_.last_samples = batch.samples;
  if (forwards_ == 1 && step_.context_.spikes != nullptr && step_.now_.inputs.defined()) {
    optimizer_.add_inputs(step_.now_.inputs * step_.weight(step_.now_.batches->local_samples));
  }
}

StepOutput OptimizerStep::evaluate(const Batch& batch, const std::function<StepOutput(const Batch&)>& f) {
  RECORD_USER_SCOPE("forward");
  StepOutput output;
  if (batch.samples == 0) {
    output.samples = 0;
    return output;
  }
  output = in_precision(step_.context_.config, step_.context_.world.device().type(), batch, f);
  check_output(output);
  output.samples = batch.samples;
  return output;
}

void OptimizerStep::backward(const StepOutput& output) {
  note(output);  // before the backward, which sends it
  run_backward(output);
}

void OptimizerStep::note(const StepOutput& output) {
  const std::int64_t samples = step_.samples_of(output);
  check_counts(output);
  if (forwards_ >= step_.batches().size()) {
    has_last_backward_ = true;
    changed_by_.reset();  // it reduces them again
  }
  if (evaluation_ != nullptr) {
    evaluation_->add(output, samples);
  }
  (output.loss.defined() ? step_.now_.with_loss : step_.now_.without_loss) |= samples > 0;
  if (!output.loss.defined()) {
    return;
  }
  const at::Tensor weight = output.count.defined() ? count_as_weight(output) : at::Tensor();
  if (step_.looks_at_losses()) {
    optimizer_.add_loss(weight.defined() ? times_count(output.loss, weight)
                                         : output.loss.detach() * step_.weight(samples));
  }
  if (weight.defined()) {
    optimizer_.add_count(weight);
  }
}

// The gradient of a loss has its dtype, so the count is rounded to it: bf16 rounds 257 to 256. finish() divides by the
// rounded counts, so the result is still a mean.
at::Tensor OptimizerStep::count_as_weight(const StepOutput& output) const {
  const at::Tensor count = output.count.detach();
  const double unit = step_.count_unit();
  return (unit == 1 ? count : count * unit).to(output.loss.dtype());
}

void OptimizerStep::run_backward(const StepOutput& output) {
  RECORD_USER_SCOPE("backward");
  if (!output.loss.defined()) {
    optimizer_.backward_nothing();
    return;
  }
  if (!output.loss.requires_grad()) {
    throw Error("the loss does not depend on a parameter that requires gradients",
                "calculate it without detach() and without torch::NoGradGuard, from parameters that are not frozen");
  }
  if (step_.context_.loss_check != nullptr) {  // before the backward, which frees the graph
    step_.context_.loss_check->look(output.loss, step_.number());
  }
  if (step_.context_.before_backward) {
    step_.context_.before_backward(optimizer_, output);
  }
  // A backward through the parameters of another optimizer adds gradients of this rank to them.
  std::vector<std::pair<OptimizerStep*, GradientVersions>> waiting;
  for (const auto& other : step_.optimizers_) {
    if (other.get() != this && other->waits_for_update()) {
      waiting.emplace_back(other.get(), versions_of_gradients(other->optimizer_));
    }
  }
  weighted_backward(output);
  for (const auto& [other, before] : waiting) {
    if (versions_of_gradients(other->optimizer_) != before) {
      other->changed_by_ = index_;
    }
  }
}

void OptimizerStep::weighted_backward(const StepOutput& output) {
  const double factor = step_.now_.loss_factor;
  if (output.count.defined()) {
    const at::Tensor count = count_as_weight(output);
    optimizer_.backward(output.loss, factor == 1 ? count : count * factor);
    return;
  }
  const double weight = factor * step_.weight(step_.samples_of(output));
  // backward(loss, double) keeps one tensor for all calls and replaces it when the weight changes. A CUDA graph would
  // then read memory that is free.
  if (step_.context_.graphs != nullptr) {
    optimizer_.backward(output.loss, at::full({}, weight, output.loss.options().requires_grad(false)));
  } else {
    optimizer_.backward(output.loss, weight);
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

// The gradients are reduced only in the backward of the last batch.
void OptimizerStep::check_that_it_is_complete() const {
  if (has_last_backward_) {
    return;
  }
  const std::size_t batches = step_.batches().size();
  throw Error(fmt::format("Step::optimizer({}) updates after the forward of {} of {} batches{}", index_, forwards_,
                          batches, forwards_ < batches ? "" : ", and without the backward of the last one"),
              "call its forward() and backward() for every batch of Step::batches(), also for one without samples; one "
              "loss cannot train two optimizers: use one with OptimizerSpec::groups");
}

// Otherwise several ranks would update with different gradients, and one rank would train differently from several.
void OptimizerStep::check_that_gradients_are_its_own() const {
  if (changed_by_) {
    throw Error(fmt::format("the backward of Step::optimizer({}) changed the gradients of Step::optimizer({}) after "
                            "they were reduced over the ranks",
                            *changed_by_, index_),
                fmt::format("call update() of optimizer {} before the backward of optimizer {}, or set requires_grad "
                            "of its parameters to false during the forward of optimizer {}",
                            index_, *changed_by_, *changed_by_));
  }
  if (is_used_) {
    throw Error(fmt::format("Step::optimizer({}) updates with gradients of its last update: there was no zero_grad() "
                            "in between",
                            index_),
                "call OptimizerStep::zero_grad() before the first forward of each update; zero_grad() of a module does "
                "not replace it");
  }
}

// If all counts of a step are 0, its gradients are zero and must remain zero: nothing is divided by 0.
void OptimizerStep::finish() {
  check_that_it_is_complete();
  check_that_gradients_are_its_own();
  is_used_ = true;
  optimizer_.finish();
  if (auto count = optimizer_.mean_count(); count.defined()) {
    if (step_.context_.config.precision == Precision::fp64) {
      count = count.to(at::kDouble);
    }
    optimizer_.scale_grads(at::where(count > 0, count.reciprocal(), 0));
  }
}

// Like the gradients, it is a mean over the global batch. It is 0 if all counts of the step are 0.
at::Tensor OptimizerStep::mean_loss() {
  const at::Tensor loss = optimizer_.mean_loss();
  const at::Tensor count = optimizer_.mean_count();
  return count.defined() ? at::where(count > 0, loss / count, 0) : loss;
}

void OptimizerStep::update() {
  const at::NoGradGuard no_grad;
  finish();
  if (step_.context_.after_backward) {
    step_.context_.after_backward(optimizer_);
  }
  optimizer_.clip_groups();
  SpikeGate* spikes = step_.context_.spikes;
  if (has_norm(step_.context_.config.optim) || spikes != nullptr) {
    grad_norm_ = optimizer_.grad_norm();
  }
  at::Tensor not_finite;
  at::Tensor spike;
  if (step_.looks_at_losses()) {
    const at::Tensor loss = mean_loss();
    if (step_.context_.config.optim.non_finite == NonFinitePolicy::skip) {
      not_finite = loss.isfinite().logical_not_().to(at::kFloat);
    }
    if (spikes != nullptr) {
      const bool has_inputs = step_.context_.config.spike.inputs;
      spike = spikes->check(
          step_.number(), index_,
          {.inputs = has_inputs ? optimizer_.mean_inputs() : at::Tensor(), .loss = loss, .grad_norm = grad_norm_});
    }
    optimizer_.skip_if(any_of(not_finite, spike));
  }
  clip(optimizer_, step_.context_.config.optim, grad_norm_);
  RECORD_USER_SCOPE("optimizer");
  optimizer_.set_lr(step_.now_.at);
  optimizer_.step();
  step_.now_.skipped = any_of(step_.now_.skipped, any_of(optimizer_.skipped(), not_finite));
  step_.now_.spike = any_of(step_.now_.spike, spike);
  step_.now_.uncounted = any_of(step_.now_.uncounted, not_finite);
}

StepOutput OptimizerStep::minimize(const std::function<StepOutput()>& closure) {
  if (step_.looks_at_losses()) {
    const char* setting = step_.context_.spikes != nullptr ? "--spike.policy" : "--optim.non_finite";
    throw ConfigError(
        fmt::format("{} skip: an optimizer with a closure updates the parameters several times in a step", setting),
        "use another policy, such as warn");
  }
  if (optimizer_.loss_scale().defined()) {
    throw ConfigError("--precision fp16_mixed: an optimizer with a closure calculates losses that cannot be scaled",
                      "use --precision bf16_mixed or fp32");
  }
  if (step_.context_.config.dist.shard_optimizer && step_.context_.world.size() > 1) {
    throw ConfigError("--dist.shard_optimizer true: an optimizer with a closure updates all parameters on every rank",
                      "use --dist.shard_optimizer false, or update() instead of minimize()");
  }
  const OptimConfig& config = step_.context_.config.optim;
  if (config.stochastic_rounding) {
    throw ConfigError("--optim.stochastic_rounding true: minimize() would round its updates to nearest",
                      "use update() instead of minimize(), or --optim.stochastic_rounding false");
  }
  MicroBatches first;
  optimizer_.set_lr(step_.now_.at);
  optimizer_.torch_optimizer().step([&] {
    const at::AutoGradMode gradients(true);
    Outputs evaluation;
    const TemporaryValue<Outputs*> scope(evaluation_, &evaluation);
    closure();
    finish();
    optimizer_.clip_groups();  // each evaluation has gradients of its own
    if (has_norm(config)) {
      grad_norm_ = optimizer_.grad_norm();
    }
    clip(optimizer_, config, grad_norm_);
    if (first.empty()) {
      first = evaluation;
    }
    return evaluation.mean_over_ranks(step_.context_.world) * step_.now_.loss_factor;
  });
  step_.now_.last_samples = first.samples();
  StepOutput output = first.output();
  output.samples = first.samples();
  output.parts = std::make_shared<const Minimized>(Minimized{.mean = output, .parts = std::move(first)});
  return output;
}

// The reduction averages over ranks, so a weight of 1 is an equal share of the global batch.
double Step::weight(std::int64_t samples) const noexcept {
  return static_cast<double>(samples * context_.world.size()) / static_cast<double>(now_.batches->global_samples);
}

// A weight is a count times this unit, and finish() divides by the weights. The range of fp16 ends at 65504, so there
// the unit is about 1 / samples of a rank, as a power of 2, which rounds nothing. The other types have the range of
// fp32.
double Step::count_unit() const noexcept {
  const Precision precision = context_.config.precision;
  if (precision != Precision::fp16 && precision != Precision::fp16_mixed) {
    return 1;
  }
  return std::exp2(-std::ilogb(static_cast<double>(now_.batches->global_samples) / context_.world.size()));
}

at::Tensor Step::mean_square_of_inputs() const {
  at::Tensor sum;
  if (const SpikeConfig& spike = context_.config.spike; !spike.inputs || spike.z_score == 0) {
    return sum;
  }
  const at::NoGradGuard no_grad;
  for (const Batch& batch : batches()) {
    if (const at::Tensor square = mean_square(batch, context_.world.device()); square.defined()) {
      const at::Tensor term = square * static_cast<double>(batch.samples);
      sum = sum.defined() ? sum + term : term;
    }
  }
  return sum.defined() ? sum / static_cast<double>(now_.batches->local_samples) : sum;
}

bool Step::looks_at_losses() const noexcept {
  return context_.spikes != nullptr || context_.config.optim.non_finite == NonFinitePolicy::skip;
}

void Step::add(const StepOutput& output) {
  check_output(output);
  if (output.parts == nullptr) {
    added_->add(output, samples_of(output));
    return;
  }
  // The parts are added in place of their mean, so that each metric has the weight of the parts that have it. What the
  // task replaced or added is added as it is.
  const auto& made = *static_cast<const Minimized*>(output.parts.get());
  const auto is_mean = [&](const auto& metric) {
    const at::Tensor* now = find_tensor(output.metrics, metric.first);
    const at::Tensor* mean = find_tensor(made.mean.metrics, metric.first);
    return now != nullptr && mean != nullptr && now->is_same(*mean);
  };
  StepOutput of_task = output;
  std::erase_if(of_task.metrics, is_mean);
  const bool has_mean_loss = output.loss.is_same(made.mean.loss);
  if (has_mean_loss) {
    of_task.loss = at::Tensor();
  }
  for (const auto& [part, samples] : made.parts.parts()) {
    StepOutput kept = part;
    std::erase_if(kept.metrics, std::not_fn(is_mean));
    if (!has_mean_loss) {
      kept.loss = at::Tensor();
    }
    added_->add(kept, samples);
  }
  added_->add(of_task, samples_of(output));
}

// Only after the update it is known whether the step counts. The forwards of several optimizers may have changed the
// same buffers, so these go back as a whole if one update was left out.
void Step::end() {
  if (context_.buffers != nullptr) {
    context_.buffers->put_back_if(any_of(now_.skipped, now_.spike));
  }
  for (const auto& [output, samples] : added_->parts()) {
    context_.meter.add(output, samples, now_.uncounted);
    if (context_.epoch_meter != nullptr) {
      context_.epoch_meter->add(output, samples, now_.uncounted);
    }
  }
}

StepResult Step::result() const {
  StepResult result{.loss = added_->mean([](const StepOutput& out) { return out.loss; }),
                    .count = added_->count(),
                    .inputs = now_.inputs,
                    .skipped = now_.skipped,
                    .spike = now_.spike,
                    .lr = context_.strategy.optimizer().lr()};
  for (const auto& optimizer : optimizers_) {
    const at::Tensor& norm = optimizer->grad_norm_;
    if (norm.defined()) {
      result.grad_norm = result.grad_norm.defined() ? at::hypot(result.grad_norm, norm) : norm;
    }
    if (optimizers_.size() > 1) {
      result.grad_norms.push_back(norm);
    }
  }
  return result;
}

}  // namespace lockstep
