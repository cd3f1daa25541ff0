// Rules that update each element by itself. The formulas and the names are those of torch.optim, in the order of its
// foreach implementations.
#include <algorithm>
#include <cmath>

#include "optim/rule_steps.h"
#include "optim/update_rules.h"

namespace lockstep {
namespace {

/// Weight decay and the first two moments of NAdam and RAdam. Returns the gradients that were averaged.
template <class Options>
Tensors average_moments(const RuleLists& lists, const Options& options) {
  if (options.decoupled_weight_decay) {
    decay_values(lists);
  }
  Tensors gradients = options.decoupled_weight_decay ? lists.gradients : decayed_gradients(lists);
  at::_foreach_lerp_(lists.slots[0], gradients, 1 - options.beta1);
  average_squares(lists.slots[1], gradients, options.beta2);
  return gradients;
}

class Rmsprop final : public UpdateRule {
 public:
  explicit Rmsprop(const RmspropOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kPlain[] = {{"square_avg"}};
    static constexpr StateSlot kMomentum[] = {{"square_avg"}, {"momentum_buffer"}};
    static constexpr StateSlot kCentered[] = {{"square_avg"}, {"grad_avg"}};
    static constexpr StateSlot kBoth[] = {{"square_avg"}, {"momentum_buffer"}, {"grad_avg"}};
    if (options_.momentum > 0) {
      return options_.centered ? std::span<const StateSlot>(kBoth) : kMomentum;
    }
    return options_.centered ? std::span<const StateSlot>(kCentered) : kPlain;
  }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = decayed_gradients(lists);
    Tensors& squares = lists.slots[0];
    average_squares(squares, gradients, options_.alpha);
    Tensors average;
    if (options_.centered) {
      Tensors& means = lists.slots.back();
      at::_foreach_lerp_(means, gradients, 1 - options_.alpha);
      average = at::_foreach_addcmul(squares, means, means, -1);
      at::_foreach_sqrt_(average);
      at::_foreach_add_(average, options_.eps);
    } else {
      average = root(squares, options_.eps);
    }
    if (options_.momentum > 0) {
      Tensors& momentum = lists.slots[1];
      at::_foreach_mul_(momentum, options_.momentum);
      at::_foreach_addcdiv_(momentum, gradients, average);
      at::_foreach_add_(lists.values, momentum, -lists.lr);
    } else {
      at::_foreach_addcdiv_(lists.values, gradients, average, -lists.lr);
    }
  }

 private:
  RmspropOptions options_;
};

class Adagrad final : public UpdateRule {
 public:
  explicit Adagrad(const AdagradOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"sum"}};
    return kSlots;
  }
  double first_value(const StateSlot&, double) const override { return options_.initial_accumulator; }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = decayed_gradients(lists);
    const double rate = lists.lr / (1 + static_cast<double>(lists.step - 1) * options_.lr_decay);
    at::_foreach_addcmul_(lists.slots[0], gradients, gradients, 1);
    at::_foreach_addcdiv_(lists.values, gradients, root(lists.slots[0], options_.eps), -rate);
  }

 private:
  AdagradOptions options_;
};

class Adadelta final : public UpdateRule {
 public:
  explicit Adadelta(const AdadeltaOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"square_avg"}, {"acc_delta"}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = decayed_gradients(lists);
    average_squares(lists.slots[0], gradients, options_.rho);
    Tensors deltas = at::_foreach_add(lists.slots[1], options_.eps);
    at::_foreach_sqrt_(deltas);
    Tensors deviations = at::_foreach_add(lists.slots[0], options_.eps);
    at::_foreach_sqrt_(deviations);
    at::_foreach_div_(deltas, deviations);
    at::_foreach_mul_(deltas, gradients);
    average_squares(lists.slots[1], deltas, options_.rho);
    at::_foreach_add_(lists.values, deltas, -lists.lr);
  }

 private:
  AdadeltaOptions options_;
};

class Adamax final : public UpdateRule {
 public:
  explicit Adamax(const AdamaxOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"exp_avg"}, {"exp_inf"}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = decayed_gradients(lists);
    at::_foreach_lerp_(lists.slots[0], gradients, 1 - options_.beta1);
    at::_foreach_mul_(lists.slots[1], options_.beta2);
    Tensors sizes = at::_foreach_abs(gradients);
    at::_foreach_add_(sizes, options_.eps);
    at::_foreach_maximum_(lists.slots[1], sizes);
    const double rate = lists.lr / (1 - power(options_.beta1, lists.step));
    at::_foreach_addcdiv_(lists.values, lists.slots[0], lists.slots[1], -rate);
  }

 private:
  AdamaxOptions options_;
};

