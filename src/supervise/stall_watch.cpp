#include "supervise/stall_watch.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {
namespace {

using std::chrono::seconds;

/// Work on one step: short, and alike on every rank.
bool is_in_step(Phase phase) {
  return phase == Phase::data || phase == Phase::forward || phase == Phase::backward || phase == Phase::optimizer;
}

/// A rank's place in the order of a run. `step` counts finished steps, so what follows a step has the same number as
/// the step after it.
int order_of(Phase phase) {
  return is_in_step(phase) || phase >= Phase::finish ? static_cast<int>(phase) + 100 : static_cast<int>(phase);
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_ranges(ranks));
}

std::string state_text(const RankSample& sample) {
  const std::string state = to_string(sample.process);
  return to_string(sample.view) + (state.empty() ? "" : ", " + state);
}

std::vector<int> running(const std::vector<RankSample>& samples) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    if (samples[rank].running) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

template <class Key>
std::map<Key, std::vector<int>> grouped(const std::vector<RankSample>& samples,
                                        const std::function<std::optional<Key>(const RankSample&)>& key_of) {
  std::map<Key, std::vector<int>> groups;
  for (const int rank : running(samples)) {
    if (const auto key = key_of(samples[static_cast<std::size_t>(rank)])) {
      groups[*key].push_back(rank);
    }
  }
  return groups;
}

/// Sizes that differ by design say nothing: only the sender knows how many bytes there are.
bool has_equal_sizes(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::broadcast || operation == Operation::all_gather;
}

using Collective = std::tuple<std::uint64_t, Operation, std::int64_t>;  // number, what, bytes

std::map<Collective, std::vector<int>> by_collective(const std::vector<RankSample>& samples) {
  return grouped<Collective>(samples, [](const RankSample& sample) {
    const ProgressView& view = sample.view;
    return view.operation == Operation::none
               ? std::nullopt
               : std::optional(
                     Collective(view.collectives, view.operation, has_equal_sizes(view.operation) ? view.bytes : 0));
  });
}

bool may_end(const RankSample& sample) {
  return is_in_step(sample.view.phase) || sample.view.phase == Phase::teardown || sample.process.state == 'T';
}

}  // namespace

std::vector<int> furthest_behind(const std::vector<RankSample>& samples) {
  using Place = std::tuple<std::int64_t, std::uint64_t, int>;
  const auto groups = grouped<Place>(samples, [](const RankSample& sample) {
    return std::optional(Place(sample.view.step, sample.view.collectives, order_of(sample.view.phase)));
  });
  return groups.empty() ? std::vector<int>() : groups.begin()->second;
}

std::vector<int> in_another_collective(const std::vector<RankSample>& samples) {
  const auto groups = by_collective(samples);
  if (groups.size() < 2) {
    return {};
  }
  // With as many on either side, those with the lower number.
  return std::min_element(groups.begin(), groups.end(),
                          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); })
      ->second;
}

bool call_different_collectives(const std::vector<RankSample>& samples) {
  const auto groups = by_collective(samples);
  return std::adjacent_find(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
           return std::get<0>(a.first) == std::get<0>(b.first);
         }) != groups.end();
}

std::vector<std::string> stall_table(const std::vector<RankSample>& samples) {
  const auto groups = grouped<std::string>(samples, [](const RankSample& s) { return std::optional(state_text(s)); });
  std::vector<std::pair<std::vector<int>, std::string>> rows;
  for (const auto& [text, ranks] : groups) {
    rows.emplace_back(ranks, text);
  }
  std::sort(rows.begin(), rows.end());
  std::vector<std::string> lines;
  for (const auto& [ranks, text] : rows) {
    lines.push_back(fmt::format("  {}: {}", ranks_text(ranks), text));
  }
  return lines;
}

std::vector<StallFinding> StallWatch::observe(const std::vector<RankSample>& samples, Time now) {
  if (last_ && now - *last_ > kLongestGap) {
    for (Rank& rank : ranks_) {
      rank.moved += now - *last_;  // nobody looked: that time does not count
    }
  }
  last_ = now;
  note_movement(samples, now);
  std::vector<StallFinding> findings;
  report_stops(samples, findings);
  report_stall(samples, now, findings);
  return findings;
}

