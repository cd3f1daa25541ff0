#include "trainer/watch/finite_watch.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include <lockstep/tensor/named_tensors.h>

#include "base/text.h"
#include "tensor/host_number.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr std::int64_t kNever = std::int64_t{1} << 40;  // more than any run's number of steps
constexpr std::size_t kMostPending = 256;
// The loss scale of fp16_mixed has gone from 65536 to 0.002 then.
constexpr std::int64_t kMostSkipped = 25;

at::Tensor first_of(const at::Tensor& bad, std::int64_t begin) {
  const at::Tensor numbers = at::arange(begin, begin + bad.size(0), bad.options().dtype(at::kLong));
  return at::where(bad, numbers, kNever).min();
}

// Checks only trained parameters: a frozen tensor may contain infinity on purpose, such as an attention mask.
NamedTensors trained_values(const torch::nn::Module& module) {
  NamedTensors values;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (parameter.requires_grad() && parameter.numel() > 0) {
      values.emplace_back(item.key(), parameter.is_complex() ? at::view_as_real(parameter) : parameter);
    }
  }
  return values;
}

// A sum of absolute values is finite if all of them are finite.
at::Tensor first_parameter(const NamedTensors& parameters, c10::Device device) {
  if (parameters.empty()) {
    return at::full({}, kNever, at::device(device).dtype(at::kLong));
  }
  std::vector<at::Tensor> tensors;
  bool has_double = false;
  for (const auto& [name, tensor] : parameters) {
    tensors.push_back(tensor);
    has_double = has_double || tensor.scalar_type() == at::kDouble;
  }
  const auto sums = at::_foreach_norm(tensors, 1, has_double ? at::kDouble : at::kFloat);
  return first_of(at::isfinite(at::stack(sums)).logical_not(), 0);
}

std::string text_of_loss(const NonFinite::Value& loss) {
  return fmt::format("the loss of step {} is not finite on rank {}{}", loss.step, loss.rank,
                     loss.samples.empty() ? std::string() : fmt::format(" (samples {})", loss.samples));
}

}  // namespace

std::string SkippedSteps::text() const {
  const std::string which =
      count == 1 ? fmt::format("step {} was skipped since the last report", first)
                 : fmt::format("{} steps from {} to {} were skipped since the last report", count, first, last);
  return fmt::format("{}: {}", which, loss ? text_of_loss(*loss) : "a gradient was not finite");
}

std::string NonFinite::text() const {
  std::string found;
  const auto add = [&](const std::string& part) { found += (found.empty() ? "" : "; ") + part; };
  if (loss) {
    add(text_of_loss(*loss));
  }
  if (grad_norm) {
    add(fmt::format("the gradient norm of step {} is not finite", grad_norm->step));
  }
  if (skipped_steps > 0) {
    add(fmt::format("a loss or a gradient of each of the last {} steps was not finite", skipped_steps));
  }
  add(parameter.empty() ? std::string("all parameters are finite")
                        : fmt::format("the first parameter that is not finite is {}", parameter));
  return found;
}

void RecentSamples::add(std::int64_t step, const StepBatches& batches) {
  Entry& entry = entries_[static_cast<std::size_t>(step) % kSteps];
  entry.step = step;
  entry.count = 0;
  entry.first.clear();
  for (const Batch& batch : batches.micro) {
    entry.count += std::ssize(batch.ids);
    const std::size_t named = std::min(batch.ids.size(), kNamed - entry.first.size());
    entry.first.insert(entry.first.end(), batch.ids.begin(), batch.ids.begin() + static_cast<std::ptrdiff_t>(named));
  }
}

