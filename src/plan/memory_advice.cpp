#include "plan/memory_advice.h"

#include <fmt/format.h>

#include "base/text.h"
#include "plan/batch_plan.h"

namespace lockstep {
namespace {

/// Half the samples per micro-batch, the same samples per step.
std::string smaller_batch(const Plan& plan) {
  const BatchPlan& batch = plan.loader.batch;
  if (batch.batch_size <= 1) {
    return "a single sample needs too much memory: use a smaller model, shorter inputs, or activation recomputation";
  }
  return fmt::format("use {}: the same training with smaller micro-batches (--memory.halve_batch restarts with them)",
                     flags_of(halve_batch(batch, largest_micro_batch(batch, plan.world_size), plan.world_size)));
}

/// Fewer batches that wait for their step. Without workers none waits.
std::string fewer_batches(const DataConfig& data) {
  return data.workers == 0 ? ""
                           : fmt::format(
                                 "the data set ran out of memory: use fewer --data.workers (now {}) and a smaller "
                                 "--data.prefetch (now {}), which keep fewer batches in memory; ",
                                 data.workers, data.prefetch);
}

}  // namespace

std::string memory_advice(const OutOfMemory& facts, const Plan& plan) {
  std::string text = (facts.in_data_set ? fewer_batches(plan.config.data) : "") + smaller_batch(plan);
  if (facts.device.gpu && plan.config.precision == Precision::fp32) {
    text += "; or --precision bf16_mixed";
  }
  if (facts.device.gpu && plan.config.cuda_graphs) {
    text += "; or leave out --cuda_graphs: a graph keeps its memory beside that of validations and other shapes";
  }
  for (const GpuTenant& tenant : facts.tenants) {
    text += fmt::format("\n  on {}, {} uses {}", to_string(facts.device), tenant.name, human_bytes(tenant.bytes));
  }
  if (!facts.tenants.empty() && static_cast<int>(facts.free_gpus.size()) >= plan.local_world_size()) {
    const std::vector<int> chosen(facts.free_gpus.begin(), facts.free_gpus.begin() + plan.local_world_size());
    std::string list;
    for (const int gpu : chosen) {
      list += fmt::format("{},", gpu);  // a number without a comma would be a count
    }
    text += fmt::format("\n  --devices {} is used by no other process", list);
  }
  return text;
}

}  // namespace lockstep
