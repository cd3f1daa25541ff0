// An optimizer whose update is a rule over lists of tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "optim/list_optimizer.h"

namespace lockstep {

/// One tensor of a parameter's state.
struct StateSlot {
  enum class Shape {
    parameter,  ///< that of the parameter, and its dtype
    row_means,  ///< [..., rows, 1], of matrices only
    col_means,  ///< [..., 1, columns], of matrices only
    vector,     ///< that of the parameter, of those that are not matrices
    number,     ///< 0-dim double on the host
  };
  std::string_view name{};  ///< as torch.optim names it
  Shape shape = Shape::parameter;
  double first = 0;  ///< its value before the first step
};

/// A number of all parameters together: a 0-dim double on their device, so that the host never waits for it.
struct CommonNumber {
  std::string_view name{};
  double first = 0;  ///< its value before the first step
};

/// The parameters of one update: same group, device, dtype, step and numbers. Complex ones are pairs of real numbers.
struct RuleLists {
  std::int64_t step = 0;  ///< from 1
  double lr = 0;
  double weight_decay = 0;
  const std::vector<at::Tensor>& values;        ///< updated in place
  const std::vector<at::Tensor>& gradients;     ///< not changed
  std::vector<std::vector<at::Tensor>>& slots;  ///< per slot of the rule, in the order of `values`
  const std::vector<at::Tensor>& common;        ///< the common numbers of the rule
};

/// What an optimizer calculates. Without state: the optimizer keeps it.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::span<const StateSlot> slots() const = 0;  ///< they outlive every optimizer
  /// The value of a slot before the first step of a parameter. `lr`: the learning rate of that step.
  virtual double first_value(const StateSlot& slot, [[maybe_unused]] double lr) const { return slot.first; }
  virtual void update(const RuleLists& lists) const = 0;
  virtual std::vector<CommonNumber> common() const { return {}; }
  /// After all updates of a step. Changes the common numbers in place.
  virtual void finish_step([[maybe_unused]] const std::vector<at::Tensor>& common) const {}
  /// True: a model is evaluated with other values than the trained ones.
  virtual bool has_evaluation_values() const { return false; }
  /// A new tensor. `slots`: those of the parameter.
  virtual at::Tensor evaluation_value(const at::Tensor& value,
                                      [[maybe_unused]] const std::vector<at::Tensor>& slots) const {
    return value.clone();
  }
};

struct RuleOptions : public torch::optim::OptimizerCloneableOptions<RuleOptions> {
  RuleOptions(double rate, std::optional<double> decay, std::shared_ptr<const UpdateRule> update)
      : lr(rate), weight_decay(decay), rule(std::move(update)) {}
  double get_lr() const override { return lr; }
  void set_lr(const double rate) override { lr = rate; }

  double lr;
  std::optional<double> weight_decay;  ///< nullopt: the rule has none
  std::optional<double> momentum{};    ///< likewise; for reports, because the rule has options of its own
  std::shared_ptr<const UpdateRule> rule;
  std::shared_ptr<const RuleOptions> other{};  ///< for parameters that the rule does not suit; nullptr: it suits all
};

struct RuleState : public torch::optim::OptimizerCloneableParamState<RuleState> {
  explicit RuleState(std::span<const StateSlot> rule_slots);
  std::int64_t& count() { return *step.mutable_data_ptr<std::int64_t>(); }
  std::vector<double> numbers() const;  ///< the count, and the slots that are numbers

  std::span<const StateSlot> kinds;  ///< those of the rule
  at::Tensor step;                   ///< int64, 0-dim, on the host
  std::vector<at::Tensor> slots;     ///< in the order of `kinds`; undefined: the parameter has no such slot
};

class RuleOptimizer final : public ListOptimizer {
 public:
  /// A group may have a rule of its own. Common numbers are those of the rule of `defaults`.
  RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, const RuleOptions& defaults);

  const RuleOptions& rule_defaults() const { return static_cast<const RuleOptions&>(defaults()); }
  /// In the order of UpdateRule::common(), on any device; empty before the first step.
  std::vector<at::Tensor>& common() noexcept { return common_; }

 private:
  /// The parameters of a list with the same RuleState::numbers(). These differ if some of them had no gradient in an
  /// earlier step.
  struct Part {
    std::size_t list = 0;
    std::vector<std::size_t> members{};     // indices in the list
    std::vector<std::int64_t> positions{};  // theirs, see GradientList
    std::vector<RuleState*> states{};
    std::vector<std::vector<at::Tensor>> slots{};
    std::vector<at::Tensor> values{};  // of this step, and so the gradients
    std::vector<at::Tensor> gradients{};
  };

  void lists_changed() override;
  void update() override;
  void create_states(const GradientList& list);
  void prepare_common();
  void update_part(Part& part);

  std::vector<Part> parts_{};
  std::vector<at::Tensor> common_{};
};

/// An empty tensor for a slot of a parameter; undefined if the parameter has no such slot.
at::Tensor empty_slot(const StateSlot& slot, const at::Tensor& parameter);

}  // namespace lockstep
