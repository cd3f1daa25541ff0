// What a training keeps in the memory of each rank. Pure and torch-free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/environment/hardware.h>
#include <lockstep/plan/plan.h>

namespace lockstep {

/// "124M", "1.5B", "7b", "350000": K, M, B (or G) and T are powers of 1000. nullopt: it is no number from 1 to 1000T.
std::optional<std::int64_t> parse_parameters(std::string_view text);

/// What an optimizer needs, in values for each parameter, which have the dtype of the parameter.
struct OptimizerMemory {
  std::string name{};  ///< "sgd+momentum"
  int state = 0;       ///< kept from step to step
  int update = 0;      ///< more of them during an update, at most
  bool can_be_sharded = true;
};

/// The factories of optimizers.h.
std::vector<std::string> optimizer_names();
/// `text`: a factory and, each after a '+', options that keep another value: "adamw", "sgd+momentum". Throws:
/// ConfigError.
OptimizerMemory optimizer_memory(std::string_view text);

/// Bytes on one rank.
struct MemoryEstimate {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;  ///< with several ranks the buckets of the reducer too
  std::int64_t optimizer_state = 0;
  std::int64_t rollback = 0;     ///< copies of weights and optimizer state, for the policy `rollback`
  std::int64_t half_copies = 0;  ///< of the weights, which autocast makes: from the forward to the backward, at most
  std::int64_t update = 0;       ///< during an update, when there are no activations and no such copies; at most

  std::int64_t kept() const { return weights + gradients + optimizer_state + rollback; }
  std::int64_t beside_activations() const { return kept() + half_copies; }
  std::int64_t needed() const { return kept() + std::max(half_copies, update); }  ///< without any activations
};

/// For a model whose parameters are all trained.
MemoryEstimate estimate_memory(std::int64_t parameters, const OptimizerMemory& optimizer, const Plan& plan);

struct MemoryPlan {
  std::int64_t parameters = 0;
  OptimizerMemory optimizer{};
  MemoryEstimate estimate{};
  /// By local rank, in bytes: the rank's share of what is free on its GPU, or of the memory of the machine; 0: unknown.
  std::vector<std::int64_t> available{};
};

/// Throws: ConfigError if the plan shards an optimizer that cannot be sharded.
MemoryPlan plan_memory(std::int64_t parameters, const OptimizerMemory& optimizer, const Plan& plan,
                       const Hardware& hardware);

/// A row for each part, and one for each rank of this node.
std::string describe(const MemoryPlan& memory, const Plan& plan);

/// Why a rank has too little memory even without activations, and which settings help. nullopt: all have enough.
std::optional<Problem> find_lack_of_memory(const MemoryPlan& memory, const Plan& plan);

}  // namespace lockstep
