#include "probe/results.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/duration.h"

namespace lockstep {

Results::Results(World& world, std::vector<std::string> faults) : world_(world), faults_(std::move(faults)) {}

void Results::check(std::string_view name, const std::function<std::string()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> problems = world_.gather(work());
  std::string first;
  for (std::size_t rank = 0; rank < problems.size() && first.empty(); ++rank) {
    if (!problems[rank].empty()) {
      first = fmt::format("rank {}: {}", rank, problems[rank]);
    }
  }
  write({{"check", name}, {"problem", first}, {"seconds", seconds_since(start)}});
}

void Results::measured(std::string_view name, Json values) {
  values["measured"] = name;
  write(values);
}

bool Results::is_falsified(std::string_view check) const {
  return world_.rank() == world_.size() - 1 && std::find(faults_.begin(), faults_.end(), check) != faults_.end();
}

void Results::write(const Json& line) const {
  if (world_.is_main()) {
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
}

}  // namespace lockstep
