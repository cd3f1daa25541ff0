// Steps that several update rules have in common.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "optim/rule_optimizer.h"

namespace lockstep {

using Tensors = std::vector<at::Tensor>;

/// Gradients to which the weight decay was added.
inline Tensors decayed_gradients(const RuleLists& lists) {
  return lists.weight_decay == 0 ? lists.gradients
                                 : at::_foreach_add(lists.gradients, lists.values, lists.weight_decay);
}

inline void decay_values(const RuleLists& lists) {
  if (lists.weight_decay != 0) {
    at::_foreach_mul_(lists.values, 1 - lists.lr * lists.weight_decay);
  }
}

/// average = beta x average + (1 - beta) x gradient^2
inline void average_squares(Tensors& averages, const Tensors& gradients, double beta) {
  at::_foreach_mul_(averages, beta);
  at::_foreach_addcmul_(averages, gradients, gradients, 1 - beta);
}

inline Tensors root(const Tensors& squares, double eps) {
  Tensors roots = at::_foreach_sqrt(squares);
  at::_foreach_add_(roots, eps);
  return roots;
}

/// Of a slot that is a number: all parameters of an update have the same.
inline double number_of(const Tensors& numbers) { return numbers.front().item<double>(); }
inline void set_number(const Tensors& numbers, double value) {
  for (const at::Tensor& each : numbers) {
    *each.mutable_data_ptr<double>() = value;
  }
}

inline double power(double base, std::int64_t exponent) { return std::pow(base, static_cast<double>(exponent)); }

}  // namespace lockstep
