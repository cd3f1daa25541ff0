#include "plan/memory_plan.h"

#include <cmath>
#include <span>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/ceil_div.h"
#include "base/mapped.h"
#include "base/text.h"
#include "config/field_value.h"
#include "plan/rank_shares.h"

namespace lockstep {
namespace {

struct OptimizerRow {
  std::string_view name{};
  int state = 0;
  int update = 0;
  std::string_view options{};  ///< each of them keeps another value
  bool can_be_sharded = true;
};

/// What the update rules in src/optim keep and need; tests/unit/parallel/planned_memory_test.cpp measures it.
/// Adafactor keeps only means of rows and columns. Muon is counted as if all parameters were matrices.
constexpr OptimizerRow kOptimizers[] = {
    {.name = "adamw", .state = 2, .options = "amsgrad"},
    {.name = "adam", .state = 2, .options = "amsgrad"},
    {.name = "sgd", .options = "momentum"},
    {.name = "rmsprop", .state = 1, .update = 2, .options = "momentum+centered"},
    {.name = "adagrad", .state = 1, .update = 2},
    {.name = "adadelta", .state = 2, .update = 3},
    {.name = "adamax", .state = 2, .update = 2},
    {.name = "nadam", .state = 2, .update = 2},
    {.name = "radam", .state = 2, .update = 1},
    {.name = "asgd", .state = 1, .update = 2},
    {.name = "rprop", .state = 2, .update = 1},
    {.name = "lion", .state = 1, .update = 1},
    {.name = "adafactor"},
    {.name = "muon", .state = 1, .update = 1},
    {.name = "prodigy", .state = 4, .update = 4, .can_be_sharded = false},
    {.name = "schedule_free_adamw", .state = 2, .update = 2},
};

const OptimizerRow* find_optimizer(std::string_view name) {
  const auto* row = std::ranges::find(kOptimizers, name, &OptimizerRow::name);
  return row == std::end(kOptimizers) ? nullptr : row;
}

int bytes_of_value(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return 8;
    case Precision::bf16:
    case Precision::fp16:
      return 2;
    case Precision::fp32:
    case Precision::bf16_mixed:
    case Precision::fp16_mixed:
      break;
  }
  return 4;
}

bool is_mixed(Precision precision) { return precision == Precision::bf16_mixed || precision == Precision::fp16_mixed; }

bool keeps_copies(const TrainConfig& config) {
  return config.optim.non_finite == NonFinitePolicy::rollback ||
         (config.spike.z_score > 0 && config.spike.policy == SpikePolicy::rollback);
}

bool is_sharded(const Plan& plan) { return plan.config.dist.shard_optimizer && plan.world_size > 1; }

/// The gradients are views of the reducer's buckets. Micro-batches before the last one of a step add up theirs beside
/// the buckets.
int copies_of_gradients(const Plan& plan) { return plan.world_size > 1 && plan.loader.batch.accumulation > 1 ? 2 : 1; }

std::string gradients_text(const Plan& plan) {
  return plan.world_size == 1             ? ""
         : copies_of_gradients(plan) == 1 ? "in the buckets that are sent"
                                          : "the buckets that are sent, and the sum of the earlier micro-batches";
}

std::string state_text(const OptimizerMemory& optimizer, const Plan& plan) {
  return fmt::format("{} for each parameter{}", counted(optimizer.state, "value"),
                     is_sharded(plan) ? fmt::format(", divided by {}", counted(plan.world_size, "rank")) : "");
}

std::string parts_text(const MemoryPlan& memory, const Plan& plan) {
  const MemoryEstimate& estimate = memory.estimate;
  struct Part {
    std::string name{};
    std::int64_t bytes = 0;
    std::string why{};
  };
  const std::vector<Part> parts{
      {"weights", estimate.weights,
       fmt::format("{} for each parameter", counted(bytes_of_value(plan.config.precision), "byte"))},
      {"gradients", estimate.gradients, gradients_text(plan)},
      {"optimizer state", estimate.optimizer_state, state_text(memory.optimizer, plan)},
      {"rollback", estimate.rollback, "copies of weights and optimizer state"},
      {"half precision", estimate.half_copies, "copies of the weights from forward to backward, at most"},
      {"together", estimate.beside_activations(), ""},
      {"update", estimate.update, "at most this much more during an update, when activations are freed"},
  };
  std::string text;
  for (const Part& part : parts) {
    if (part.bytes > 0) {
      text += fmt::format("  {:<17}{:>10}{}{}\n", part.name, human_bytes(part.bytes), part.why.empty() ? "" : "  ",
                          part.why);
    }
  }
  return text;
}

/// Adjacent ranks with the same device form one row.
std::string ranks_text(const MemoryPlan& memory, const Plan& plan) {
  struct Row {
    std::vector<int> ranks{};
    std::string device{};
    std::int64_t available = 0;
  };
  constexpr std::string_view kDevice = "device";
  std::size_t widest = kDevice.size();
  std::vector<Row> rows;
  for (std::size_t i = 0; i < plan.local_devices.size(); ++i) {
    const std::string device = device_text(plan.local_devices[i]);
    widest = std::max(widest, device.size());
    if (rows.empty() || rows.back().device != device) {
      rows.push_back({.device = device, .available = memory.available[i]});
    }
    rows.back().ranks.push_back(static_cast<int>(i));
  }
  std::string text =
      fmt::format("{:<12}{:<{}}  {:>10}  {:>20}\n", "local rank", kDevice, widest, "available", "left for activations");
  for (const Row& row : rows) {
    const std::int64_t left = row.available - memory.estimate.beside_activations();
    text += fmt::format("{:<12}{:<{}}  {:>10}  {:>20}\n", format_ranges(row.ranks), row.device, widest,
                        row.available > 0 ? human_bytes(row.available) : "unknown",
                        row.available == 0 ? "unknown"
                        : left > 0         ? human_bytes(left)
                                           : "none");
  }
  return text;
}

/// A way to need less memory.
struct Saving {
  std::string_view how{};
  void (*apply)(Plan& plan, OptimizerMemory& optimizer) = nullptr;
};

std::vector<Saving> possible_savings(const OptimizerMemory& optimizer, const Plan& plan) {
  std::vector<Saving> savings;
  if (plan.world_size > 1 && !is_sharded(plan) && optimizer.can_be_sharded && optimizer.state > 0) {
    savings.push_back({"--dist.shard_optimizer true",
                       [](Plan& other, OptimizerMemory&) { other.config.dist.shard_optimizer = true; }});
  }
  if (bytes_of_value(plan.config.precision) > 2) {
    savings.push_back({"--precision bf16 --optim.stochastic_rounding true",
                       [](Plan& other, OptimizerMemory&) { other.config.precision = Precision::bf16; }});
  }
  if (optimizer.state + optimizer.update > 0) {
    savings.push_back(
        {"the optimizer adafactor", [](Plan&, OptimizerMemory& other) { other = optimizer_memory("adafactor"); }});
  }
  return savings;
}

std::int64_t needed_with(std::span<const Saving> savings, const MemoryPlan& memory, const Plan& plan) {
  Plan other = plan;
  OptimizerMemory optimizer = memory.optimizer;
  for (const Saving& saving : savings) {
    saving.apply(other, optimizer);
  }
  return estimate_memory(memory.parameters, optimizer, other).needed();
}

std::string how_to_save(std::int64_t available, const MemoryPlan& memory, const Plan& plan) {
  const std::vector<Saving> savings = possible_savings(memory.optimizer, plan);
  std::vector<std::string> sufficient;
  for (const Saving& saving : savings) {
    if (const std::int64_t needed = needed_with({&saving, 1}, memory, plan); needed <= available) {
      sufficient.push_back(fmt::format("{} (then {})", saving.how, human_bytes(needed)));
    }
  }
  if (!sufficient.empty()) {
    return fmt::format("use {}", join_or(sufficient));
  }
  constexpr std::string_view kElse = "every rank has the whole model: use a smaller model, or devices with more memory";
  if (savings.empty()) {
    return std::string(kElse);
  }
  const std::string all = join(mapped(savings, [](const Saving& saving) { return std::string(saving.how); }), " and ");
  const std::int64_t needed = needed_with(savings, memory, plan);
  return needed <= available ? fmt::format("use {} (then {})", all, human_bytes(needed))
                             : fmt::format("{}; {} would still need {}", kElse, all, human_bytes(needed));
}

}  // namespace

