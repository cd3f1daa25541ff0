// The formulas and the names are those of torch.optim, in the order of its foreach implementations; Lion is algorithm 2
// of Chen et al. 2023, Prodigy algorithm 4 of Mishchenko and Defazio 2023, ScheduleFreeAdamW the AdamWScheduleFree of
// Defazio et al. 2024.
#include "optim/update_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
using Shape = StateSlot::Shape;

/// Gradients to which the weight decay was added.
Tensors decayed_gradients(const RuleLists& lists) {
  return lists.weight_decay == 0 ? lists.gradients
                                 : at::_foreach_add(lists.gradients, lists.values, lists.weight_decay);
}

void decay_values(const RuleLists& lists) {
  if (lists.weight_decay != 0) {
    at::_foreach_mul_(lists.values, 1 - lists.lr * lists.weight_decay);
  }
}

/// average = beta x average + (1 - beta) x gradient^2
void average_squares(Tensors& averages, const Tensors& gradients, double beta) {
  at::_foreach_mul_(averages, beta);
  at::_foreach_addcmul_(averages, gradients, gradients, 1 - beta);
}

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

Tensors root(const Tensors& squares, double eps) {
  Tensors roots = at::_foreach_sqrt(squares);
  at::_foreach_add_(roots, eps);
  return roots;
}

double power(double base, std::int64_t exponent) { return std::pow(base, static_cast<double>(exponent)); }

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
        {"exp_avg"}, {"exp_avg_sq"}, {.name = "mu_product", .shape = Shape::number, .first = 1}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = average_moments(lists, options_);
    Tensors denominators = at::_foreach_sqrt(lists.slots[1]);
    at::_foreach_div_(denominators, std::sqrt(1 - power(options_.beta2, lists.step)));
    at::_foreach_add_(denominators, options_.eps);

    const double mu = momentum(lists.step);
    const double next = momentum(lists.step + 1);
    double product = 1;  // the parameters of a list have the same number of steps, and so the same product
    for (const at::Tensor& number : lists.slots[2]) {
      product = *number.mutable_data_ptr<double>() *= mu;
    }
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

