#include "supervise/stall_watch.h"

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/ranks_text.h"
#include "base/text.h"

namespace lockstep {
namespace {

using std::chrono::seconds;

/// The least CPU time between two samples that counts as work. The threads with which a waiting rank watches the others
/// use less.
constexpr std::int64_t kTicksOfWork = 2;

/// Phases of a step, which are short and equal on every rank.
bool is_in_step(Phase phase) { return phase >= Phase::data && phase <= Phase::optimizer; }

/// Position of a rank in the order of a run. `step` counts completed steps, so the work after a step has the same
/// number as the next step.
int order_of(Phase phase) {
  return is_in_step(phase) || phase >= Phase::finish ? static_cast<int>(phase) + 100 : static_cast<int>(phase);
}

std::string state_text(const RankSample& sample) {
  const std::string state = to_string(sample.process);
  return to_string(sample.view) + (state.empty() ? "" : ", " + state);
}

/// The numbers in the run of ranks that are indices of the samples.
std::vector<int> numbers_of(const std::vector<int>& indices, int first_rank) {
  return mapped(indices, [&](int index) { return first_rank + index; });
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

/// Ignores sizes that may differ: in a broadcast of bytes only the sender knows the size.
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

/// Stalled ranks that the system prevents from running: stopped, or blocked in a driver or a file system. If all ranks
/// that are behind wait for others, the cause may be a rank ahead of them.
std::vector<int> blocked_by_system(const std::vector<RankSample>& samples, const std::vector<int>& behind) {
  const auto sample_of = [&](int rank) -> const RankSample& { return samples[static_cast<std::size_t>(rank)]; };
  const auto of = [&](std::vector<int> ranks) {
    std::erase_if(ranks, [&](int rank) {
      const char state = sample_of(rank).process.state;
      return state != 'T' && state != 'D';
    });
    return ranks;
  };
  const bool all_wait = std::ranges::all_of(behind, [&](int rank) {
    const ProgressView& view = sample_of(rank).view;
    return view.operation != Operation::none || view.phase == Phase::backward;
  });
  std::vector<int> found = of(behind);
  return found.empty() && all_wait ? of(running(samples)) : found;
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
  const bool are_turns =  // a rank that had its turn is one number ahead of those that wait for theirs
      std::ranges::all_of(groups, [](const auto& group) { return std::get<1>(group.first) == Operation::turn; });
  if (groups.size() < 2 || are_turns) {
    return {};
  }
  // If both sides have equally many ranks, those in the collective with the lower number.
  return std::ranges::min_element(groups,
                                  [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); })
      ->second;
}

bool call_different_collectives(const std::vector<RankSample>& samples) {
  const auto groups = by_collective(samples);
  return std::ranges::adjacent_find(groups, [](const auto& a, const auto& b) {
           return std::get<0>(a.first) == std::get<0>(b.first);
         }) != groups.end();
}

std::vector<std::string> stall_table(const std::vector<RankSample>& samples, int first_rank) {
  const auto groups = grouped<std::string>(samples, [](const RankSample& s) { return std::optional(state_text(s)); });
  auto rows =
      mapped(groups, [&](const auto& group) { return std::pair(numbers_of(group.second, first_rank), group.first); });
  std::ranges::sort(rows);
  return mapped(rows, [](const auto& row) { return fmt::format("  {}: {}", ranks_text(row.first), row.second); });
}

std::vector<StallFinding> StallWatch::observe(const std::vector<RankSample>& samples, Time now) {
  if (last_ && now - *last_ > kLongestGap) {
    leave_out(now);
  }
  last_ = now;
  note_movement(samples, now);
  all_wait_ = sees_all_ && std::ranges::all_of(samples, [](const RankSample& sample) {
                return !sample.running || sample.view.operation != Operation::none;
              });
  std::vector<StallFinding> findings;
  report_stops(samples, findings);
  report_stall(samples, now, findings);
  return findings;
}

void StallWatch::leave_out(Time now) {
  if (!last_) {
    return;
  }
  const auto shift = [&](Time& time) { time = std::min(time + (now - *last_), now); };
  for (Rank& rank : ranks_) {
    shift(rank.moved);
  }
  shift(last_movement_);
  for (std::optional<Time>* start : {&warned_since_, &stop_at_}) {
    if (*start) {
      shift(**start);
    }
  }
  last_ = now;
}

void StallWatch::note_movement(const std::vector<RankSample>& samples, Time now) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const RankSample& sample = samples[i];
    const bool works_for_itself = !is_in_step(sample.view.phase) && sample.view.phase != Phase::rendezvous &&
                                  sample.view.operation == Operation::none;
    const bool worked = works_for_itself && sample.process.cpu_ticks >= rank.cpu_ticks + kTicksOfWork;
    if (rank.beats != sample.view.beats || worked || sample.process.state == 't') {  // time in a debugger is ignored
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
    std::string text = fmt::format("rank {} (pid {}) ", first_rank_ + rank, sample.pid);
    if (stopped == 'T') {
      text += fmt::format("is stopped by a signal (state T); kill -CONT {} resumes it", sample.pid);
    } else if (stopped == 't') {
      text += fmt::format("is held by a debugger (pid {}); it is not ended while the debugger holds it",
                          sample.process.tracer);
    } else {
      text += "continues";
    }
    noted = stopped;
    findings.push_back({.lines = {std::move(text)}, .ranks = {rank}});
  }
}

void StallWatch::take_limits(const ProgressRecord& record) {
  const std::int64_t warning_ms = record.stall_warning_ms.load(std::memory_order_relaxed);
  const std::int64_t deadline_ms = record.stall_deadline_ms.load(std::memory_order_relaxed);
  if (warning_ms >= 0 && deadline_ms >= 0) {
    limits_.warning = std::chrono::milliseconds(warning_ms);
    limits_.deadline = std::chrono::milliseconds(deadline_ms);
  }
}

void StallWatch::stop_asked_for(Time now) {
  stop_at_ = stop_at_.value_or(now);
  warned_since_.reset();  // a new warning may be due earlier now
}

/// Time without progress after which the run is ended; nullopt: never.
std::optional<std::chrono::milliseconds> StallWatch::limit_of(const RankSample& sample) const {
  using std::chrono::milliseconds;
  const Phase phase = sample.view.phase;
  if (phase == Phase::rendezvous) {
    return limits_.rendezvous.count() > 0 ? std::optional(limits_.rendezvous) : std::nullopt;
  }
  const bool may_end = is_in_step(phase) || phase == Phase::teardown || all_wait_ || sample.process.state == 'T';
  if (!may_end || limits_.deadline.count() == 0) {
    return std::nullopt;
  }
  const auto patience = std::max(limits_.stop_deadline, std::chrono::ceil<milliseconds>(2 * longest_pause_));
  return stop_at_ ? std::min(limits_.deadline, patience) : limits_.deadline;
}

/// Last progress of the ranks for which all others wait.
StallWatch::Time StallWatch::last_movement(const std::vector<RankSample>& samples, const std::vector<int>& behind) {
  Time moved{};
  for (const int rank : behind) {
    moved = std::max(moved, ranks_[static_cast<std::size_t>(rank)].moved);
  }
  if (in_step_ && moved > last_movement_) {
    longest_pause_ = std::max(longest_pause_, moved - last_movement_);
  }
  last_movement_ = moved;
  in_step_ = is_in_step(samples[static_cast<std::size_t>(behind.front())].view.phase);
  return moved;
}

void StallWatch::report_stall(const std::vector<RankSample>& samples, Time now, std::vector<StallFinding>& findings) {
  const std::vector<int> ranks = running(samples);
  const auto sample_of = [&](int rank) -> const RankSample& { return samples[static_cast<std::size_t>(rank)]; };
  if (ranks.empty() || std::ranges::any_of(ranks, [&](int r) { return sample_of(r).view.beats == 0; })) {
    return;
  }
  const std::vector<int> behind = furthest_behind(samples);
  const Time moved = last_movement(samples, behind);
  const auto still = now - std::max(moved, stop_at_.value_or(moved));
  if (warned_since_ && moved > *warned_since_) {
    findings.push_back({.lines = {fmt::format("the run continues after a stall of {} s",
                                              std::chrono::floor<seconds>(moved - *warned_since_).count())}});
    warned_since_.reset();
  }
  std::optional<std::chrono::milliseconds> limit;
  for (const int rank : behind) {
    const auto theirs = limit_of(sample_of(rank));
    limit = limit && theirs ? std::min(limit, theirs) : std::max(limit, theirs);  // nullopt is less than any limit
  }
  const bool held = std::ranges::any_of(ranks, [&](int r) { return sample_of(r).process.state == 't'; });
  const auto patience = stop_at_ ? std::min(limits_.warning, limits_.stop_warning) : limits_.warning;
  const bool warn = limits_.warning.count() > 0 && still >= patience && !warned_since_;
  const bool end = limit && still >= *limit && !ended_ && !held;
  if (!warn && !end) {
    return;
  }
  warned_since_ = moved;
  ended_ = ended_ || end;
  findings.push_back(describe_stall(samples, behind, still, end ? limit : std::nullopt));
}

StallFinding StallWatch::describe_stall(const std::vector<RankSample>& samples, const std::vector<int>& behind,
                                        Time::duration still, std::optional<std::chrono::milliseconds> limit) const {
  const auto sample_of = [&](int rank) -> const RankSample& { return samples[static_cast<std::size_t>(rank)]; };
  StallFinding finding{.ranks = blocked_by_system(samples, behind), .ends_the_run = limit.has_value()};
  std::string first = fmt::format("no progress for {} s{}; ", std::chrono::floor<seconds>(still).count(),
                                  stop_at_ ? " after a stop request" : "");
  std::string state;
  const auto who = [&](const std::vector<int>& some) {
    return fmt::format("{} {}", ranks_text(numbers_of(some, first_rank_)), some.size() == 1 ? "is" : "are");
  };
  if (!finding.ranks.empty()) {
    state = to_string(sample_of(finding.ranks.front()).process);
    first += fmt::format("{} {}:", who(finding.ranks), state);
  } else if (finding.ranks = in_another_collective(samples); !finding.ranks.empty()) {
    first += "the ranks are in different collectives:";
    finding.hint = kSameOrderHint;
  } else if (finding.ranks = behind; behind.size() == running(samples).size()) {
    first += "all ranks are at the same place:";
  } else {
    first += fmt::format("{} behind:", who(behind));
  }
  if (limit) {
    const RankSample& culprit = sample_of(finding.ranks.front());
    const std::string place = place_of(culprit.view);
    finding.what =
        fmt::format("made no progress for {}{}{}{}{}{}", in_seconds(*limit), stop_at_ ? " after a stop request" : "",
                    place.empty() ? "" : " ", place, state.empty() ? "" : ": it is ", state);
    if (finding.ranks.size() > 1) {
      const std::vector<int> numbers = numbers_of(finding.ranks, first_rank_);
      finding.what += fmt::format(", with {}", ranks_text(std::span(numbers).subspan(1)));
    }
    if (finding.hint.empty()) {
      finding.hint = stop_at_ ? "the stacks of all ranks are above; the same command resumes from the last save"
                     : culprit.view.phase == Phase::rendezvous
                         ? "the stacks of all ranks are above; --dist.init_timeout_s sets the limit"
                         : "the stacks of all ranks are above; --dist.stall_timeout_s sets the limit";
    }
  }
  finding.lines = stall_table(samples, first_rank_);
  finding.lines.insert(finding.lines.begin(), first);
  return finding;
}

}  // namespace lockstep
