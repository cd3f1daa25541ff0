#include "trainer/meter.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/mapped.h"
#include "base/text.h"
#include "report/metric_file.h"
#include "tensor/host_number.h"
#include "tensor/prefixed.h"
#include "trainer/output/metric_names.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr std::string_view kMean = "mean.";  // in a checkpoint: a sum, counts and samples for each rank
constexpr std::int64_t kNumbers = 3;

}  // namespace

void Meter::add(const StepOutput& output, std::int64_t samples, const at::Tensor& left_out) {
  const at::NoGradGuard no_grad;
  if (means_.empty()) {
    means_.push_back({.name = "loss"});
  }
  at::Tensor weight = output.count;  // undefined: the samples
  if (left_out.defined()) {
    const at::Tensor whole = weight.defined() ? weight : at::full({}, samples, left_out.options().dtype(at::kDouble));
    weight = at::where(left_out > 0, 0, whole);
  }
  const at::Tensor counts = weight.defined() ? weight > 0 : at::Tensor();
  const auto add_weighted = [&](Mean& mean, const at::Tensor& given) {
    const at::Tensor value = given.dim() == 0 ? given : given.reshape({});
    const auto zero = [&] {
      return at::zeros({}, (output.loss.defined() ? output.loss : value).options().dtype(at::kDouble));
    };
    if (!mean.sum.defined()) {
      mean.sum = zero();
    }
    if (weight.defined()) {
      if (!mean.counts.defined()) {
        mean.counts = zero();
      }
      mean.sum.add_(at::where(counts, value.to(at::kDouble) * weight, 0));  // a mean over nothing may be NaN
      mean.counts.add_(weight);
      return;
    }
    if (const auto number = number_on_host(value); number && mean.sum.is_cpu()) {
      *mean.sum.mutable_data_ptr<double>() += static_cast<double>(samples) * double{*number};
    } else {
      mean.sum.add_(value, samples);
    }
    mean.samples += static_cast<double>(samples);
  };
  if (output.loss.defined()) {
    add_weighted(means_.front(), output.loss);
  }
  for (std::size_t i = 0; i < output.metrics.size(); ++i) {
    add_weighted(mean_of(output, i), output.metrics[i].second);
  }
}

// Almost always it has the place of the output before. Then no name occurs twice, as no two means have one name.
Meter::Mean& Meter::mean_of(const StepOutput& output, std::size_t index) {
  const std::string& name = output.metrics[index].first;
  if (const std::size_t expected = index + 1; expected < means_.size() && means_[expected].name == name) {
    return means_[expected];
  }
  const auto has_name = [&](const auto& metric) { return metric.first == name; };
  const auto found = std::ranges::find(means_, name, &Mean::name);
  const auto here = output.metrics.begin() + static_cast<std::ptrdiff_t>(index);
  if (found == means_.end() || found == means_.begin() || std::any_of(output.metrics.begin(), here, has_name)) {
    std::vector<MetricValue> names{{.name = means_.front().name}};
    for (const auto& metric : output.metrics) {
      names.push_back({.name = metric.first});
    }
    require_distinct(names);
  }
  if (found != means_.end()) {
    return *found;
  }
  check_metric_name(name);  // agree_on_names() sends one name a line
  return means_.emplace_back(Mean{.name = name});
}

// The names of all ranks, in the order in which the ranks have them.
void Meter::agree_on_names(World& world) {
  std::vector<Mean> all;
  for (const std::string& names : world.gather(join(mapped(means_, &Mean::name), "\n"))) {
    for (const std::string& name : split(names, '\n')) {
      if (name.empty() || std::ranges::find(all, name, &Mean::name) != all.end()) {
        continue;
      }
      const auto mine = std::ranges::find(means_, name, &Mean::name);
      all.push_back(mine != means_.end() ? *mine : Mean{.name = name});
    }
  }
  means_ = std::move(all);
  agreed_ = means_.size();
}

// The sums, the counts and the samples of the names on which the ranks agree. The last number is 1 if this rank has
// other names too.
at::Tensor Meter::own_sums(const World& world) const {
  const at::TensorOptions options = at::device(world.device()).dtype(at::kDouble);
  const at::Tensor zero = at::zeros({1}, options);
  std::vector<at::Tensor> numbers;
  const auto append = [&](const at::Tensor& number) {
    numbers.push_back(number.defined() ? number.to(options).view({1}) : zero);
  };
  std::vector<double> on_host;
  for (std::size_t i = 0; i < agreed_; ++i) {
    append(means_[i].sum);
    on_host.push_back(means_[i].samples);
  }
  for (std::size_t i = 0; i < agreed_; ++i) {
    append(means_[i].counts);
  }
  on_host.push_back(means_.size() > agreed_ ? 1 : 0);
  numbers.push_back(at::tensor(on_host, at::kDouble).to(world.device()));
  return at::cat(numbers);
}

at::Tensor Meter::sums_of_all(World& world) const {
  at::Tensor sums = own_sums(world);
  world.all_reduce(sums, Reduce::sum);
  return WorldAccess::on_host(world, sums);
}

Metrics Meter::means(World& world) {
  const at::NoGradGuard no_grad;
  at::Tensor sums = sums_of_all(world);
  if (sums.const_data_ptr<double>()[sums.numel() - 1] > 0) {
    agree_on_names(world);
    sums = sums_of_all(world);
  }
  const double* value = sums.const_data_ptr<double>();
  Metrics means;
  for (std::size_t i = 0; i < agreed_; ++i) {
    if (const double weight = value[agreed_ + i] + value[2 * agreed_ + i]; weight > 0) {
      means.emplace_back(means_[i].name, value[i] / weight);
    }
  }
  return means;
}

Metrics Meter::take(World& world) {
  auto means = this->means(world);
  for (Mean& mean : means_) {
    mean = {.name = std::move(mean.name)};
  }
  return means;
}

NamedTensors Meter::save(World& world) {
  const at::NoGradGuard no_grad;
  if (world.any(means_.size() > agreed_)) {
    agree_on_names(world);
  }
  if (!world.any(std::ranges::any_of(means_, [](const Mean& mean) { return mean.sum.defined(); }))) {
    return {};
  }
  const auto names = static_cast<std::int64_t>(agreed_);
  const at::Tensor all = WorldAccess::on_host(world, world.all_gather(own_sums(world).view({1, -1})));
  const at::Tensor numbers = all.narrow(1, 0, kNumbers * names).view({-1, kNumbers, names});
  NamedTensors saved;
  for (std::int64_t i = 0; i < names; ++i) {
    saved.emplace_back(fmt::format("{}{}", kMean, means_[static_cast<std::size_t>(i)].name),
                       numbers.select(2, i).contiguous());
  }
  return saved;
}

void Meter::load(const NamedTensors& saved, const World& world) {
  for (const auto& [name, of_ranks] : under_prefix(saved, kMean)) {
    at::Tensor mine = at::zeros({kNumbers}, at::kDouble);
    for (std::int64_t rank = world.rank(); rank < of_ranks.size(0); rank += world.size()) {
      mine += of_ranks[rank];
    }
    const at::Tensor on_device = mine.to(world.device(), /*non_blocking=*/false, /*copy=*/true);
    means_.push_back({.name = name,
                      .sum = on_device.select(0, 0),
                      .counts = on_device.select(0, 1),
                      .samples = mine[2].item<double>()});
  }
}

}  // namespace lockstep
