#include "trainer/time_shares.h"

#include <fmt/format.h>

namespace lockstep {

EventFields TimeShares::fields() const {
  return {{"seconds", total}, {"data_seconds", data}, {"validation_seconds", validation}, {"save_seconds", saves}};
}

std::optional<std::string> TimeShares::advice(int workers) const {
  constexpr double kLong = 10;  // seconds; a shorter run says little
  constexpr double kMuch = 0.2;
  const auto percent = [this](double seconds) { return fmt::format("{:.0f} % of the time", 100 * seconds / total); };
  if (total < kLong) {
    return std::nullopt;
  }
  if (data > kMuch * total) {
    return fmt::format("waiting for data took {}: raise --data.workers (now {}) or --data.prefetch, or cache the data",
                       percent(data), workers);
  }
  if (saves > kMuch * total) {
    return fmt::format("saving took {}: save less often, or in the background with --checkpoint.async", percent(saves));
  }
  return std::nullopt;
}

}  // namespace lockstep
