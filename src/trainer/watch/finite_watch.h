// Finds NaN and infinity in losses, gradient norms and parameters. It does not make a step wait for the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <lockstep/data/data_loader.h>
#include <lockstep/trainer/train_state.h>
#include <lockstep/world/world.h>

namespace lockstep {

/// What is not finite; the same on every rank.
struct NonFinite {
  /// The first loss or gradient norm that is not finite.
  struct Value {
    std::int64_t step = 0;  ///< as Step::number()
    int rank = 0;           ///< the lowest rank in that step; a gradient norm is that of all ranks
    /// "3, 17, 25 and 61 more": of that rank, if they have ids. Of a gradient norm without a loss: of each rank, with
    /// "; " between them.
    std::string samples{};
  };
  std::optional<Value> loss{};
  std::optional<Value> grad_norm{};
  std::int64_t skipped_steps = 0;  ///< steps in a row that changed nothing, if there are too many
  std::string parameter{};         ///< the first trained parameter that is not finite; empty: all are finite

  std::string text() const;  ///< "the loss of step 12 is not finite on rank 1 (samples 3, 17, 25); ..."
};

/// Steps that changed nothing because a loss or a gradient was not finite; the same on every rank.
struct SkippedSteps {
  std::int64_t count = 0;
  std::int64_t first = 0;  ///< as Step::number()
  std::int64_t last = 0;
  /// The first of their losses that was not finite; nullopt: all were finite, and gradients were not.
  std::optional<NonFinite::Value> loss{};
  std::string samples{};  ///< without `loss`: those of the first step, of each rank as in NonFinite::Value

  std::string text() const;  ///< "step 12 was skipped since the last report: the loss of step 12 is not finite on ..."
};

/// The samples of this rank in the last steps. Allocates nothing once each place was used.
class RecentSamples {
 public:
  void add(std::int64_t step, const StepBatches& batches);
  /// "": the step is too old, or its samples have no ids.
  std::string of(std::int64_t step) const;

 private:
  static constexpr std::size_t kSteps = 256;
  static constexpr std::size_t kNamed = 8;  // of each step

  struct Entry {
    std::int64_t step = -1;
    std::int64_t count = 0;
    std::vector<std::int64_t> first{};
  };

  std::array<Entry, kSteps> entries_{};
};

class FiniteWatch {
 public:
  /// Records the results of a step. Steps must be consecutive. Values of a skipped step may be
  /// infinite.
  void add(std::int64_t step, const StepResult& result, const StepBatches& batches);
  /// Collective. Checks the steps since the last call and the current parameters. nullopt: all values are finite. Waits
  /// for the device.
  std::optional<NonFinite> look(const torch::nn::Module& module, World& world);
  /// Those between the last two calls of look().
  const SkippedSteps& skipped() const noexcept { return skipped_; }

 private:
  /// One number per step. On a CPU it is looked at once, on a device later.
  class Series {
   public:
    void add(std::int64_t step, const at::Tensor& value);
    /// The first step whose number is not finite: 0-dim int64 on `device`, kNever: none. Clears the steps.
    at::Tensor take(c10::Device device);

   private:
    void fold();

    std::optional<std::int64_t> first_on_host_{};  // of the numbers that were looked at
    std::int64_t begin_ = 0;                       // step of the first element of pending_
    std::vector<at::Tensor> pending_{};            // 0-dim; undefined: that step has nothing to look at
    at::Tensor first_{};                           // of those that were pending
  };

  /// Which steps were skipped, on the device.
  class Skips {
   public:
    void add(std::int64_t step, const at::Tensor& skipped);
    /// The number of skipped steps, the first and the last: int64 [3] on `device`. Clears the steps.
    at::Tensor take(c10::Device device);

   private:
    void fold();

    std::vector<std::int64_t> steps_{};  // of pending_
    std::vector<at::Tensor> pending_{};  // 0-dim
    at::Tensor found_{};                 // int64 [3]
  };

  /// Gets the samples of the step from its rank, if a value was found. Collective then.
  void name_samples(std::optional<NonFinite::Value>& value, World& world) const;
  /// Collective. The samples of a step of each rank.
  std::string samples_of_all(std::int64_t step, World& world) const;

  at::Tensor skipped_in_a_row_{};  // 0-dim, on the device; undefined if no step can be skipped
  Skips skips_{};
  SkippedSteps skipped_{};
  RecentSamples samples_{};
  Series losses_{};
  Series skipped_losses_{};
  Series grad_norms_{};
};

}  // namespace lockstep
