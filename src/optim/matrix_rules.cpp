// Rules that treat a matrix as one. The formulas and the names are those of torch.optim.
#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/rule_steps.h"
#include "optim/update_rules.h"

namespace lockstep {
namespace {

class Adafactor final : public UpdateRule {
 public:
  explicit Adafactor(const AdafactorOptions& options) : options_(options) {}
  std::span<const StateSlot> slots() const override {
    static constexpr StateSlot kSlots[] = {{.name = "row_var", .shape = StateSlot::Shape::row_means},
                                           {.name = "col_var", .shape = StateSlot::Shape::col_means},
                                           {.name = "variance", .shape = StateSlot::Shape::vector}};
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

}  // namespace

std::shared_ptr<const UpdateRule> adafactor_rule(const AdafactorOptions& o) { return std::make_shared<Adafactor>(o); }
std::shared_ptr<const UpdateRule> muon_rule(const MuonOptions& o) { return std::make_shared<Muon>(o); }

}  // namespace lockstep