std::string RecentSamples::of(std::int64_t step) const {
  const Entry& entry = entries_[static_cast<std::size_t>(step) % kSteps];
  if (entry.step != step || entry.count == 0) {
    return {};
  }
  const std::int64_t more = entry.count - std::ssize(entry.first);
  return fmt::format("{}{}", fmt::join(entry.first, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

void FiniteWatch::add(std::int64_t step, const StepResult& result, const StepBatches& batches) {
  samples_.add(step, batches);
  if (!result.skipped.defined()) {
    losses_.add(step, result.loss);
    grad_norms_.add(step, result.grad_norm);
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor is_skipped = result.skipped > 0;
  const auto unless_skipped = [&](const at::Tensor& value) {
    return value.defined() ? at::where(is_skipped, 0, value) : value;
  };
  losses_.add(step, unless_skipped(result.loss));
  skipped_losses_.add(step, result.loss.defined() ? at::where(is_skipped, result.loss, 0) : result.loss);
  grad_norms_.add(step, unless_skipped(result.grad_norm));
  skips_.add(step, is_skipped);
  skipped_in_a_row_ =
      (skipped_in_a_row_.defined() ? skipped_in_a_row_ + result.skipped : result.skipped) * result.skipped;
}

std::optional<NonFinite> FiniteWatch::look(const torch::nn::Module& module, World& world) {
  const at::NoGradGuard no_grad;
  const NamedTensors parameters = trained_values(module);
  // One number encodes step and rank, so the minimum over ranks is the first.
  const auto number_of = [&](const at::Tensor& steps) {
    return steps.defined() ? steps.to(at::kLong) : at::zeros({}, at::device(world.device()).dtype(at::kLong));
  };
  const at::Tensor firsts = at::stack({losses_.take(world.device()), grad_norms_.take(world.device()),
                                       first_parameter(parameters, world.device()), number_of(skipped_in_a_row_),
                                       skipped_losses_.take(world.device())});
  const auto found = at::cat({firsts, skips_.take(world.device())}).mul_(world.size()).add_(world.rank());
  world.all_reduce(found, Reduce::min);
  const at::Tensor host = WorldAccess::on_host(world, found);
  const auto value = [&](std::int64_t i) -> std::optional<NonFinite::Value> {
    const std::int64_t number = host.const_data_ptr<std::int64_t>()[i];
    const NonFinite::Value place{.step = number / world.size(), .rank = static_cast<int>(number % world.size())};
    return place.step < kNever ? std::optional(place) : std::nullopt;
  };
  NonFinite result{.loss = value(0), .grad_norm = value(1)};
  name_samples(result.loss, world);
  if (result.grad_norm && !result.loss) {
    result.grad_norm->samples = samples_of_all(result.grad_norm->step, world);
  }
  const auto parameter = value(2);
  if (const std::int64_t in_a_row = value(3)->step; in_a_row >= kMostSkipped) {
    result.skipped_steps = in_a_row;
  }
  skipped_ = {.count = value(5)->step};
  if (skipped_.count > 0) {
    skipped_ = {.count = skipped_.count, .first = value(6)->step, .last = value(7)->step, .loss = value(4)};
    name_samples(skipped_.loss, world);
    if (!skipped_.loss) {
      skipped_.samples = samples_of_all(skipped_.first, world);
    }
  }
  if (parameter) {
    result.parameter = parameters.at(static_cast<std::size_t>(parameter->step)).first;
  }
  return result.loss || result.grad_norm || parameter || result.skipped_steps > 0 ? std::optional(std::move(result))
                                                                                  : std::nullopt;
}

void FiniteWatch::name_samples(std::optional<NonFinite::Value>& value, World& world) const {
  if (value) {
    value->samples = world.gather(samples_.of(value->step)).at(static_cast<std::size_t>(value->rank));
  }
}

std::string FiniteWatch::samples_of_all(std::int64_t step, World& world) const {
  std::vector<std::string> of_ranks = world.gather(samples_.of(step));
  std::erase(of_ranks, "");
  return join(of_ranks, "; ");
}

void FiniteWatch::Skips::add(std::int64_t step, const at::Tensor& skipped) {
  steps_.push_back(step);
  pending_.push_back(skipped);
  if (pending_.size() == kMostPending) {
    fold();
  }
}

void FiniteWatch::Skips::fold() {
  if (pending_.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor skipped = at::stack(pending_);
  const at::Tensor steps = at::tensor(steps_, at::kLong).to(skipped.device(), at::kLong, /*non_blocking=*/true);
  const at::Tensor count = skipped.sum();
  const at::Tensor first = at::where(skipped, steps, kNever).min();
  const at::Tensor last = at::where(skipped, steps, 0).max();
  found_ = found_.defined()
               ? at::stack({found_[0] + count, at::minimum(found_[1], first), at::maximum(found_[2], last)})
               : at::stack({count, first, last});
  steps_.clear();
  pending_.clear();
}

at::Tensor FiniteWatch::Skips::take(c10::Device device) {
  fold();
  const at::Tensor found = std::exchange(found_, {});
  return found.defined() ? found.to(device) : at::zeros({3}, at::device(device).dtype(at::kLong));
}

void FiniteWatch::Series::add(std::int64_t step, const at::Tensor& value) {
  const auto number = number_on_host(value);
  if (number && !std::isfinite(*number)) {
    first_on_host_ = std::min(first_on_host_.value_or(step), step);
  }
  const bool has_more = value.defined() && !number;
  if (pending_.empty()) {
    if (!has_more) {
      return;
    }
    begin_ = step;
  }
  pending_.push_back(has_more ? value : at::Tensor());
  if (pending_.size() == kMostPending) {
    fold();
  }
}

void FiniteWatch::Series::fold() {
  const auto defined = std::find_if(pending_.begin(), pending_.end(), [](const at::Tensor& t) { return t.defined(); });
  if (defined != pending_.end()) {
    const at::NoGradGuard no_grad;
    const at::Tensor nothing = at::zeros_like(*defined);
    for (at::Tensor& value : pending_) {
      value = value.defined() ? value : nothing;
    }
    const at::Tensor first = first_of(at::isfinite(at::stack(pending_)).logical_not(), begin_);
    first_ = first_.defined() ? at::minimum(first_, first) : first;
  }
  pending_.clear();
}

at::Tensor FiniteWatch::Series::take(c10::Device device) {
  fold();
  const std::int64_t on_host = std::exchange(first_on_host_, std::nullopt).value_or(kNever);
  const at::Tensor first = at::full({}, on_host, at::device(device).dtype(at::kLong));
  const at::Tensor pending = std::exchange(first_, {});
  return pending.defined() ? at::minimum(first, pending.to(device)) : first;
}

}  // namespace lockstep