std::optional<std::int64_t> parse_parameters(std::string_view text) {
  constexpr std::string_view kUnits = "kmbt";
  constexpr double kMost = 1e15;
  const char last = text.empty() ? '\0' : to_lower(text.substr(text.size() - 1)).front();
  const std::size_t unit = kUnits.find(last == 'g' ? 'b' : last);
  const bool has_unit = unit != std::string_view::npos;
  const auto number = parse_double(has_unit ? text.substr(0, text.size() - 1) : text);
  const double parameters = number.value_or(0) * (has_unit ? std::pow(1000.0, static_cast<double>(unit) + 1) : 1);
  return parameters >= 1 && parameters <= kMost ? std::optional<std::int64_t>(std::llround(parameters)) : std::nullopt;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerRow& row : kOptimizers) {
    names.emplace_back(row.name);
  }
  return names;
}

OptimizerMemory optimizer_memory(std::string_view text) {
  const std::vector<std::string> words = split(text, '+');
  const OptimizerRow* row = find_optimizer(words.front());
  if (row == nullptr) {
    const std::vector<std::string> names = optimizer_names();
    throw ConfigError(fmt::format("--optimizer {}: unknown optimizer", printable(text)),
                      did_you_mean(words.front(), names, "", fmt::format("use {}", join_or(names))));
  }
  OptimizerMemory memory{
      .name = std::string(text), .state = row->state, .update = row->update, .can_be_sharded = row->can_be_sharded};
  std::vector<std::string> options = split(row->options, '+');
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i].empty() || std::erase(options, words[i]) == 0) {
      throw ConfigError(fmt::format("--optimizer {}: {} has no option '{}' that needs more memory", printable(text),
                                    row->name, printable(words[i])),
                        row->options.empty() ? fmt::format("use {}", row->name)
                                             : fmt::format("use {} or {}+{}", row->name, row->name, row->options));
    }
    ++memory.state;
  }
  return memory;
}

