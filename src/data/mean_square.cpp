#include "data/mean_square.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "data/real_numbers.h"

namespace lockstep {
namespace {

// A float32 sum over a whole batch has an error of some ten-thousandths, and another one in each split over ranks. The
// sums of the rows are shorter, and the same in every split.
at::Tensor sum_of_squares(const at::Tensor& numbers) {
  std::vector<std::int64_t> within_row(static_cast<std::size_t>(std::max<std::int64_t>(numbers.dim() - 1, 0)));
  std::iota(within_row.begin(), within_row.end(), 1);
  const auto dtype =
      at::isReducedFloatingType(numbers.scalar_type()) ? std::optional(at::kFloat) : std::optional<at::ScalarType>();
  return at::linalg_vector_norm(numbers, 2, within_row, /*keepdim=*/false, dtype).to(at::kDouble).square_().sum();
}

}  // namespace

at::Tensor mean_square(const Batch& batch, c10::Device device) {
  at::Tensor sum;
  std::int64_t count = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0 || (!tensor.is_floating_point() && !tensor.is_complex())) {
      return;
    }
    const at::Tensor numbers = real_numbers(tensor);
    const at::Tensor squares = sum_of_squares(numbers).to(device, /*non_blocking=*/true);
    sum = sum.defined() ? sum + squares : squares;
    count += numbers.numel();
  };
  add(batch.input);
  for (const auto& [name, tensor] : batch.fields) {
    add(tensor);
  }
  return sum.defined() ? sum / static_cast<double>(count) : sum;
}

}  // namespace lockstep
