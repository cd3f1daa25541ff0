// Numbers of all ranks, without a text format for each kind of them.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <lockstep/world/world.h>

#include "base/assertion.h"

namespace lockstep {

/// Collective. The list of each rank, in the order of the ranks; the lists may have different lengths. Values are sent
/// as their bytes.
template <class T>
std::vector<std::vector<T>> gather_values(World& world, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<std::vector<T>> all;
  const std::string_view sent(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T));
  for (const std::string& bytes : world.gather(sent)) {
    LOCKSTEP_ASSERT(bytes.size() % sizeof(T) == 0, "every rank sends values of the same type");
    std::vector<T>& values = all.emplace_back(bytes.size() / sizeof(T));
    std::ranges::copy(bytes, reinterpret_cast<char*>(values.data()));
  }
  return all;
}

/// Collective. The value of each rank, in the order of the ranks.
template <class T>
std::vector<T> gather_value(World& world, const T& mine) {
  std::vector<T> all;
  for (const std::vector<T>& values : gather_values(world, std::vector<T>{mine})) {
    all.push_back(values.at(0));
  }
  return all;
}

}  // namespace lockstep
