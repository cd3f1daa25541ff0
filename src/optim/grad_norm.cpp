#include "optim/grad_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

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

struct Chunk {
  float* values = nullptr;
  std::int64_t count = 0;
};

std::vector<Chunk> chunks_of(std::span<const at::Tensor> gradients) {
  std::vector<Chunk> chunks;
  for (const at::Tensor& gradient : gradients) {
    auto* values = gradient.mutable_data_ptr<float>();
    for (std::int64_t at = 0; at < gradient.numel(); at += kChunk) {
      chunks.push_back({values + at, std::min(kChunk, gradient.numel() - at)});
    }
  }
  return chunks;
}

template <class Work>
void for_each_chunk(const std::vector<Chunk>& chunks, const Work& work) {
  at::parallel_for(0, static_cast<std::int64_t>(chunks.size()), kInParallel, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      work(i, chunks[i]);
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
  const std::vector<Chunk> chunks = chunks_of(gradients);
  std::vector<double> sums(chunks.size());
  for_each_chunk(chunks, [&](std::size_t i, Chunk chunk) { sums[i] = sum_of_squares(chunk.values, chunk.count); });
  return at::scalar_tensor(std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0)), at::kFloat);
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
      for_each_chunk(chunks_of(gradients), [&](std::size_t, Chunk chunk) { multiply(chunk.values, chunk.count, by); });
    }
  } else if (!gradients.empty()) {
    at::_foreach_mul_(as_list(gradients), factor);
  }
}

}  // namespace lockstep
