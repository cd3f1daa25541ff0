#include "plan/batch_limit.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/json.h"
#include "base/mapped.h"
#include "base/run_files.h"
#include "base/text.h"
#include "config/without_files.h"
#include "plan/batch_plan.h"

namespace lockstep {
namespace {

constexpr int kLimitFormat = 1;

}  // namespace

std::string to_json(const BatchLimit& limit) {
  return dump_json_pretty(Json{{"format", kLimitFormat},
                               {"batch_size", limit.batch_size},
                               {"device", limit.device},
                               {"too_large", limit.too_large}}) +
         "\n";
}

std::optional<BatchLimit> parse_batch_limit(std::string_view json) {
  try {
    const Json root = parse_json(json);
    BatchLimit limit{.batch_size = member_as<std::int64_t>(root, "batch_size"),
                     .device = member_as<std::string>(root, "device"),
                     .too_large = member_as<std::int64_t>(root, "too_large")};
    const bool is_read = member_as<std::int64_t>(root, "format") == kLimitFormat && limit.too_large > 0;
    return is_read ? std::optional(std::move(limit)) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string device_with_memory(const LocalDevice& device) {
  return device.memory_bytes > 0 ? fmt::format("{} ({})", device.name, human_bytes(device.memory_bytes)) : device.name;
}

BatchLimit batch_limit(const Plan& plan, const LocalDevice& device) {
  return {.batch_size = asked_config(plan).batch_size,
          .device = device_with_memory(device),
          .too_large = largest_micro_batch(plan.loader.batch, plan.world_size)};
}

std::optional<BatchLimit> find_batch_limit(const Plan& plan, const std::vector<BatchLimit>& known,
                                           const std::vector<std::string>& devices) {
  const std::int64_t asked = asked_config(plan).batch_size;
  std::optional<BatchLimit> found;
  for (const BatchLimit& limit : known) {
    const bool counts = limit.batch_size == asked &&
                        limit.too_large <= largest_micro_batch(plan.loader.batch, plan.world_size) &&
                        std::ranges::find(devices, limit.device) != devices.end();
    if (counts && (!found || limit.too_large < found->too_large)) {
      found = limit;
    }
  }
  return found;
}

Plan with_batch_limit(Plan plan, const std::optional<BatchLimit>& limit) {
  if (!limit) {
    return plan;
  }
  const std::int64_t planned = plan.loader.batch.batch_size;
  set_batch(plan, halve_batch(plan.loader.batch, limit->too_large, plan.world_size));
  plan.notes.push_back(
      fmt::format("micro-batches have {} instead of {} (--memory.halve_batch): {} did not fit into the memory of {}, "
                  "as {}/{} says; delete this file, or use --fresh or another --batch_size, to begin with {} again",
                  counted(plan.loader.batch.batch_size, "sample"), planned, limit->too_large, limit->device,
                  run_directory(plan.config), kBatchLimitName, planned));
  return plan;
}

bool remembers_batch_limit(const TrainConfig& config) { return config.memory.halve_batch && writes_files(config); }

Plan with_kept_limit(Plan plan, std::string_view json) {
  const auto kept = parse_batch_limit(json);
  if (!kept || !remembers_batch_limit(plan.config) || plan.config.fresh) {
    return plan;
  }
  const auto limit = find_batch_limit(plan, {*kept}, mapped(plan.local_devices, device_with_memory));
  return with_batch_limit(std::move(plan), limit);
}

}  // namespace lockstep