class Nadam final : public UpdateRule {
 public:
  explicit Nadam(const NadamOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {
        {"exp_avg"}, {"exp_avg_sq"}, {.name = "mu_product", .shape = StateSlot::Shape::number, .first = 1}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = average_moments(lists, options_);
    Tensors denominators = at::_foreach_sqrt(lists.slots[1]);
    at::_foreach_div_(denominators, std::sqrt(1 - power(options_.beta2, lists.step)));
    at::_foreach_add_(denominators, options_.eps);

    const double mu = momentum(lists.step);
    const double next = momentum(lists.step + 1);
    const double product = number_of(lists.slots[2]) * mu;
    set_number(lists.slots[2], product);
    at::_foreach_addcdiv_(lists.values, gradients, denominators, -lists.lr * (1 - mu) / (1 - product));
    at::_foreach_addcdiv_(lists.values, lists.slots[0], denominators, -lists.lr * next / (1 - product * next));
  }

 private:
  double momentum(std::int64_t step) const {
    return options_.beta1 * (1 - 0.5 * std::pow(0.96, static_cast<double>(step) * options_.momentum_decay));
  }

  NadamOptions options_;
};

class Radam final : public UpdateRule {
 public:
  explicit Radam(const RadamOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"exp_avg"}, {"exp_avg_sq"}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    average_moments(lists, options_);
    const double beta2_power = power(options_.beta2, lists.step);
    const double rate = lists.lr / (1 - power(options_.beta1, lists.step));
    const double longest = 2 / (1 - options_.beta2) - 1;
    const double length = longest - 2 * static_cast<double>(lists.step) * beta2_power / (1 - beta2_power);
    if (length <= 5) {
      at::_foreach_add_(lists.values, lists.slots[0], -rate);
      return;
    }
    const double rectification =
        std::sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
    at::_foreach_addcdiv_(lists.values, lists.slots[0], root(lists.slots[1], options_.eps),
                          -rate * rectification * std::sqrt(1 - beta2_power));
  }

 private:
  RadamOptions options_;
};

class AdamW final : public UpdateRule {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq"}};
    return std::span<const StateSlot>(kSlots).first(options_.amsgrad ? 3 : 2);
  }
  void update(const RuleLists& lists) const override {
    decay_values(lists);
    at::_foreach_lerp_(lists.slots[0], lists.gradients, 1 - options_.beta1);
    average_squares(lists.slots[1], lists.gradients, options_.beta2);
    if (options_.amsgrad) {
      at::_foreach_maximum_(lists.slots[2], lists.slots[1]);
    }
    Tensors denominators = at::_foreach_sqrt(lists.slots.back());
    at::_foreach_div_(denominators, std::sqrt(1 - power(options_.beta2, lists.step)));
    at::_foreach_add_(denominators, options_.eps);
    at::_foreach_addcdiv_(lists.values, lists.slots[0], denominators,
                          -lists.lr / (1 - power(options_.beta1, lists.step)));
  }

 private:
  AdamWOptions options_;
};

class Asgd final : public UpdateRule {
 public:
  explicit Asgd(const AsgdOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"ax"}, {.name = "eta", .shape = StateSlot::Shape::number}};
    return kSlots;
  }
  double first_value(const StateSlot& slot, double lr) const override {
    return slot.shape == StateSlot::Shape::number ? lr : slot.first;
  }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = decayed_gradients(lists);
    const double eta = number_of(lists.slots[1]);
    at::_foreach_mul_(lists.values, 1 - options_.lambd * eta);
    at::_foreach_add_(lists.values, gradients, -eta);
    const double mu = 1 / std::max(1.0, static_cast<double>(lists.step - 1) - options_.t0);
    Tensors distances = at::_foreach_sub(lists.values, lists.slots[0]);
    at::_foreach_add_(lists.slots[0], distances, mu);
    set_number(lists.slots[1],
               lists.lr / std::pow(1 + options_.lambd * lists.lr * static_cast<double>(lists.step), options_.alpha));
  }

 private:
  AsgdOptions options_;
};

class Rprop final : public UpdateRule {
 public:
  explicit Rprop(const RpropOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"prev"}, {"step_size"}};
    return kSlots;
  }
  double first_value(const StateSlot& slot, double lr) const override {
    return slot.name == "step_size" ? lr : slot.first;
  }
  void update(const RuleLists& lists) const override {
    Tensors& previous = lists.slots[0];
    Tensors& sizes = lists.slots[1];
    const Tensors products = at::_foreach_mul(lists.gradients, previous);
    for (std::size_t i = 0; i < products.size(); ++i) {
      const at::Tensor turned = products[i].lt(0);
      const at::Tensor factor = at::ones_like(products[i])
                                    .masked_fill_(products[i].gt(0), options_.eta_plus)
                                    .masked_fill_(turned, options_.eta_minus);
      sizes[i].mul_(factor).clamp_(options_.min_step, options_.max_step);
      previous[i].copy_(lists.gradients[i]).masked_fill_(turned, 0);
      lists.values[i].addcmul_(previous[i].sign(), sizes[i], -1);
    }
  }

 private:
  RpropOptions options_;
};

}  // namespace

std::shared_ptr<const UpdateRule> rmsprop_rule(const RmspropOptions& o) { return std::make_shared<Rmsprop>(o); }
std::shared_ptr<const UpdateRule> adagrad_rule(const AdagradOptions& o) { return std::make_shared<Adagrad>(o); }
std::shared_ptr<const UpdateRule> adadelta_rule(const AdadeltaOptions& o) { return std::make_shared<Adadelta>(o); }
std::shared_ptr<const UpdateRule> adamax_rule(const AdamaxOptions& o) { return std::make_shared<Adamax>(o); }
std::shared_ptr<const UpdateRule> nadam_rule(const NadamOptions& o) { return std::make_shared<Nadam>(o); }
std::shared_ptr<const UpdateRule> radam_rule(const RadamOptions& o) { return std::make_shared<Radam>(o); }
std::shared_ptr<const UpdateRule> adamw_rule(const AdamWOptions& o) { return std::make_shared<AdamW>(o); }
std::shared_ptr<const UpdateRule> asgd_rule(const AsgdOptions& o) { return std::make_shared<Asgd>(o); }
std::shared_ptr<const UpdateRule> rprop_rule(const RpropOptions& o) { return std::make_shared<Rprop>(o); }

}  // namespace lockstep
