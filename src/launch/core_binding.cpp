#include "launch/core_binding.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include "base/text.h"
#include "environment/text_file.h"

namespace lockstep {
namespace {

/// {}: unknown.
std::vector<int> cores_near(const Gpu& gpu, const std::vector<int>& allowed, const ReadText& read) {
  const auto node = numa_node_of(gpu.pci_bus_id, read);
  if (!node) {
    return {};
  }
  const auto near =
      parse_core_list(trim(read(fmt::format("/sys/devices/system/node/node{}/cpulist", *node)).value_or("")));
  std::vector<int> both;
  std::set_intersection(near.begin(), near.end(), allowed.begin(), allowed.end(), std::back_inserter(both));
  return both;
}

}  // namespace

std::vector<int> parse_core_list(std::string_view text) {
  constexpr std::int64_t kMaxCore = 1 << 14;
  std::vector<int> cores;
  for (const std::string& part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const auto first = parse_int(std::string_view(part).substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_int(std::string_view(part).substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMaxCore) {
      return {};
    }
    for (auto core = *first; core <= *last; ++core) {
      cores.push_back(static_cast<int>(core));
    }
  }
  std::ranges::sort(cores);
  return cores;
}

std::vector<std::vector<int>> divide_cores(const std::vector<int>& cores, int ranks) {
  std::vector<std::vector<int>> shares;
  const auto count = static_cast<std::int64_t>(cores.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::int64_t begin = count * rank / ranks;
    const std::int64_t end = std::max(begin + 1, count * (rank + 1) / ranks);
    shares.emplace_back(cores.begin() + begin, cores.begin() + std::min(end, count));
  }
  return shares;
}

std::vector<std::vector<int>> cores_of_ranks(int ranks, const std::vector<Gpu>& gpus, const std::vector<int>& allowed,
                                             const ReadText& read) {
  if (gpus.size() < static_cast<std::size_t>(ranks)) {
    return divide_cores(allowed, ranks);
  }
  std::vector<std::vector<int>> cores;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<int> near = cores_near(gpus[static_cast<std::size_t>(rank)], allowed, read);
    cores.push_back(near.empty() ? allowed : near);
  }
  return cores;
}

std::vector<std::vector<int>> cores_of_ranks(int ranks, const Hardware& hardware) {
  return cores_of_ranks(ranks, hardware.gpus, allowed_cores(), read_text_file);
}

std::optional<int> threads_of_bound_ranks(const std::vector<std::vector<int>>& cores_of_ranks) {
  if (std::ranges::adjacent_find(cores_of_ranks, std::not_equal_to<>()) == cores_of_ranks.end()) {
    return std::nullopt;
  }
  std::set<int> all;
  for (const auto& cores : cores_of_ranks) {
    all.insert(cores.begin(), cores.end());
  }
  return std::max(1, static_cast<int>(all.size() / cores_of_ranks.size()));
}

}  // namespace lockstep
