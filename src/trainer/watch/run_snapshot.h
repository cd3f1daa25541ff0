// A copy of weights, optimizer and callbacks in memory, to which a run can go back.
#pragma once

#include <cstdint>
#include <optional>

#include <torch/nn/module.h>

#include <lockstep/parallel/strategy.h>
#include <lockstep/tensor/named_tensors.h>
#include <lockstep/world/world.h>

#include "trainer/callbacks/callback_list.h"

namespace lockstep {

class RunSnapshot {
 public:
  /// What is copied.
  struct Parts {
    torch::nn::Module& module;
    Strategy& strategy;
    const CallbackList& callbacks;
    World& world;
  };

  /// Collective. Replaces the copy by one of now, after `step` steps.
  void take(const Parts& run, std::int64_t step);
  /// Collective. Puts the copy back and keeps it. Requires step().
  void restore(const Parts& run) const;
  /// The number of steps before the copy was taken; nullopt: there is none.
  std::optional<std::int64_t> step() const noexcept { return step_; }

 private:
  NamedTensors callbacks_of_rank_0(World& world) const;

  std::optional<std::int64_t> step_{};
  NamedTensors module_{};
  NamedTensors optimizer_{};
  NamedTensors callbacks_{};
};

}  // namespace lockstep