MemoryEstimate estimate_memory(std::int64_t parameters, const OptimizerMemory& optimizer, const Plan& plan) {
  const std::int64_t ranks = is_sharded(plan) ? plan.world_size : 1;
  const std::int64_t share = ceil_div(parameters, ranks);  // shares are whole parameters, so this is about right
  const std::int64_t bytes = bytes_of_value(plan.config.precision);
  MemoryEstimate estimate{.weights = parameters * bytes,
                          .gradients = parameters * bytes * copies_of_gradients(plan),
                          .optimizer_state = share * bytes * optimizer.state,
                          .half_copies = is_mixed(plan.config.precision) ? parameters * 2 : 0,
                          .update = share * bytes * optimizer.update};
  if (keeps_copies(plan.config)) {
    estimate.rollback = estimate.weights + estimate.optimizer_state;
  }
  return estimate;
}

MemoryPlan plan_memory(std::int64_t parameters, const OptimizerMemory& optimizer, const Plan& plan,
                       const Hardware& hardware) {
  if (is_sharded(plan) && !optimizer.can_be_sharded) {
    throw ConfigError(fmt::format("--dist.shard_optimizer true: {} updates all parameters together", optimizer.name),
                      "use another optimizer, or --dist.shard_optimizer false");
  }
  MemoryPlan memory{
      .parameters = parameters, .optimizer = optimizer, .estimate = estimate_memory(parameters, optimizer, plan)};
  for (const LocalDevice& device : plan.local_devices) {
    const std::int64_t free =
        device.id.gpu ? hardware.gpus.at(static_cast<std::size_t>(device.id.index)).free_bytes : hardware.memory_bytes;
    memory.available.push_back(free / std::ranges::count(plan.local_devices, device.id, &LocalDevice::id));
  }
  return memory;
}

std::string describe(const MemoryPlan& memory, const Plan& plan) {
  return fmt::format(
      "\nmemory of each rank, for {} parameters with {} in {}\n{}\n{}{}",
      with_commas(static_cast<double>(memory.parameters)), memory.optimizer.name, to_text(plan.config.precision),
      parts_text(memory, plan), ranks_text(memory, plan),
      find_lack_of_memory(memory, plan) ? "" : "the largest batch for it: find_batch_size, see docs/loop.md\n");
}

std::optional<Problem> find_lack_of_memory(const MemoryPlan& memory, const Plan& plan) {
  const std::int64_t needed = memory.estimate.needed();
  std::vector<std::string> devices;
  std::int64_t least = 0;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < memory.available.size(); ++i) {
    const std::int64_t available = memory.available[i];
    if (available <= 0 || available >= needed) {
      continue;
    }
    const std::string device = to_string(plan.local_devices[i].id);
    if (devices.empty() || devices.back() != device) {
      devices.push_back(device);
    }
    least = least == 0 ? available : std::min(least, available);
    most = std::max(most, available);
  }
  if (devices.empty()) {
    return std::nullopt;
  }
  return Problem{
      .what = fmt::format(
          "the model does not fit: without activations a rank needs {}, and has {} on {}", human_bytes(needed),
          least == most ? human_bytes(least) : fmt::format("{} to {}", human_bytes(least), human_bytes(most)),
          join_first(devices, 8)),
      .hint = how_to_save(least, memory, plan)};
}

}  // namespace lockstep
