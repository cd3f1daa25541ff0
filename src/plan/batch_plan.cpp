#include "plan/batch_plan.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/ceil_div.h"
#include "base/text.h"

namespace lockstep {
namespace {

std::optional<std::int64_t> product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

/// "16 per rank x 2 micro-batches x 2 ranks"
std::string factors(const BatchPlan& plan, int ranks) {
  return fmt::format("{} per rank x {} x {}", plan.batch_size, counted(plan.accumulation, "micro-batch"),
                     counted(ranks, "rank"));
}

std::string explain(const BatchPlan& plan, std::int64_t room, int ranks) {
  if (plan.global_batch_size == room) {
    return fmt::format("{} = {}", plan.global_batch_size, factors(plan, ranks));
  }
  const std::int64_t least = plan.global_batch_size / ranks;
  const bool even = plan.global_batch_size % ranks == 0;
  return fmt::format("{} over {} ({} each), in {} of at most {}", plan.global_batch_size, counted(ranks, "rank"),
                     even ? fmt::to_string(least) : fmt::format("{} or {}", least + 1, least),
                     counted(plan.accumulation, "micro-batch"), plan.batch_size);
}

/// The same steps in micro-batches of another size.
BatchPlan divide(BatchPlan plan, std::int64_t batch_size, int ranks) {
  plan.batch_size = batch_size;
  const std::int64_t at_once = batch_size * ranks;
  plan.accumulation = ceil_div(plan.global_batch_size, at_once);
  plan.explanation = explain(plan, at_once * plan.accumulation, ranks);
  return plan;
}

/// The micro-batch size if it is not set: the steps of `global_batch_size` need it, rounded up.
std::int64_t derived_batch_size(const BatchPlan& plan, int ranks) {
  constexpr std::int64_t kUsual = 32;
  if (plan.global_batch_size == 0) {
    return kUsual;
  }
  return ceil_div(ceil_div(plan.global_batch_size, ranks), std::max<std::int64_t>(plan.accumulation, 1));
}

}  // namespace

BatchPlan plan_batch(const TrainConfig& config, int world_size, std::vector<Problem>& problems) {
  BatchPlan plan{.batch_size = config.batch_size,
                 .accumulation = config.accumulation,
                 .global_batch_size = config.global_batch_size,
                 .global_is_given = config.global_batch_size > 0};
  if (plan.batch_size < 0 || plan.accumulation < 0 || plan.global_batch_size < 0) {
    return plan;  // reported by check_config
  }
  if (plan.batch_size == 0) {
    plan.batch_size = derived_batch_size(plan, world_size);
  }
  const auto too_large = [&] {
    problems.push_back({fmt::format("--batch_size {} x --accumulation {} x {}: does not fit into 64 bits",
                                    plan.batch_size, plan.accumulation, counted(world_size, "rank")),
                        "use smaller numbers"});
    return plan;
  };
  const auto per_micro_batch = product(plan.batch_size, world_size);  // over all ranks
  if (!per_micro_batch) {
    return too_large();
  }
  if (plan.accumulation == 0) {
    plan.accumulation = plan.global_batch_size == 0 ? 1 : ceil_div(plan.global_batch_size, *per_micro_batch);
  }
  const auto room = product(*per_micro_batch, plan.accumulation);
  if (!room) {
    return too_large();
  }
  if (plan.global_batch_size == 0) {
    plan.global_batch_size = *room;
  }
  const std::int64_t least = *room - *per_micro_batch + 1;
  if (plan.global_batch_size < least || plan.global_batch_size > *room) {
    problems.push_back({fmt::format("--global_batch_size {}: {} = {}, expected {} to {}", plan.global_batch_size,
                                    factors(plan, world_size), *room, least, *room),
                        "remove --accumulation or --global_batch_size: it is derived from the others"});
    return plan;
  }
  plan.explanation = explain(plan, *room, world_size);
  return plan;
}

std::int64_t largest_micro_batch(const BatchPlan& plan, int world_size) {
  return std::min(plan.batch_size, ceil_div(largest_share(plan, world_size), plan.accumulation));
}

BatchPlan halve_batch(const BatchPlan& plan, std::int64_t too_large, int world_size) {
  return divide(plan, ceil_div(too_large, 2), world_size);
}

void set_batch(Plan& plan, const BatchPlan& batch) {
  plan.config.batch_size = batch.batch_size;
  plan.config.accumulation = batch.accumulation;
  plan.config.global_batch_size = batch.global_batch_size;
  plan.loader = {.batch = batch, .sampler = plan.config.sampler, .data = plan.config.data, .seed = plan.config.seed};
  plan.eval_loader = plan.loader;
  plan.eval_loader.data.steps_per_epoch = 0;
  plan.eval_loader.data.min_steps_per_epoch = 0;
  plan.eval_loader.sampler = {.order = SampleOrder::keyed, .shuffle = false, .drop_last = false};
  const std::int64_t whole_batches = batch.batch_size * plan.world_size;  // may be more than a step of the training
  const TrainConfig in_one_pass{.batch_size = batch.batch_size,
                                .global_batch_size = std::min(batch.global_batch_size, whole_batches)};
  std::vector<Problem> none;
  plan.eval_loader.batch = plan_batch(in_one_pass, plan.world_size, none);
}

std::int64_t largest_share(const BatchPlan& plan, int world_size) {
  return ceil_div(plan.global_batch_size, world_size);
}

BatchPlan with_batch_size(const BatchPlan& plan, std::int64_t batch_size, int world_size) {
  BatchPlan changed = plan;
  if (!plan.global_is_given) {
    changed.global_batch_size = batch_size * world_size * plan.accumulation;
  }
  return divide(changed, batch_size, world_size);
}

std::string flags_of(const BatchPlan& plan) {
  return fmt::format("--batch_size {} --accumulation {} --global_batch_size {}", plan.batch_size, plan.accumulation,
                     plan.global_batch_size);
}

}  // namespace lockstep
