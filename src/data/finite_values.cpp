#include "data/finite_values.h"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "data/batch_columns.h"
#include "data/real_numbers.h"

namespace lockstep {

namespace {

bool is_finite(const at::Tensor& numbers) {
  if (numbers.numel() == 0) {
    return true;
  }
  const auto [least, largest] = at::aminmax(numbers);  // NaN if one of them is NaN
  return std::isfinite(least.item<double>()) && std::isfinite(largest.item<double>());
}

/// The first element that is NaN or infinite, and their number.
struct Place {
  std::int64_t first = 0;  // counted through the tensor
  std::int64_t count = 0;
};

Place find_place(const at::Tensor& numbers) {
  const at::Tensor bad = at::isfinite(numbers).logical_not_().flatten();
  return {.first = bad.to(at::kByte).argmax().item<std::int64_t>(), .count = bad.sum().item<std::int64_t>()};
}

std::vector<std::int64_t> index_of(std::int64_t element, at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (std::size_t dimension = sizes.size(); dimension-- > 0;) {
    index[dimension] = element % sizes[dimension];
    element /= sizes[dimension];
  }
  return index;
}

NotFinite describe_first(const std::string& name, const at::Tensor& numbers, std::int64_t samples) {
  NotFinite found;
  at::Tensor values = numbers;
  Place place = find_place(values);
  if (values.dim() > 0 && values.size(0) == samples) {
    found.row = place.first / (values.numel() / samples);
    values = values[*found.row];
    place = find_place(values);
  }
  const auto value = values.flatten()[place.first].item<double>();
  const double first = std::isnan(value) ? std::abs(value) : value;  // the sign of NaN says nothing
  found.text =
      values.numel() == 1
          ? fmt::format("{} is {}", name, first)
          : fmt::format("{} has {} of {} elements that are NaN or infinite, the first is {} at [{}]", name, place.count,
                        values.numel(), first, fmt::join(index_of(place.first, values.sizes()), ", "));
  return found;
}

}  // namespace

std::optional<NotFinite> find_not_finite(const Batch& batch, std::int64_t samples) {
  for (const auto& [name, tensor] : columns_of(batch)) {
    if (!tensor.defined() || (!tensor.is_floating_point() && !tensor.is_complex())) {
      continue;
    }
    if (const at::Tensor numbers = real_numbers(tensor); !is_finite(numbers)) {
      return describe_first(name, numbers, samples);
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
