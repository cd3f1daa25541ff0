#include "trainer/micro_batches.h"

#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/world/world.h>

#include "trainer/times_count.h"

namespace lockstep {

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

at::Tensor MicroBatches::count() const {
  at::Tensor count;
  for (const auto& [output, samples] : parts_) {
    if (output.count.defined()) {
      count = count.defined() ? count + output.count : output.count;
    }
  }
  return count;
}

StepOutput MicroBatches::output() const {
  StepOutput mean_output;
  if (empty()) {
    return mean_output;
  }
  mean_output.loss = mean([](const StepOutput& out) { return out.loss; });
  mean_output.count = count();
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

}  // namespace lockstep
