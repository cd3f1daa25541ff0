#include "trainer/meter.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "trainer/times_count.h"
#include "world/agreement.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr std::string_view kSum = "sum.";
constexpr std::string_view kCounts = "counts";
constexpr std::string_view kSamples = "samples";

// Its value can be read at once, which takes a hundredth of the time of an operation on tensors.
bool is_float_on_host(const at::Tensor& value) {
  return value.is_cpu() && value.scalar_type() == at::kFloat && value.numel() == 1 && !value.is_neg();
}

}  // namespace

void Meter::add(const StepOutput& output, std::int64_t samples, const at::Tensor& left_out) {
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
  at::Tensor weight = output.count;  // undefined: the samples
  if (left_out.defined()) {
    const at::Tensor whole = weight.defined() ? weight : at::full({}, samples, counts_.options());
    weight = at::where(left_out > 0, 0, whole);
  }
  const auto add_weighted = [&](const std::string& name, at::Tensor& sum, const at::Tensor& given) {
    if (given.numel() != 1) {
      throw Error(fmt::format("metric {} has the shape [{}], expected a scalar", name, fmt::join(given.sizes(), ", ")),
                  "return one number, for example the mean over the batch");
    }
    const at::Tensor value = given.dim() == 0 ? given : given.reshape({});
    if (weight.defined()) {
      sum.add_(times_count(value, weight));
    } else if (is_float_on_host(value) && sum.is_cpu()) {
      *sum.mutable_data_ptr<double>() += static_cast<double>(samples) * double{*value.const_data_ptr<float>()};
    } else {
      sum.add_(value, samples);
    }
  };
  add_weighted(names_[0], sums_[0], output.loss);
  for (std::size_t i = 0; i < output.metrics.size(); ++i) {
    if (output.metrics[i].first != names_[i + 1]) {
      throw Error(
          fmt::format("metric {} is called '{}', in the first step '{}'", i, output.metrics[i].first, names_[i + 1]),
          "return the same metrics in the same order from every step");
    }
    add_weighted(names_[i + 1], sums_[i + 1], output.metrics[i].second);
  }
  if (weight.defined()) {
    counts_.add_(weight);
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

Metrics Meter::means(World& world) {
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
  Metrics means;
  for (std::size_t i = 0; i < names_.size() && weight > 0; ++i) {
    means.emplace_back(names_[i], value[i] / weight);
  }
  return means;
}

Metrics Meter::take(World& world) {
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
  const auto mine = [&](const at::Tensor& of_ranks) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (std::int64_t rank = world.rank(); rank < of_ranks.size(0); rank += world.size()) {
      sum += of_ranks[rank];
    }
    return sum;
  };
  for (const auto& [name, of_ranks] : sums) {
    if (name == kCounts) {
      restored_.counts = mine(of_ranks).to(world.device());
    } else if (name == kSamples) {
      restored_.samples = mine(of_ranks).item<double>();
    } else if (name.starts_with(kSum)) {
      restored_.names.push_back(name.substr(kSum.size()));
      restored_.sums.push_back(mine(of_ranks).to(world.device()));
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
