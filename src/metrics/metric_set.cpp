#include "metrics/metric_set.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>

#include "base/exception_text.h"
#include "base/mapped.h"
#include "base/problems.h"
#include "base/text.h"
#include "tensor/find_tensor.h"
#include "tensor/shape_text.h"
#include "world/agreement.h"
#include "world/world_access.h"

namespace lockstep::metrics {
namespace {

constexpr std::int64_t kMostElements = 1000;  // of one metric in a report

struct NamedState {
  std::string name;  // "accuracy.total"
  StateReduction reduction;
  at::Tensor& initial;
  at::Tensor& value;
};

std::vector<NamedState> states_of(std::span<const NamedMetric> metrics) {
  std::vector<NamedState> states;
  for (const NamedMetric& metric : metrics) {
    for (auto& state : MetricAccess::states(metric.metric)) {
      states.push_back({metric.name + "." + state.name, state.reduction, state.initial, state.value});
    }
  }
  return states;
}

/// States with a fixed size travel together: whole numbers as int64, the others as float64.
constexpr std::array kKinds{at::kLong, at::kDouble};

at::ScalarType kind_of(const at::Tensor& state) {
  return at::isIntegralType(state.scalar_type(), /*includeBool=*/true) ? at::kLong : at::kDouble;
}

void check_state(const NamedState& state) {
  if (state.value.requires_grad()) {
    throw Error(fmt::format("the metric state '{}' keeps an autograd graph", state.name),
                "detach the values that update() adds, or use torch::NoGradGuard in it");
  }
  const std::size_t rows = state.reduction == StateReduction::cat ? 1 : 0;
  const bool fits =
      state.value.dim() == state.initial.dim() && state.value.sizes().slice(rows) == state.initial.sizes().slice(rows);
  if (!fits || kind_of(state.value) != kind_of(state.initial)) {
    throw Error(fmt::format("the metric state '{}' has become {}, expected {} as it began", state.name,
                            kind_text(state.value), kind_text(state.initial)),
                "let update() keep its shape and kind, or begin with those of the updates");
  }
}

/// Collective. The states of a program that is the same on all ranks can differ only by what the program asks its rank.
void agree_on_states(const std::vector<NamedState>& states, World& world) {
  std::string mine;
  for (const NamedState& state : states) {
    mine += fmt::format("{} {} {}\n", state.name, kind_text(state.initial), static_cast<int>(state.reduction));
  }
  if (const auto difference = find_disagreement(mine, world)) {
    throw_disagreement(*difference, world, "has the metric state",
                       "return the same metrics from Task::metrics on every rank");
  }
}

/// Collective if `agreed` is false. The states, which no autograd graph keeps and which are the same on all ranks.
std::vector<NamedState> agreed_states(std::span<const NamedMetric> metrics, bool& agreed, World& world) {
  std::vector<NamedState> states = states_of(metrics);
  std::ranges::for_each(states, check_state);
  if (!agreed) {
    agree_on_states(states, world);
    agreed = true;
  }
  return states;
}

/// [1, elements of all states]
at::Tensor flat(const std::vector<const NamedState*>& states, at::ScalarType kind) {
  return at::cat(mapped(states, [&](const NamedState* state) { return state->value.to(kind).reshape({1, -1}); }), 1);
}

/// Calls `use(state, rows)` for each part of what flat() has put together; `rows`: [N, ...] like the state.
template <class Use>
void for_each_part(const at::Tensor& all, const std::vector<const NamedState*>& states, const Use& use) {
  std::int64_t column = 0;
  for (const NamedState* state : states) {
    std::vector<std::int64_t> shape = state->initial.sizes().vec();
    shape.insert(shape.begin(), all.size(0));
    use(*state, all.narrow(1, column, state->initial.numel()).to(state->initial.scalar_type()).reshape(shape));
    column += state->initial.numel();
  }
}

template <class Choose>
std::vector<const NamedState*> choose(const std::vector<NamedState>& states, const Choose& chosen) {
  std::vector<const NamedState*> result;
  for (const NamedState& state : states) {
    if (chosen(state)) {
      result.push_back(&state);
    }
  }
  return result;
}

bool is_cat(const NamedState& state) { return state.reduction == StateReduction::cat; }

/// Collective. `mine`: [1, N]. The minimum and maximum are not those of a backend, which may drop NaN.
at::Tensor reduced(const at::Tensor& mine, StateReduction reduction, World& world) {
  if (reduction == StateReduction::sum) {
    world.all_reduce(mine, Reduce::sum);
    return WorldAccess::on_host(world, mine);
  }
  const at::Tensor all = WorldAccess::on_host(world, world.all_gather(mine));
  return reduction == StateReduction::min ? all.amin(0, true) : all.amax(0, true);
}

/// Collective. Replaces the states by those of all ranks together, on the CPU.
void reduce_states(const std::vector<NamedState>& states, World& world) {
  for (const at::ScalarType kind : kKinds) {
    for (const StateReduction reduction : {StateReduction::sum, StateReduction::min, StateReduction::max}) {
      const auto chosen =
          choose(states, [&](const auto& s) { return s.reduction == reduction && kind_of(s.initial) == kind; });
      if (chosen.empty()) {
        continue;
      }
      for_each_part(reduced(flat(chosen, kind), reduction, world), chosen,
                    [](const NamedState& state, const at::Tensor& rows) { state.value = rows[0]; });
    }
  }
  for (const NamedState* state : choose(states, is_cat)) {
    state->value = WorldAccess::on_host(world, world.all_gather(state->value));
  }
}

bool is_updated(const std::vector<NamedState>& states) {
  return std::ranges::any_of(
      states, [](const NamedState& state) { return !at::equal(state.value.cpu(), state.initial.cpu()); });
}

Problem too_large(const NamedMetric& metric, std::int64_t elements) {
  return {fmt::format("the metric '{}' has {} values, a report has at most {} of one metric", metric.name, elements,
                      kMostElements),
          "remove it from Task::metrics, and call its value() and reset() in a callback"};
}

/// An exception of compute(), which may be code of the program, does not say to which metric it belongs.
at::Tensor computed(const NamedMetric& metric) {
  const auto failed = [&](const std::string& what) { return fmt::format("the metric '{}': {}", metric.name, what); };
  try {
    return metric.metric.compute().to(at::device(at::kCPU).dtype(at::kDouble)).contiguous();
  } catch (const Error& error) {
    throw Error(failed(exception_text(error)), error.hint(), error.exit_code());
  } catch (...) {
    throw Error(failed(current_exception_text()));
  }
}

void append_values(const NamedMetric& metric, std::vector<std::pair<std::string, double>>& values) {
  const at::Tensor value = computed(metric);
  if (value.dim() == 0) {
    values.emplace_back(metric.name, value.item<double>());
    return;
  }
  if (value.numel() > kMostElements) {
    const Problem problem = too_large(metric, value.numel());
    throw Error(problem.what, problem.hint);
  }
  const std::vector<std::string> names = metric.metric.element_names();
  std::vector<std::int64_t> index(static_cast<std::size_t>(value.dim()));
  for (std::int64_t i = 0; i < value.numel(); ++i) {
    std::int64_t rest = i;
    for (std::int64_t dimension = value.dim() - 1; dimension >= 0; --dimension) {
      index[static_cast<std::size_t>(dimension)] = rest % value.size(dimension);
      rest /= value.size(dimension);
    }
    const auto position = static_cast<std::size_t>(i);
    values.emplace_back(position < names.size() ? fmt::format("{}_{}", metric.name, printable(names[position]))
                                                : fmt::format("{}_{}", metric.name, fmt::join(index, "_")),
                        value.const_data_ptr<double>()[i]);
  }
}

/// What rank `rank` of `world_size` takes of the rows of a number of ranks.
at::Tensor share(const at::Tensor& rows, StateReduction reduction, const World& world) {
  const at::Tensor mine = rows.slice(0, world.rank(), std::nullopt, world.size());
  switch (reduction) {
    case StateReduction::min:
      return mine.amin(0);
    case StateReduction::max:
      return mine.amax(0);
    default:
      return mine.sum(0, /*keepdim=*/false, mine.scalar_type());
  }
}

/// Puts states of the same metrics, from before, and the present ones together.
void add_earlier(const std::vector<NamedState>& states, const MetricSet::States& earlier) {
  for (std::size_t i = 0; i < earlier.size(); ++i) {
    at::Tensor& value = states[i].value;
    switch (states[i].reduction) {
      case StateReduction::sum:
        value = earlier[i] + value;
        break;
      case StateReduction::min:
        value = at::minimum(earlier[i], value);
        break;
      case StateReduction::max:
        value = at::maximum(earlier[i], value);
        break;
      case StateReduction::cat:
        value = at::cat({earlier[i], value});
        break;
    }
  }
}

// Of a state with reduction cat: the number of rows of each rank.
std::string lengths_name(const std::string& state) { return state + ".lengths"; }

}  // namespace

StatesKept::StatesKept(std::span<const NamedMetric> metrics) {
  for (const NamedMetric& metric : metrics) {
    auto& [kept, values] = kept_.emplace_back(&metric.metric, std::vector<at::Tensor>());
    for (const auto& state : MetricAccess::states(*kept)) {
      values.push_back(state.value);
    }
  }
}

StatesKept::~StatesKept() {
  for (auto& [metric, values] : kept_) {
    auto value = values.begin();
    for (auto& state : MetricAccess::states(*metric)) {
      state.value = std::move(*value++);
    }
  }
}

FreshStates::FreshStates(std::span<const NamedMetric> metrics) : of_before_(metrics) {
  for (const NamedMetric& metric : metrics) {
    metric.metric.reset();
  }
}

at::Tensor Metric::value(World& world) {
  const c10::NoGradGuard no_grad;
  const std::vector<NamedMetric> self{{"this metric", *this}};
  const std::vector<NamedState> states = states_of(self);
  std::ranges::for_each(states, check_state);
  agree_on_states(states, world);
  const StatesKept kept(self);
  reduce_states(states, world);
  return compute();
}

MetricSet::MetricSet(std::vector<NamedMetric> metrics, const World& world) : metrics_(std::move(metrics)) {
  for (auto metric = metrics_.begin(); metric != metrics_.end(); ++metric) {
    const std::span before(metrics_.begin(), metric);
    const bool is_no_name = metric->name.empty() || !is_utf8(metric->name);
    if (is_no_name || std::ranges::find(before, metric->name, &NamedMetric::name) != before.end()) {
      throw ConfigError(fmt::format("Task::metrics: found the name '{}' {}", printable(metric->name),
                                    is_no_name ? "for a metric" : "for two metrics"),
                        "give each metric a name of its own, in UTF-8");
    }
    const auto same = std::ranges::find(before, &metric->metric, [](const NamedMetric& m) { return &m.metric; });
    if (same != before.end()) {
      throw ConfigError(
          fmt::format("Task::metrics: found one metric with the names '{}' and '{}'", same->name, metric->name),
          "give each name a metric of its own");
    }
    metric->metric.to(world.device());
  }
}

void MetricSet::check_sizes() const {
  const c10::NoGradGuard no_grad;
  std::vector<Problem> problems;
  for (const NamedMetric& metric : metrics_) {
    try {
      if (const std::int64_t elements = metric.metric.compute().numel(); elements > kMostElements) {
        problems.push_back(too_large(metric, elements));
      }
    } catch (const std::exception&) {  // one of the program may have no value before its first update
    }
  }
  throw_if_any(std::move(problems));
}

std::vector<std::pair<std::string, double>> MetricSet::values(World& world, const States& earlier) {
  const c10::NoGradGuard no_grad;
  const std::vector<NamedState> states = agreed_states(metrics_, agreed_, world);
  std::vector<std::pair<std::string, double>> values;
  if (metrics_.empty()) {
    return values;
  }
  const StatesKept kept(metrics_);
  add_earlier(states, earlier);
  reduce_states(states, world);
  for (const NamedMetric& metric : metrics_) {
    if (is_updated(states_of({&metric, 1}))) {
      append_values(metric, values);
    }
  }
  return values;
}

void MetricSet::reset() {
  for (const NamedMetric& metric : metrics_) {
    metric.metric.reset();
  }
}

MetricSet::States MetricSet::take(const States& earlier) {
  const c10::NoGradGuard no_grad;
  const std::vector<NamedState> states = states_of(metrics_);
  std::ranges::for_each(states, check_state);
  add_earlier(states, earlier);
  States taken;
  for (const NamedState& state : states) {
    taken.push_back(state.value);
  }
  reset();
  return taken;
}

NamedTensors MetricSet::save(World& world, const States& states) {
  if (states.empty()) {
    return {};
  }
  const StatesKept kept(metrics_);
  const std::vector<NamedState> present = states_of(metrics_);
  for (std::size_t i = 0; i < states.size(); ++i) {
    present[i].value = states[i];
  }
  return save(world);
}

NamedTensors MetricSet::save(World& world) {
  const c10::NoGradGuard no_grad;
  const std::vector<NamedState> states = agreed_states(metrics_, agreed_, world);
  NamedTensors saved;
  if (metrics_.empty()) {
    return saved;
  }
  for (const at::ScalarType kind : kKinds) {
    const auto fixed = choose(states, [&](const auto& s) { return !is_cat(s) && kind_of(s.initial) == kind; });
    if (fixed.empty()) {
      continue;
    }
    for_each_part(
        WorldAccess::on_host(world, world.all_gather(flat(fixed, kind))), fixed,
        [&](const NamedState& state, const at::Tensor& rows) { saved.emplace_back(state.name, rows.contiguous()); });
  }
  for (const NamedState* state : choose(states, is_cat)) {
    const at::Tensor length = at::full({1}, state->value.size(0), state->value.options().dtype(at::kLong));
    saved.emplace_back(state->name, WorldAccess::on_host(world, world.all_gather(state->value)));
    saved.emplace_back(lengths_name(state->name), WorldAccess::on_host(world, world.all_gather(length)));
  }
  return saved;
}

void MetricSet::load(const NamedTensors& saved, const World& world) {
  const auto find = [&](const std::string& name) { return find_tensor(saved, name); };
  const auto fits = [](const at::Tensor& rows, const NamedState& state) {
    return rows.scalar_type() == state.initial.scalar_type() && rows.dim() > 0 &&
           (state.reduction == StateReduction::cat ? rows.sizes().slice(1) == state.initial.sizes().slice(1)
                                                   : rows.sizes().slice(1) == state.initial.sizes());
  };
  const auto is_saved = [&](const NamedState& state) {
    const at::Tensor* rows = find(state.name);
    return rows != nullptr && fits(*rows, state);
  };
  std::vector<NamedState> states;
  for (const NamedMetric& metric : metrics_) {  // some of the states of a metric would give a wrong value
    const std::vector<NamedState> of_metric = states_of({&metric, 1});
    if (std::ranges::all_of(of_metric, is_saved)) {
      std::ranges::copy(of_metric, std::back_inserter(states));
    }
  }
  for (const NamedState& state : states) {
    const at::Tensor* rows = find(state.name);
    if (state.reduction != StateReduction::cat) {
      if (world.rank() < rows->size(0)) {
        state.value = share(*rows, state.reduction, world).to(state.initial.device());
      }
      continue;
    }
    const at::Tensor* lengths = find(lengths_name(state.name));
    if (lengths == nullptr || lengths->sum().item<std::int64_t>() != rows->size(0)) {
      continue;
    }
    std::vector<at::Tensor> mine{state.initial.cpu()};
    std::int64_t begin = 0;
    for (std::int64_t rank = 0; rank < lengths->size(0); ++rank) {
      const auto length = (*lengths)[rank].item<std::int64_t>();
      if (rank % world.size() == world.rank()) {
        mine.push_back(rows->narrow(0, begin, length));
      }
      begin += length;
    }
    state.value = at::cat(mine).to(state.initial.device());
  }
}

}  // namespace lockstep::metrics
