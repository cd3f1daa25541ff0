// A vector made from the elements of another range. Torch-free.
#pragma once

#include <functional>
#include <ranges>
#include <type_traits>
#include <vector>

namespace lockstep {

/// {function(element), ...}; `function` may be a pointer to a member. `Value`: void for what the function returns.
template <class Value = void, std::ranges::input_range Range, class Function>
auto mapped(Range&& range, Function function) {
  using Returned = std::remove_cvref_t<std::invoke_result_t<Function&, std::ranges::range_reference_t<Range>>>;
  std::vector<std::conditional_t<std::is_void_v<Value>, Returned, Value>> values;
  if constexpr (std::ranges::sized_range<Range>) {
    values.reserve(std::ranges::size(range));
  }
  for (auto&& element : range) {
    values.emplace_back(std::invoke(function, element));
  }
  return values;
}

}  // namespace lockstep