class Asgd final : public UpdateRule {
 public:
  explicit Asgd(const AsgdOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"ax"}, {.name = "eta", .shape = Shape::number}};
    return kSlots;
  }
  double first_value(const StateSlot& slot, double lr) const override {
    return slot.shape == Shape::number ? lr : slot.first;
  }
  void update(const RuleLists& lists) const override {
    const Tensors gradients = decayed_gradients(lists);
    const double eta = lists.slots[1].front().item<double>();
    at::_foreach_mul_(lists.values, 1 - options_.lambd * eta);
    at::_foreach_add_(lists.values, gradients, -eta);
    const double mu = 1 / std::max(1.0, static_cast<double>(lists.step - 1) - options_.t0);
    Tensors distances = at::_foreach_sub(lists.values, lists.slots[0]);
    at::_foreach_add_(lists.slots[0], distances, mu);
    const double next =
        lists.lr / std::pow(1 + options_.lambd * lists.lr * static_cast<double>(lists.step), options_.alpha);
    for (const at::Tensor& number : lists.slots[1]) {
      *number.mutable_data_ptr<double>() = next;
    }
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

class Adafactor final : public UpdateRule {
 public:
  explicit Adafactor(const AdafactorOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{.name = "row_var", .shape = Shape::row_means},
                                           {.name = "col_var", .shape = Shape::col_means},
                                           {.name = "variance", .shape = Shape::vector}};
    return kSlots;
  }
  // Scalars stay on the device.
  void update(const RuleLists& lists) const override {
    const double new_share = std::pow(static_cast<double>(lists.step), options_.beta2_decay);
    const double rho = std::min(lists.lr, 1 / std::sqrt(static_cast<double>(lists.step)));
    for (std::size_t i = 0; i < lists.values.size(); ++i) {
      const at::Tensor& value = lists.values[i];
      const at::Tensor& gradient = lists.gradients[i];
      const double eps1 = options_.eps1 > 0 ? options_.eps1 : machine_epsilon(value.scalar_type());
      const at::Tensor alpha = at::linalg_vector_norm(value)
                                   .div_(std::sqrt(static_cast<double>(value.numel())))
                                   .clamp_min_(options_.eps2)
                                   .mul_(rho);
      if (lists.weight_decay != 0) {
        value.mul_(1 - lists.lr * lists.weight_decay);
      }
      at::Tensor update;
      if (const at::Tensor& variance = lists.slots[2][i]; variance.defined()) {
        variance.lerp_(gradient * gradient, new_share);
        update = variance.clone();
      } else {
        const at::Tensor& rows = lists.slots[0][i];
        const at::Tensor& columns = lists.slots[1][i];
        rows.lerp_(mean_square(gradient, -1), new_share);
        columns.lerp_(mean_square(gradient, -2), new_share);
        update = at::matmul(rows, columns).div_(rows.mean({-2}, /*keepdim=*/true).clamp_min_(eps1));
      }
      update.clamp_min_(eps1 * eps1).rsqrt_().mul_(gradient);
      const double root_count = std::sqrt(static_cast<double>(update.numel()));
      const at::Tensor denominator = at::linalg_vector_norm(update).div_(root_count * options_.d).clamp_min_(1);
      value.sub_(update.mul_(alpha / denominator));
    }
  }

 private:
  static double machine_epsilon(at::ScalarType dtype) {
    switch (dtype) {
      case at::kDouble:
        return std::numeric_limits<double>::epsilon();
      case at::kHalf:
        return std::numeric_limits<c10::Half>::epsilon();
      case at::kBFloat16:
        return std::numeric_limits<c10::BFloat16>::epsilon();
      default:
        return std::numeric_limits<float>::epsilon();
    }
  }
  static at::Tensor mean_square(const at::Tensor& gradient, std::int64_t dim) {
    return at::linalg_vector_norm(gradient, 2, dim, /*keepdim=*/true)
        .square_()
        .div_(static_cast<double>(gradient.size(dim)));
  }

  AdafactorOptions options_;
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

class Muon final : public UpdateRule {
 public:
  explicit Muon(const MuonOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{"momentum_buffer"}};
    return kSlots;
  }
  void update(const RuleLists& lists) const override {
    decay_values(lists);
    const Tensors& momentum = lists.slots[0];
    at::_foreach_lerp_(momentum, lists.gradients, 1 - options_.momentum);
    const Tensors directions =
        options_.nesterov ? at::_foreach_lerp(lists.gradients, momentum, options_.momentum) : momentum;
    for (std::size_t i = 0; i < lists.values.size(); ++i) {
      lists.values[i].add_(orthogonal(directions[i]), -lists.lr * rate_factor(lists.values[i]));
    }
  }

 private:
  /// Nearly the orthogonal matrix next to `matrix`, by a Newton-Schulz iteration of degree 5.
  at::Tensor orthogonal(const at::Tensor& matrix) const {
    const bool is_tall = matrix.size(0) > matrix.size(1);
    at::Tensor x = matrix.to(at::kBFloat16);
    x = is_tall ? x.t() : x;
    x = x / at::linalg_vector_norm(x).clamp_min_(options_.eps);  // so that no singular value is more than 1
    const auto& [a, b, c] = options_.ns_coefficients;
    for (int step = 0; step < options_.ns_steps; ++step) {
      const at::Tensor gram = at::matmul(x, x.t());
      x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
    }
    return is_tall ? x.t() : x;
  }
  double rate_factor(const at::Tensor& matrix) const {
    const auto rows = static_cast<double>(matrix.size(0));
    const auto columns = static_cast<double>(matrix.size(1));
    return options_.adjust_lr == MuonRate::original ? std::sqrt(std::max(1.0, rows / columns))
                                                    : 0.2 * std::sqrt(std::max(rows, columns));
  }

  MuonOptions options_;
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
                                           {.name = "lr_max", .shape = Shape::number},
                                           {.name = "weight_sum", .shape = Shape::number}};
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
    std::vector<at::Scalar> shares;  // of z in the average; parameters may have been frozen in different steps
    std::vector<at::Scalar> rates;
    for (std::size_t i = 0; i < z.size(); ++i) {
      double& lr_max = *lists.slots[2][i].mutable_data_ptr<double>();
      double& weight_sum = *lists.slots[3][i].mutable_data_ptr<double>();
      lr_max = std::max(lr_max, lists.lr);
      const double weight =
          std::pow(static_cast<double>(lists.step), options_.r) * std::pow(lr_max, options_.weight_lr_power);
      weight_sum += weight;
      const double share = weight_sum > 0 ? weight / weight_sum : 0;
      shares.emplace_back(share);
      rates.emplace_back(lists.lr * (options_.beta1 * (1 - share) - 1));
    }
    at::_foreach_lerp_(lists.values, z, shares);
    at::_foreach_add_(z, directions, -lists.lr);
    at::_foreach_mul_(directions, rates);
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

std::shared_ptr<const UpdateRule> rmsprop_rule(const RmspropOptions& o) { return std::make_shared<Rmsprop>(o); }
std::shared_ptr<const UpdateRule> adagrad_rule(const AdagradOptions& o) { return std::make_shared<Adagrad>(o); }
std::shared_ptr<const UpdateRule> adadelta_rule(const AdadeltaOptions& o) { return std::make_shared<Adadelta>(o); }
std::shared_ptr<const UpdateRule> adamax_rule(const AdamaxOptions& o) { return std::make_shared<Adamax>(o); }
std::shared_ptr<const UpdateRule> nadam_rule(const NadamOptions& o) { return std::make_shared<Nadam>(o); }
std::shared_ptr<const UpdateRule> radam_rule(const RadamOptions& o) { return std::make_shared<Radam>(o); }
std::shared_ptr<const UpdateRule> asgd_rule(const AsgdOptions& o) { return std::make_shared<Asgd>(o); }
std::shared_ptr<const UpdateRule> rprop_rule(const RpropOptions& o) { return std::make_shared<Rprop>(o); }
std::shared_ptr<const UpdateRule> lion_rule(const LionOptions& o) { return std::make_shared<Lion>(o); }
std::shared_ptr<const UpdateRule> adafactor_rule(const AdafactorOptions& o) { return std::make_shared<Adafactor>(o); }
std::shared_ptr<const UpdateRule> adamw_rule(const AdamWOptions& o) { return std::make_shared<AdamW>(o); }
std::shared_ptr<const UpdateRule> muon_rule(const MuonOptions& o) { return std::make_shared<Muon>(o); }
std::shared_ptr<const UpdateRule> prodigy_rule(const ProdigyOptions& o) { return std::make_shared<Prodigy>(o); }
std::shared_ptr<const UpdateRule> schedule_free_adamw_rule(const ScheduleFreeAdamWOptions& o) {
  return std::make_shared<ScheduleFreeAdamW>(o);
}

}  // namespace lockstep
