#include "trainer/micro_batches.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/world/world.h>

#include "tensor/find_tensor.h"
#include "trainer/times_count.h"

namespace lockstep {

namespace {

/// A parameter, a buffer or a view of one has another value after the update or the next forward.
bool has_memory_of_others(const at::Tensor& value) {
  return !value.has_storage() || value.use_count() > 1 || value.storage().use_count() > 1;
}

}  // namespace

// variable_data() instead of detach(): the same tensor without a graph, in a fifth of the time.
void MicroBatches::add(const StepOutput& output, std::int64_t samples) {
  if (!output.loss.defined() && output.metrics.empty()) {
    return;
  }
  StepOutput kept(output.loss.defined() ? output.loss.variable_data() : at::Tensor());
  kept.count = output.count;
  for (const auto& [name, value] : output.metrics) {
    kept.metrics.emplace_back(name, has_memory_of_others(value) ? value.detach().clone() : value.variable_data());
  }
  parts_.emplace_back(std::move(kept), samples);
}

std::int64_t MicroBatches::samples() const {
  return std::accumulate(parts_.begin(), parts_.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& part) { return sum + part.second; });
}

// The samples are not made a tensor, because its copy to a GPU would wait.
MicroBatches::Sum MicroBatches::sum(const Value& value) const {
  Sum sum;
  for (const auto& [output, samples] : parts_) {
    at::Tensor term = value(output);
    if (!term.defined()) {
      continue;
    }
    if (output.count.defined()) {
      term = times_count(term, output.count);
      sum.count = sum.count.defined() ? sum.count + output.count : output.count.to(at::kDouble);
    } else {
      // The product of a loss and its samples may be infinite in half precision.
      term = at::isReducedFloatingType(term.scalar_type()) ? term.to(at::kFloat) : term;
      term = term * static_cast<double>(samples);
      sum.samples += static_cast<double>(samples);
    }
    sum.values = sum.values.defined() ? sum.values + term : term;
  }
  return sum;
}

at::Tensor MicroBatches::mean(const Value& value) const {
  const at::NoGradGuard no_grad;
  const auto has_value = [&](const auto& part) { return value(part.first).defined(); };
  const auto first = std::ranges::find_if(parts_, has_value);
  if (first == parts_.end()) {
    return {};
  }
  if (std::find_if(std::next(first), parts_.end(), has_value) == parts_.end()) {
    const at::Tensor& count = first->first.count;
    return count.defined() ? at::where(count > 0, value(first->first), 0) : value(first->first);
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
    if (output.loss.defined() && output.count.defined()) {
      count = count.defined() ? count + output.count : output.count;
    }
  }
  return count;
}

StepOutput MicroBatches::output() const {
  StepOutput mean_output;
  mean_output.loss = mean([](const StepOutput& out) { return out.loss; });
  mean_output.count = count();
  for (const auto& part : parts_) {
    for (const auto& [name, value] : part.first.metrics) {
      if (find_tensor(mean_output.metrics, name) == nullptr) {
        mean_output.metrics.emplace_back(name, mean([&name = name](const StepOutput& out) {
                                           const at::Tensor* found = find_tensor(out.metrics, name);
                                           return found == nullptr ? at::Tensor() : *found;
                                         }));
      }
    }
  }
  return mean_output;
}

at::Tensor MicroBatches::mean_over_ranks(World& world) const {
  const at::NoGradGuard no_grad;
  auto totals = at::zeros({2}, at::device(world.device()).dtype(at::kDouble));
  const Sum mine = sum([](const StepOutput& out) { return out.loss; });
  if (mine.values.defined()) {
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
