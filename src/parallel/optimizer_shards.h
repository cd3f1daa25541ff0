// ZeRO stage 1 (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"): each
// rank updates its share of the parameters and keeps their optimizer state only.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/tensor/named_tensors.h>
#include <lockstep/world/world.h>

namespace lockstep {

/// Whole parameters, dealt so that all ranks have nearly the same number of elements. The shares do not change when
/// parameters are frozen.
class OptimizerShards {
 public:
  /// `parameters`: all of one optimizer, in any order, the same on every rank.
  OptimizerShards(const NamedTensors& parameters, World& world);

  /// Names of the parameters of the other ranks.
  const std::unordered_set<std::string>& elsewhere() const noexcept { return elsewhere_; }

  /// While it lives, parameters of other ranks have no gradient, so that an optimizer leaves them out.
  class OwnGradients {
   public:
    OwnGradients(const OptimizerShards& shards, NamedTensors& parameters);
    ~OwnGradients();
    OwnGradients(const OwnGradients&) = delete;
    OwnGradients& operator=(const OwnGradients&) = delete;

   private:
    std::vector<std::pair<at::Tensor, at::Tensor>> hidden_{};  // parameter, gradient
  };

  /// Collective. Copies each parameter from its rank to the others.
  void send_updates(const NamedTensors& parameters) const;

  /// Collective. `mine`: this rank's state, with names "<parameter>.<state>". Rank 0 gets that of all ranks, on the
  /// CPU, in the order of `parameters`, then what belongs to no parameter; the others get `mine`.
  NamedTensors gather(NamedTensors mine, const NamedTensors& parameters) const;

 private:
  World& world_;
  std::unordered_map<std::string, int> owners_{};
  std::unordered_set<std::string> elsewhere_{};
};

}  // namespace lockstep
