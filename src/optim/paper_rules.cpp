// Rules that torch.optim does not have. Lion is algorithm 2 of Chen et al. 2023, Prodigy algorithm 4 of Mishchenko and
// Defazio 2023, ScheduleFreeAdamW the AdamWScheduleFree of Defazio et al. 2024.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "optim/rule_steps.h"
#include "optim/update_rules.h"

namespace lockstep {
namespace {

class Lion final : public UpdateRule {
 public:
  explicit Lion(const LionOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"exp_avg"}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    decay_values(lists);
    Tensors directions = at::_foreach_lerp(lists.slots[0], lists.gradients, 1 - options_.beta1);
    at::_foreach_sign_(directions);
    at::_foreach_add_(lists.values, directions, -lists.lr);
    at::_foreach_lerp_(lists.slots[0], lists.gradients, 1 - options_.beta2);
  }

 private:
  LionOptions options_;
};

/// The sums over gradients that estimate d are divided by d0, so that they are not too small for half precision.
class Prodigy final : public UpdateRule {
 public:
  explicit Prodigy(const ProdigyOptions& options) : options_(options), beta3_(std::sqrt(options.beta2)) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"exp_avg"}, {"exp_avg_sq"}, {"s"}, {"p0"}};
    return kSlots;
  }
  std::vector<CommonNumber> common() const override {
    return {{"d", options_.d0}, {"d_max", options_.d0}, {"d_numerator"}, {"d_denominator"}};
  }
  void update(const RuleLists& lists) const override {
    const at::Tensor& d = lists.common[0];
    double rate = lists.lr;
    if (options_.use_bias_correction) {
      rate *= std::sqrt(1 - power(options_.beta2, lists.step)) / (1 - power(options_.beta1, lists.step));
    }
    if (lists.step == 1) {
      at::_foreach_copy_(lists.slots[3], lists.values);
    }
    Tensors scaled = at::_foreach_mul(lists.gradients, d);
    at::_foreach_lerp_(lists.slots[0], scaled, 1 - options_.beta1);
    average_squares(lists.slots[1], scaled, options_.beta2);

    Tensors ways = at::_foreach_sub(lists.slots[3], lists.values);
    at::_foreach_mul_(ways, scaled);
    lists.common[2].add_(total(ways).mul_(d).mul_(rate / options_.d0));
    at::_foreach_mul_(scaled, d * ((options_.safeguard_warmup ? 1 : rate) / options_.d0));
    at::_foreach_mul_(lists.slots[2], beta3_);
    at::_foreach_add_(lists.slots[2], scaled);
    lists.common[3].add_(total(at::_foreach_abs(lists.slots[2])));

    if (lists.weight_decay != 0) {
      at::_foreach_mul_(lists.values, 1 - d * (rate * lists.weight_decay));
    }
    Tensors denominators = at::_foreach_sqrt(lists.slots[1]);
    at::_foreach_add_(denominators, d * options_.eps);
    Tensors directions = at::_foreach_div(lists.slots[0], denominators);
    at::_foreach_mul_(directions, d);
    at::_foreach_add_(lists.values, directions, -rate);
  }
  void finish_step(const Tensors& common) const override {
    const auto& [d, d_max, numerator, denominator] = std::tie(common[0], common[1], common[2], common[3]);
    const at::Tensor estimate =
        at::where(denominator > 0, numerator * options_.d_coef / denominator, d);  // 0 while the learning rate is 0
    const at::Tensor base = at::where(d == options_.d0, at::maximum(d, estimate), d);
    d_max.copy_(at::maximum(d_max, estimate));
    d.copy_(at::minimum(d_max, base * options_.growth_rate));
    numerator.mul_(beta3_);
    denominator.zero_();
  }

 private:
  static at::Tensor total(const Tensors& tensors) {
    Tensors sums;
    for (const at::Tensor& tensor : tensors) {
      sums.push_back(tensor.sum(at::kDouble));
    }
    return at::stack(sums).sum();
  }

  ProdigyOptions options_;
  double beta3_;
};

/// The parameters are y. x is not kept: x = y + (1 - 1 / beta1) (z - y).
class ScheduleFreeAdamW final : public UpdateRule {
 public:
  explicit ScheduleFreeAdamW(const ScheduleFreeAdamWOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"z"},
                                           {"exp_avg_sq"},
                                           {.name = "lr_max", .shape = StateSlot::Shape::number},
                                           {.name = "weight_sum", .shape = StateSlot::Shape::number}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    const Tensors& z = lists.slots[0];
    if (lists.step == 1) {
      at::_foreach_copy_(z, lists.values);
    }
    average_squares(lists.slots[1], lists.gradients, options_.beta2);
    Tensors denominators = at::_foreach_div(lists.slots[1], 1 - power(options_.beta2, lists.step));
    at::_foreach_sqrt_(denominators);
    at::_foreach_add_(denominators, options_.eps);
    Tensors directions = at::_foreach_div(lists.gradients, denominators);
    if (lists.weight_decay != 0) {
      at::_foreach_add_(directions, lists.values, lists.weight_decay);
    }
    const double lr_max = std::max(number_of(lists.slots[2]), lists.lr);
    const double weight =
        std::pow(static_cast<double>(lists.step), options_.r) * std::pow(lr_max, options_.weight_lr_power);
    const double weight_sum = number_of(lists.slots[3]) + weight;
    const double share = weight_sum > 0 ? weight / weight_sum : 0;  // of z in the average
    set_number(lists.slots[2], lr_max);
    set_number(lists.slots[3], weight_sum);
    at::_foreach_lerp_(lists.values, z, share);
    at::_foreach_add_(z, directions, -lists.lr);
    at::_foreach_mul_(directions, lists.lr * (options_.beta1 * (1 - share) - 1));
    at::_foreach_add_(lists.values, directions);
  }
  bool has_evaluation_values() const override { return true; }
  at::Tensor evaluation_value(const at::Tensor& value, const Tensors& slots) const override {
    return at::lerp(value, slots[0], 1 - 1 / options_.beta1);
  }

 private:
  ScheduleFreeAdamWOptions options_;
};

}  // namespace

std::shared_ptr<const UpdateRule> lion_rule(const LionOptions& o) { return std::make_shared<Lion>(o); }
std::shared_ptr<const UpdateRule> prodigy_rule(const ProdigyOptions& o) { return std::make_shared<Prodigy>(o); }
std::shared_ptr<const UpdateRule> schedule_free_adamw_rule(const ScheduleFreeAdamWOptions& o) {
  return std::make_shared<ScheduleFreeAdamW>(o);
}

}  // namespace lockstep
