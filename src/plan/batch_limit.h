// A micro-batch that did not fit into the memory, which a run remembers (memory.halve_batch). Pure and torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/plan/plan.h>

namespace lockstep {

/// What a run directory keeps of it, and when it counts: for a start with the same --batch_size that uses such a
/// device.
struct BatchLimit {
  std::int64_t batch_size = 0;  ///< as it was asked for; 0: derived from the global batch
  std::string device{};         ///< whose memory ran out: "NVIDIA H200 (139.8 GiB)"
  std::int64_t too_large = 0;   ///< samples of the micro-batch
};

std::string to_json(const BatchLimit& limit);
/// nullopt: "" or damaged.
std::optional<BatchLimit> parse_batch_limit(std::string_view json);

/// A device as a BatchLimit names it.
std::string device_with_memory(const LocalDevice& device);

/// For a rank whose memory ran out on this device of the plan.
BatchLimit batch_limit(const Plan& plan, const LocalDevice& device);

/// The one with the smallest micro-batch among those that count for the plan on one of `devices`.
std::optional<BatchLimit> find_batch_limit(const Plan& plan, const std::vector<BatchLimit>& known,
                                           const std::vector<std::string>& devices);

/// The same steps in micro-batches of half of what was too large, and a note that says so. nullopt: the plan.
Plan with_batch_limit(Plan plan, const std::optional<BatchLimit>& limit);

/// The run asks for it, and has a directory for it.
bool remembers_batch_limit(const TrainConfig& config);

/// For the start-up table: as the ranks will agree if they find what this machine finds. `json`: what the run directory
/// keeps here. --fresh and a plan without memory.halve_batch ignore it.
Plan with_kept_limit(Plan plan, std::string_view json);

}  // namespace lockstep