void StallWatch::note_movement(const std::vector<RankSample>& samples, Time now) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const RankSample& sample = samples[i];
    const bool worked = !is_in_step(sample.view.phase) && sample.process.cpu_ticks > rank.cpu_ticks;
    if (rank.beats != sample.view.beats || worked || sample.process.state == 't') {  // a debugger's time does not count
      rank.moved = now;
    }
    rank.beats = sample.view.beats;
    rank.cpu_ticks = sample.process.cpu_ticks;
  }
}

void StallWatch::report_stops(const std::vector<RankSample>& samples, std::vector<StallFinding>& findings) {
  for (const int rank : running(samples)) {
    auto& [seen, noted] = ranks_[static_cast<std::size_t>(rank)].stop;
    const RankSample& sample = samples[static_cast<std::size_t>(rank)];
    const char state = sample.process.state;
    const char stopped = state == 'T' || state == 't' ? state : '\0';
    if (std::exchange(seen, stopped) != stopped || stopped == noted) {
      continue;
    }
    std::string text = fmt::format("rank {} (pid {}) ", rank, sample.pid);
    if (stopped == 'T') {
      text += fmt::format("is stopped by a signal (state T); kill -CONT {} lets it go on", sample.pid);
    } else if (stopped == 't') {
      text += fmt::format("is held by a debugger (pid {}); it is not ended while it is", sample.process.tracer);
    } else {
      text += "goes on";
    }
    noted = stopped;
    findings.push_back({.lines = {std::move(text)}, .ranks = {rank}});
  }
}

void StallWatch::report_stall(const std::vector<RankSample>& samples, Time now, std::vector<StallFinding>& findings) {
  const std::vector<int> ranks = running(samples);
  const auto sample_of = [&](int rank) -> const RankSample& { return samples[static_cast<std::size_t>(rank)]; };
  if (ranks.empty() || std::any_of(ranks.begin(), ranks.end(), [&](int r) { return sample_of(r).view.beats == 0; })) {
    return;
  }
  std::vector<int> behind = furthest_behind(samples);
  Time moved{};
  for (const int rank : behind) {
    moved = std::max(moved, ranks_[static_cast<std::size_t>(rank)].moved);
  }
  const auto still = std::chrono::floor<seconds>(now - moved);
  if (warned_since_ && moved > *warned_since_) {
    findings.push_back({.lines = {fmt::format("the run goes on after it stood still for {} s",
                                              std::chrono::floor<seconds>(moved - *warned_since_).count())}});
    warned_since_.reset();
  }
  const bool warn = limits_.warning.count() > 0 && now - moved >= limits_.warning && !warned_since_;
  const bool end = limits_.deadline.count() > 0 && now - moved >= limits_.deadline && !ended_ &&
                   std::any_of(behind.begin(), behind.end(), [&](int r) { return may_end(sample_of(r)); }) &&
                   std::none_of(ranks.begin(), ranks.end(), [&](int r) { return sample_of(r).process.state == 't'; });
  if (!warn && !end) {
    return;
  }
  warned_since_ = moved;
  StallFinding finding{.ranks = in_another_collective(samples), .ends_the_run = end};
  std::string first = fmt::format("no progress for {} s; ", still.count());
  if (!finding.ranks.empty()) {
    first += "the ranks are in different collectives:";
    finding.hint = kSameOrderHint;
  } else if (behind.size() == ranks.size()) {
    first += "all ranks stand at the same place:";
  } else {
    first += fmt::format("{} {} behind:", ranks_text(behind), behind.size() == 1 ? "is" : "are");
  }
  if (finding.ranks.empty()) {
    finding.ranks = behind;
  }
  ended_ = ended_ || end;
  finding.lines = stall_table(samples);
  finding.lines.insert(finding.lines.begin(), first);
  findings.push_back(std::move(finding));
}

}  // namespace lockstep
