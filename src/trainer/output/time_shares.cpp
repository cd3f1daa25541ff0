#include "trainer/output/time_shares.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {
namespace {

double to_seconds(PhaseTimes::Duration duration) { return std::chrono::duration<double>(duration).count(); }

constexpr double kMuch = 0.2;

std::string percent(double part, double total) { return fmt::format("{:.0f} %", 100 * part / total); }

}  // namespace

TimeShares::TimeShares(const PhaseTimes& begin, const PhaseTimes& end) : total_(to_seconds(end.now - begin.now)) {
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    spent_.own[i] = end.own[i] - begin.own[i];
  }
  spent_.waited = end.waited - begin.waited;
}

double TimeShares::of(Phase phase) const noexcept { return to_seconds(spent_.of(phase)); }

std::vector<std::pair<std::string_view, double>> TimeShares::parts() const {
  return {{"data", of(Phase::data)},
          {"copy", of(Phase::copy)},
          {"forward", of(Phase::forward)},
          {"backward", of(Phase::backward)},
          {"optimizer", of(Phase::optimizer)},
          {"task", of(Phase::task)},
          {"callback", of(Phase::callback)},
          {"report", of(Phase::report)},
          {"validation", of(Phase::validation) + of(Phase::test) + of(Phase::prediction)},
          {"save", of(Phase::save)},
          {"communication", to_seconds(spent_.waited)}};
}

EventFields TimeShares::fields(std::string_view prefix) const {
  EventFields fields{{fmt::format("{}seconds", prefix), total_}};
  for (const auto& [name, seconds] : parts()) {
    fields.push_back({fmt::format("{}{}_seconds", prefix, name), seconds});
  }
  return fields;
}

std::string TimeShares::text() const {
  auto parts = this->parts();
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> shown;
  for (const auto& [name, seconds] : parts) {
    if (seconds >= 0.01 * total_) {
      shown.push_back(fmt::format("{} {}", name, percent(seconds, total_)));
    }
  }
  return join(shown, ", ");
}

std::optional<std::string> TimeShares::advice_on_data(int workers, bool one_reader) const {
  const double data = of(Phase::data);
  if (data <= kMuch * total_) {
    return std::nullopt;
  }
  const std::string advice =
      !one_reader    ? fmt::format("raise --data.workers (now {}) or --data.prefetch, or cache the data", workers)
      : workers == 0 ? "use --data.workers 1, so that the stream is read beside the steps"
                     : "one thread of each rank reads the stream, so let the stream read ahead in threads of its own";
  return fmt::format("waiting for data took {} of the time: {}", percent(data, total_), advice);
}

std::optional<std::string> TimeShares::advice_on_copies(const DataConfig& data) const {
  const double copies = of(Phase::copy);
  if (copies <= kMuch * total_) {
    return std::nullopt;
  }
  const std::string advice = !data.pin_memory ? "use --data.pin_memory true, so that they run beside the steps"
                             : data.workers == 0
                                 ? "use --data.workers 1 or more, so that they begin before the step"
                                 : fmt::format(
                                       "raise --data.prefetch (now {}), or let batches have fewer bytes, such as "
                                       "images of uint8 that the task converts",
                                       data.prefetch);
  return fmt::format("waiting for copies of batches to the GPU took {} of the time: {}", percent(copies, total_),
                     advice);
}

std::optional<std::string> TimeShares::advice_on_saves() const {
  const double saves = of(Phase::save);
  if (saves <= kMuch * total_) {
    return std::nullopt;
  }
  return fmt::format("saving took {} of the time: save less often, or in the background with --checkpoint.async",
                     percent(saves, total_));
}

}  // namespace lockstep
