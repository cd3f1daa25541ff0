#include "optim/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>

#include "base/ceil_div.h"
#include "base/vectorized.h"

namespace lockstep {
namespace {

at::TensorList as_list(std::span<const at::Tensor> tensors) { return {tensors.data(), tensors.size()}; }

// Note [Gradients on the host]: for small models, operations on tensors cost much more than their arithmetic, so
// gradients of float on the host are read and scaled by plain loops. The sum of the squares does not depend on the
// number of threads or the width of vectors: chunks and lanes are fixed, and the square of a float is exact as a
// double.
bool are_floats_on_host(std::span<const at::Tensor> gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
    return gradient.is_cpu() && gradient.scalar_type() == at::kFloat && gradient.layout() == at::kStrided &&
           gradient.is_non_overlapping_and_dense() && !gradient.is_neg();
  });
}

constexpr std::int64_t kChunk = 1 << 15;  // elements
constexpr std::int64_t kInParallel = 4;   // chunks; fewer are not worth other threads

std::int64_t chunks_of(const at::Tensor& gradient) { return ceil_div(gradient.numel(), kChunk); }

std::int64_t chunks_of(std::span<const at::Tensor> gradients) {
  std::int64_t chunks = 0;
  for (const at::Tensor& gradient : gradients) {
    chunks += chunks_of(gradient);
  }
  return chunks;
}

/// Calls work(number, values, count) for each chunk. Allocates nothing.
template <class Work>
void for_each_chunk(std::span<const at::Tensor> gradients, const Work& work) {
  at::parallel_for(0, chunks_of(gradients), kInParallel, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;  // the number of the gradient's first chunk
    for (const at::Tensor& gradient : gradients) {
      const std::int64_t last = first + chunks_of(gradient);
      for (std::int64_t i = std::max(begin, first); i < std::min(end, last); ++i) {
        const std::int64_t done = (i - first) * kChunk;
        work(i, gradient.mutable_data_ptr<float>() + done, std::min(kChunk, gradient.numel() - done));
      }
      first = last;
    }
  });
}

LOCKSTEP_VECTORIZED double sum_of_squares(const float* values, std::int64_t count) noexcept {
  constexpr std::int64_t kLanes = 16;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (; i < count; ++i) {
    const double value = values[i];
    sum += value * value;
  }
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

LOCKSTEP_VECTORIZED void multiply(float* values, std::int64_t count, float factor) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] *= factor;
  }
}

at::Tensor host_norm(std::span<const at::Tensor> gradients) {
  c10::SmallVector<double, 256> sums(static_cast<std::size_t>(chunks_of(gradients)));
  for_each_chunk(gradients, [&](std::int64_t i, const float* values, std::int64_t count) {
    sums[static_cast<std::size_t>(i)] = sum_of_squares(values, count);
  });
  const double norm = std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
  constexpr auto kInfinity = std::numeric_limits<float>::infinity();
  return at::scalar_tensor(norm > std::numeric_limits<float>::max() ? kInfinity : norm, at::kFloat);
}

}  // namespace

at::Tensor global_norm(std::span<const at::Tensor> gradients, c10::Device device) {
  const at::NoGradGuard no_grad;
  if (gradients.empty()) {
    return at::zeros({}, at::device(device).dtype(at::kFloat));
  }
  if (are_floats_on_host(gradients)) {
    return host_norm(gradients);
  }
  // Half types are summed in float, because their squares overflow or round to zero.
  const bool has_double = std::any_of(gradients.begin(), gradients.end(),
                                      [](const at::Tensor& gradient) { return gradient.scalar_type() == at::kDouble; });
  const auto norms = at::_foreach_norm(as_list(gradients), 2, has_double ? at::kDouble : at::kFloat);
  return at::linalg_vector_norm(at::stack(norms), 2);
}

at::Tensor clip_factor(const at::Tensor& norm, double max_norm) {
  if (norm.is_cpu() && norm.scalar_type() == at::kFloat) {
    const float factor = 1 / (*norm.const_data_ptr<float>() + 1e-6F) * static_cast<float>(max_norm);
    return at::scalar_tensor(factor > 1 ? 1 : factor, at::kFloat);  // NaN stays
  }
  return norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
}

void clamp_(std::span<const at::Tensor> gradients, double limit) {
  const at::NoGradGuard no_grad;
  if (!gradients.empty()) {
    at::_foreach_clamp_min_(as_list(gradients), -limit);
    at::_foreach_clamp_max_(as_list(gradients), limit);
  }
}

void scale_(std::span<const at::Tensor> gradients, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  if (factor.is_cpu() && factor.scalar_type() == at::kFloat && are_floats_on_host(gradients)) {
    if (const float by = *factor.const_data_ptr<float>(); by != 1) {
      for_each_chunk(gradients, [&](std::int64_t, float* values, std::int64_t count) { multiply(values, count, by); });
    }
  } else if (!gradients.empty()) {
    at::_foreach_mul_(as_list(gradients), factor);
  }
}

}  // namespace lockstep
