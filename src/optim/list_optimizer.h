// Base of the optimizers that update lists of tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "optim/gradient_lists.h"

namespace lockstep {

/// Skips parameters without a gradient. Archives of torch::save are not supported: save() and load() throw Error.
class ListOptimizer : public torch::optim::Optimizer {
 public:
  /// Throws: Error naming a parameter with a sparse gradient.
  at::Tensor step(LossClosure closure = nullptr) final;
  void save(torch::serialize::OutputArchive& archive) const final;
  void load(torch::serialize::InputArchive& archive) final;
  /// The next step calculates updates of bfloat16 parameters in fp32 and rounds them at random. `key`: see
  /// UpdateRounding.
  void round_next(std::uint64_t key) noexcept { rounding_key_ = key; }
  /// The states were replaced: the next step makes new lists.
  void forget_lists() noexcept { gradients_.forget(); }

 protected:
  ListOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                std::unique_ptr<torch::optim::OptimizerOptions> defaults, GradientLists::StateTensor state_tensor);

  /// The lists are new: called before the first update with them.
  virtual void lists_changed() = 0;
  /// Updates the parameters of all lists.
  virtual void update() = 0;

  /// Whether the current step rounds these parameters at random: then it must use update_in_fp32().
  bool rounds(const GradientList& list) const {
    return rounding_key_.has_value() && list.values.front().scalar_type() == at::kBFloat16;
  }
  std::uint64_t rounding_key() const { return rounding_key_.value(); }

  std::span<const GradientList> lists() const noexcept { return gradients_.lists(); }
  template <class Options>
  const Options& options_of(const GradientList& list) const {
    return static_cast<const Options&>(param_groups_[list.group].options());
  }

 private:
  GradientLists gradients_;
  std::optional<std::uint64_t> rounding_key_{};  // of the next step
};

}  // namespace lockstep
