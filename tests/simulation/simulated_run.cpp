#include "simulation/simulated_run.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/splitmix.h"
#include "failure/awake_clock.h"
#include "failure/deadlines.h"
#include "failure/peer_watch.h"
#include "failure/verdict.h"

namespace lockstep::simulation {
namespace {

using namespace std::chrono_literals;
using Time = PeerWatch::Time;

constexpr int kPeerLost = static_cast<int>(ExitCode::peer_lost);
constexpr int kStalled = static_cast<int>(ExitCode::timeout);
constexpr int kKilled = 137;
constexpr std::chrono::milliseconds kSilence{3000};
constexpr std::chrono::milliseconds kGrace{5000};
constexpr Duration kWorkEnds{4s};  // in a run without a fault

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::int64_t between(std::int64_t first, std::int64_t last) {
    state_ += kGolden;
    return first + static_cast<std::int64_t>(mix(state_) % static_cast<std::uint64_t>(last - first + 1));
  }
  Duration up_to(Duration longest) { return Duration(between(1, std::max<std::int64_t>(1, longest.count()))); }
  bool percent(int chance) { return between(1, 100) <= chance; }

 private:
  std::uint64_t state_;
};

/// The supervisor's end of a channel, as a rank sees it.
class SimulatedChannel final : public FailureLink {
 public:
  explicit SimulatedChannel(std::function<void(const Failure&)> send) : send_(std::move(send)) {}
  void announce(const Failure& failure) override {
    if (!std::exchange(announced_, true) && !cause_) {
      send_(failure);
    }
  }
  void step(Time) override {}
  const std::optional<Failure>& cause() const override { return cause_; }
  bool ends_at_once() const override { return cause_.has_value(); }
  void order_to_end(const Failure& cause) { cause_ = cause; }

 private:
  std::function<void(const Failure&)> send_;
  std::optional<Failure> cause_{};
  bool announced_ = false;
};

struct Rank {
  int rank = 0;
  int node = 0;
  AwakeClock clock{};
  Duration jumped{};  // of its clock
  std::unique_ptr<SimulatedChannel> channel{};
  std::optional<PeerWatch> watch{};
  std::optional<StoreAnswer> answer{};
  std::vector<StoreLink::Peer> ended{};  // to be told of
  std::map<int, StoreLink::Peer> neighbours{};
  bool launcher_gone = false;
  bool cut = false;
  bool in_trouble = false;  // its main thread knows that a peer is gone, or never will
  int calls_to_live = -1;   // to the store
  std::optional<Duration> paused_until{};
  std::optional<Duration> step_at{};  // the next one that is planned
  bool has_left = false;              // its work is done
  std::optional<Duration> ended_at{};
  int code = 0;
  bool killed = false;
  bool outlived_its_order = false;
  std::optional<Failure> stopped_by{};  // what it said
};

struct Node {
  Verdict verdict{};
  std::set<int> accounted{};  // ranks that said something, or are gone
  std::optional<Duration> decided_at{};
  int gone = 0;
  bool muted = false;
};

class Run {
 public:
  Run(const Schedule& schedule, Defect defect)
      : schedule_(schedule), shape_(schedule.shape), defect_(defect), random_(schedule.seed) {
    nodes_.resize(static_cast<std::size_t>(shape_.nodes));
  }

  Outcome run() {
    begin();
    while (!events_.empty() && events_.top().at < kTheEnd) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      ++count_;
      actions_[event.action]();
      free_.push_back(event.action);
    }
    return {.problems = problems(), .trace = trace_, .events = count_};
  }

 private:
  static constexpr Duration kTheEnd{120s};

  struct Event {
    Duration at;
    std::int64_t number;
    std::size_t action;
    bool operator>(const Event& other) const noexcept { return at != other.at ? at > other.at : number > other.number; }
  };

  void after(Duration delay, std::function<void()> action) {
    std::size_t index = actions_.size();
    if (free_.empty()) {
      actions_.push_back(std::move(action));
    } else {
      index = free_.back();
      free_.pop_back();
      actions_[index] = std::move(action);
    }
    events_.push({now_ + delay, number_++, index});
  }

  void note(std::uint64_t what) { trace_ = splitmix(trace_ ^ (what + static_cast<std::uint64_t>(now_.count()))); }

  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Node& node_of(const Rank& rank) { return nodes_[static_cast<std::size_t>(rank.node)]; }
  static bool is_alive(const Rank& rank) { return !rank.ended_at; }
  bool is_paused(const Rank& rank) const { return rank.paused_until && now_ < *rank.paused_until; }

  // ---- the beginning

  void begin() {
    for (int number = 0; number < shape_.ranks(); ++number) {
      Rank& rank = ranks_.emplace_back();
      rank.rank = number;
      rank.node = number / shape_.ranks_per_node;
      if (shape_.supervised) {
        rank.channel = std::make_unique<SimulatedChannel>([this, number](const Failure& failure) {
          after(random_.up_to(20ms), [this, number, failure] { supervisor_hears(number, failure); });
        });
      }
      PeerWatch::Options options{.rank = number, .launcher_blames = !shape_.supervised};
      if (defect_ == Defect::consequences_end_first) {
        options.head_start = 0ms;
      }
      rank.watch.emplace(options, rank.channel.get());
      if (shape_.has_store()) {
        StoreLink& link = rank.watch->join_peers(
            shape_.ranks(),
            {.pid = 1000 + number, .machine = fmt::format("m{}", rank.node), .host = fmt::format("n{}", rank.node)});
        link.watch_nodes({.count = shape_.nodes,
                          .mine = rank.node,
                          .watches_next = number % shape_.ranks_per_node == 0,
                          .silence = kSilence});
      }
      plan_step(rank, random_.up_to(20ms));
    }
    for (const Fault& fault : schedule_.faults) {
      after(fault.at, [this, fault] { strike(fault); });
    }
    after(kWorkEnds, [this] { end_of_work(); });
  }

  // ---- a rank's thread

  void plan_step(Rank& rank, Duration delay) {
    const Duration when = std::max(now_ + delay, rank.paused_until.value_or(now_));
    if (!is_alive(rank) || (rank.step_at && *rank.step_at <= when)) {
      return;
    }
    rank.step_at = when;
    after(when - now_, [this, number = rank.rank, when] {
      Rank& stepping = at(number);
      if (stepping.step_at == when) {
        stepping.step_at.reset();
        step(stepping);
      }
    });
  }

  Time clock_of(Rank& rank) {
    const Time time{now_ + rank.jumped};
    return defect_ == Defect::suspended_time_counts ? time : rank.clock.read(time);
  }

  void step(Rank& rank) {
    if (!is_alive(rank)) {
      return;
    }
    if (is_paused(rank)) {
      plan_step(rank, 0us);
      return;
    }
    const Time now = clock_of(rank);
    PeerWatch& watch = *rank.watch;
    if (rank.launcher_gone && !rank.has_left) {
      watch.launcher_is_gone("pid 1 (launcher)", now);
    }
    if (StoreLink* peers = watch.peers()) {
      for (StoreLink::Peer& peer : peers->take_found()) {
        if (is_alive(at(peer.rank))) {
          rank.neighbours.emplace(peer.rank, std::move(peer));
        } else {
          peers->peer_ended(peer);
        }
      }
      for (const StoreLink::Peer& peer : std::exchange(rank.ended, {})) {
        peers->peer_ended(peer);
      }
      if (rank.answer) {
        peers->answer(*std::exchange(rank.answer, std::nullopt));
      }
    }
    watch.step(now);
    if (StoreLink* peers = watch.peers()) {
      if (const auto call = peers->next_call()) {
        carry(rank, *call);
      }
    }
    if (!is_alive(rank)) {
      return;
    }
    if (watch.decision()) {
      const ExitDecision& decision = *watch.decision();
      if (decision.is_stopped) {
        rank.stopped_by = decision.failure;
      }
      note(static_cast<std::uint64_t>(decision.failure.rank + 7));
      end(rank, decision.code, /*killed=*/false);
      return;
    }
    auto longest = rank.launcher_gone || watch.peers() != nullptr ? Duration(deadlines::kLook) : Duration(1h);
    if (const auto due = watch.due()) {
      longest = std::clamp(std::chrono::ceil<Duration>(*due - now), Duration(0), longest);
    }
    if (longest < 1h) {
      plan_step(rank, longest + random_.up_to(500us));
    }
  }

  // ---- the store

  bool store_is_served() const { return !ranks_.front().ended_at; }

  void carry(Rank& rank, const StoreCall& call) {
    if (rank.calls_to_live >= 0 && rank.calls_to_live-- == 0 && !is_ending_) {
      end(rank, kKilled, /*killed=*/true);
      return;
    }
    const Duration there = random_.up_to(schedule_.latency);
    const Duration back = random_.up_to(schedule_.latency);
    const bool is_late = random_.percent(schedule_.late_percent);
    const bool is_lost = is_late && random_.percent(50);
    const bool twice = random_.percent(schedule_.twice_percent);
    after(there, [this, number = rank.rank, call, back, is_late, is_lost, twice] {
      serve(number, call, back, is_late, is_lost, twice);
    });
  }

  bool is_muted(const Rank& rank) { return rank.node != 0 && (node_of(rank).muted || nodes_.front().muted); }

  void serve(int number, const StoreCall& call, Duration back, bool is_late, bool is_lost, bool twice) {
    Rank& rank = at(number);
    if (is_muted(rank)) {
      return;  // for ever
    }
    const Rank& server = ranks_.front();
    if (is_paused(server)) {
      after(*server.paused_until - now_ + 1us, [this, number, call, back, is_late, is_lost, twice] {
        serve(number, call, back, is_late, is_lost, twice);
      });
      return;
    }
    StoreAnswer answer{.kind = StoreAnswer::Kind::gone};
    if (store_is_served() && !rank.cut) {
      answer = {};
      if (!is_lost) {
        answer = perform(call);
        if (twice) {
          answer = perform(call);
        }
      }
      if (is_late && !is_false_success(call)) {
        answer = {.kind = StoreAnswer::Kind::late};
      }
    }
    if (defect_ == Defect::rank_0_does_not_linger && call.key.starts_with("heard/") &&
        answer.kind == StoreAnswer::Kind::done) {
      answer.number = 1;
    }
    after(back, [this, number, answer] {
      Rank& asking = at(number);
      if (!is_muted(asking)) {
        asking.answer = answer;
        step(asking);
      }
    });
  }

  /// The planted defect: what got lost counts as done.
  bool is_false_success(const StoreCall& call) const {
    return defect_ == Defect::lost_message_is_not_sent_again && call.kind == StoreCall::Kind::set;
  }

  StoreAnswer perform(const StoreCall& call) {
    switch (call.kind) {
      case StoreCall::Kind::set:
        texts_[call.key] = call.value;
        return {};
      case StoreCall::Kind::add:
        if (defect_ == Defect::heartbeats_stop && call.key.starts_with("beats/") && numbers_[call.key] >= 1) {
          return {.number = numbers_[call.key]};
        }
        return {.number = numbers_[call.key] += call.delta};
      case StoreCall::Kind::check:
        return {.number = texts_.contains(call.key) ? 1 : 0};
      case StoreCall::Kind::get:
        return texts_.contains(call.key) ? StoreAnswer{.text = texts_[call.key]}
                                         : StoreAnswer{.kind = StoreAnswer::Kind::late};
    }
    return {};
  }

  // ---- ends

  void end(Rank& rank, int code, bool killed) {
    if (!is_alive(rank)) {
      return;
    }
    rank.ended_at = now_;
    rank.code = code;
    rank.killed = killed;
    has_failed_ = has_failed_ || code != 0;
    note(static_cast<std::uint64_t>(rank.rank) * 1000 + static_cast<std::uint64_t>(code));
    const int first = rank.node * shape_.ranks_per_node;
    for (int number = first; number < first + shape_.ranks_per_node; ++number) {
      Rank& neighbour = at(number);
      if (const auto known = neighbour.neighbours.find(rank.rank);
          known != neighbour.neighbours.end() && is_alive(neighbour)) {
        neighbour.ended.push_back(known->second);
        plan_step(neighbour, random_.up_to(1ms));
      }
    }
    if (shape_.supervised) {
      after(random_.up_to(20ms) + 20ms, [this, number = rank.rank] { supervisor_reaps(number); });
    }
    if (!rank.has_left) {
      after(random_.up_to(5ms), [this] { break_collectives(); });
    }
  }

  /// The main threads of the others wait in a collective: some get an error, some wait for ever.
  void break_collectives() {
    if (std::exchange(collectives_broke_, true)) {
      return;
    }
    for (Rank& rank : ranks_) {
      if (is_alive(rank) && !rank.in_trouble && !random_.percent(schedule_.stuck_percent)) {
        rank.in_trouble = true;
        after(random_.up_to(300ms), [this, number = rank.rank] {
          main_thread_fails(number, {.code = kPeerLost, .text = "error: connection closed", .is_consequence = true});
        });
      }
    }
  }

  void main_thread_fails(int number, const Failure& failure) {
    Rank& rank = at(number);
    if (!is_alive(rank) || rank.has_left || rank.watch->main_thread_ends()) {
      return;
    }
    if (is_paused(rank)) {
      after(*rank.paused_until - now_ + 1us, [this, number, failure] { main_thread_fails(number, failure); });
      return;
    }
    rank.in_trouble = true;
    rank.watch->fail(failure, clock_of(rank));
    step(rank);
  }

  void end_of_work() {
    if (has_failed_) {
      return;
    }
    if (std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return is_paused(rank); })) {
      after(100ms, [this] { end_of_work(); });
      return;
    }
    is_ending_ = true;
    for (const Rank& rank : ranks_) {
      after(random_.up_to(100ms), [this, number = rank.rank] {
        at(number).has_left = true;
        at(number).watch->leave_peers();
      });
    }
    after(100ms, [this] { last_barrier(); });
  }

  void last_barrier() {
    if (std::any_of(ranks_.begin(), ranks_.end(), [](Rank& rank) { return rank.watch->peers() != nullptr; })) {
      after(10ms, [this] { last_barrier(); });
      return;
    }
    for (const Rank& rank : ranks_) {
      after(random_.up_to(100ms), [this, number = rank.rank] { end(at(number), 0, /*killed=*/false); });
    }
  }

  // ---- supervisors

  void supervisor_hears(int number, Failure failure) {
    Rank& rank = at(number);
    failure.rank = number;
    node_of(rank).accounted.insert(number);
    node_of(rank).verdict.add(failure, Time{now_});
    after(std::chrono::duration_cast<Duration>(deadlines::kWaitForCause), [this, node = rank.node] { settle(node); });
    settle(rank.node);
  }

  void supervisor_reaps(int number) {
    Rank& rank = at(number);
    Node& node = node_of(rank);
    ++node.gone;
    if (!node.accounted.contains(number) && rank.code != 0 && !node.decided_at) {
      node.verdict.add({.rank = number, .code = rank.code, .text = fmt::format("rank {} died", number)}, Time{now_});
    }
    node.accounted.insert(number);
    settle(rank.node);
  }

  void settle(int number) {
    Node& node = nodes_[static_cast<std::size_t>(number)];
    node.verdict.settle(Time{now_},
                        node.gone == shape_.ranks_per_node || defect_ == Defect::consequences_are_blamed_at_once);
    if (!node.verdict.cause() || node.decided_at) {
      return;
    }
    node.decided_at = now_;
    note(static_cast<std::uint64_t>(node.verdict.cause()->rank));
    const int first = number * shape_.ranks_per_node;
    for (int rank = first; rank < first + shape_.ranks_per_node; ++rank) {
      if (!node.accounted.contains(rank)) {
        after(random_.up_to(20ms), [this, rank, cause = *node.verdict.cause()] {
          at(rank).channel->order_to_end(cause);
          plan_step(at(rank), 0us);
        });
      }
      after(std::chrono::duration_cast<Duration>(kGrace), [this, rank] {
        if (is_alive(at(rank))) {
          at(rank).outlived_its_order = !is_paused(at(rank));
          end(at(rank), kKilled, /*killed=*/true);
        }
      });
    }
  }

  // ---- faults

  void strike(const Fault& fault) {
    Rank& rank = at(fault.rank);
    if (!is_alive(rank) || is_ending_) {
      return;
    }
    // Before that, the ranks look for each other, which has a time limit of its own.
    if (rank.watch->peers() != nullptr && !rank.watch->peers()->is_introduced()) {
      after(10ms, [this, fault] { strike(fault); });
      return;
    }
    last_strike_ = now_;
    has_failed_ = has_failed_ || (is_lethal(fault) && fault.kind != FaultKind::death_in_call);
    switch (fault.kind) {
      case FaultKind::exception:
        main_thread_fails(fault.rank, {.code = 65, .text = "error: bad sample", .where = "at step 5 in data"});
        break;
      case FaultKind::death:
        end(rank, kKilled, /*killed=*/true);
        break;
      case FaultKind::death_in_call:
        rank.calls_to_live = fault.call;
        break;
      case FaultKind::node_death: {
        const int first = rank.node * shape_.ranks_per_node;
        for (int number = first; number < first + shape_.ranks_per_node; ++number) {
          end(at(number), kKilled, /*killed=*/true);
        }
        break;
      }
      case FaultKind::cut:
        rank.cut = true;
        break;
      case FaultKind::mute:
        node_of(rank).muted = true;
        break;
      case FaultKind::launcher: {
        const int first = rank.node * shape_.ranks_per_node;
        for (int number = first; number < first + shape_.ranks_per_node; ++number) {
          at(number).launcher_gone = true;
        }
        break;
      }
      case FaultKind::stall:
        rank.in_trouble = true;
        find_stall(fault.rank);
        break;
      case FaultKind::pause:
        rank.paused_until = std::max(rank.paused_until.value_or(0us), now_ + fault.length);
        break;
      case FaultKind::jump:
        rank.jumped += fault.length;
        break;
    }
  }

  /// By the first rank of the node that is not suspended.
  void find_stall(int stalled) {
    const int first = stalled / shape_.ranks_per_node * shape_.ranks_per_node;
    for (int number = first; number < first + shape_.ranks_per_node; ++number) {
      Rank& rank = at(number);
      StoreLink* peers = rank.watch->peers();
      if (is_alive(rank) && !is_paused(rank) && peers != nullptr && peers->is_introduced()) {
        const std::string text = "made no progress for 300 s";
        rank.watch->stall_was_found(
            {.rank = stalled,
             .code = kStalled,
             .text = number == stalled ? text : fmt::format("rank {} (pid 7) failed: {}", stalled, text)},
            clock_of(rank));
        step(rank);
        return;
      }
    }
    after(100ms, [this, stalled] { find_stall(stalled); });
  }

  // ---- invariants

  static bool is_lethal(const Fault& fault) { return fault.kind != FaultKind::pause && fault.kind != FaultKind::jump; }

  Duration pauses() const {
    Duration all{};
    for (const Fault& fault : schedule_.faults) {
      all += fault.kind == FaultKind::pause ? fault.length : 0us;
    }
    return all;
  }

  /// Whether rank `blamed` failed by itself: a fault struck it, or its node.
  bool was_struck(int blamed) const {
    return std::any_of(schedule_.faults.begin(), schedule_.faults.end(), [&](const Fault& fault) {
      const bool of_node =
          fault.kind == FaultKind::node_death || fault.kind == FaultKind::launcher || fault.kind == FaultKind::mute;
      return is_lethal(fault) && (fault.rank == blamed ||
                                  (of_node && fault.rank / shape_.ranks_per_node == blamed / shape_.ranks_per_node));
    });
  }

  bool has_struck(FaultKind kind, int rank) const {
    return std::any_of(schedule_.faults.begin(), schedule_.faults.end(),
                       [&](const Fault& fault) { return fault.kind == kind && fault.rank == rank; });
  }

  /// Every fault is reported: its rank lives, or has a neighbour that does, and the store answers all the time.
  bool is_clean() const {
    const bool plain = std::all_of(schedule_.faults.begin(), schedule_.faults.end(), [&](const Fault& fault) {
      switch (fault.kind) {
        case FaultKind::exception:
        case FaultKind::stall:
          return true;
        case FaultKind::launcher:
          return !shape_.supervised;
        case FaultKind::death:
          // Its neighbours know it by then; nobody serves the store in its place.
          return fault.rank != 0 && shape_.ranks_per_node > 2 && fault.at > 500ms;
        default:
          return false;
      }
    });
    return plain && schedule_.late_percent == 0 && schedule_.latency <= 5ms && shape_.ranks_per_node <= 16;
  }

  Duration deadline() const {
    Duration limit = last_strike_ + pauses() + 6s;
    if (shape_.nodes > 1) {
      limit += 2 * std::chrono::duration_cast<Duration>(kSilence);
    }
    for (int node = 0; node < shape_.nodes && shape_.nodes > 1; ++node) {
      if (const auto beats = numbers_.find(fmt::format("beats/{}", node));
          beats == numbers_.end() || beats->second == 0) {
        limit = last_strike_ + std::chrono::duration_cast<Duration>(deadlines::kFirstHeartbeat) +
                12s;  // it ended before one
      }
    }
    if (shape_.supervised) {
      limit += std::chrono::duration_cast<Duration>(kGrace);
    }
    return limit;
  }

  std::string problems() const {
    std::string found;
    const auto expect = [&](bool holds, const std::string& what) {
      if (!holds && found.size() < 2000) {
        found += what + "; ";
      }
    };
    const bool any_fault = std::any_of(schedule_.faults.begin(), schedule_.faults.end(), is_lethal);
    const bool has_failed = any_fault && has_failed_;
    std::set<std::string> causes;
    for (const Rank& rank : ranks_) {
      const std::string name = fmt::format("rank {}", rank.rank);
      if (!rank.ended_at) {
        expect(false, name + " did not end");
        continue;
      }
      if (rank.code != 0) {
        expect(any_fault, name + fmt::format(" ended with {} without a cause", rank.code));
      }
      if (has_failed) {
        expect(*rank.ended_at <= deadline(),
               fmt::format("{} ended at {} us, later than {} us", name, rank.ended_at->count(), deadline().count()));
        const bool threw = rank.code == 65;
        expect(rank.code != 0, name + " ended well in a run that failed");
        const bool stalled = rank.code == kStalled;
        expect(rank.killed ? rank.code == kKilled : threw || stalled || rank.code == kPeerLost,
               fmt::format("{} ended with {}", name, rank.code));
        expect(!threw || has_struck(FaultKind::exception, rank.rank), name + " threw nothing");
        expect(!stalled || has_struck(FaultKind::stall, rank.rank), name + " did not hang");
      }
      expect(!rank.outlived_its_order, name + " was told to end, and had to be killed");
      if (rank.stopped_by) {
        causes.insert(rank.stopped_by->text);
        expect(is_first_cause(*rank.stopped_by), fmt::format("{} blames \"{}\"", name, rank.stopped_by->text));
      }
    }
    if (shape_.supervised && shape_.nodes == 1 && has_failed && pauses() == 0us) {
      const auto& cause = nodes_.front().verdict.cause();
      expect(cause && was_struck(cause->rank), fmt::format("the supervisor blames {}", cause ? cause->text : "nobody"));
    }
    if (is_clean()) {
      expect(causes.size() <= 1 || shape_.supervised || schedule_.twice_percent > 0,
             fmt::format("the ranks do not agree: {}", fmt::join(causes, ", ")));
      expect_causes_first(expect);
    }
    return found;
  }

  bool is_first_cause(const Failure& cause) const {
    constexpr std::string_view kLauncher = "the launcher of rank ";
    const bool by_launcher = cause.text.starts_with(kLauncher);
    const int rank = by_launcher ? std::atoi(cause.text.c_str() + kLauncher.size()) : cause.rank;
    if (rank >= 0 && was_struck(rank)) {
      return true;
    }
    return !is_clean();  // it may have been lost who was first, but not that somebody was
  }

  /// A launcher that is not ours sees the rank that failed before those that end because of it.
  template <class Expect>
  void expect_causes_first(const Expect& expect) const {
    if (shape_.supervised || schedule_.faults.size() != 1) {
      return;
    }
    const Fault& fault = schedule_.faults.front();
    const Rank& cause = ranks_[static_cast<std::size_t>(fault.rank)];
    if (fault.kind == FaultKind::stall) {
      expect(!cause.ended_at || cause.code == kStalled,
             fmt::format("rank {} hung and ended with {}", cause.rank, cause.code));
    } else if (fault.kind != FaultKind::exception) {
      return;
    }
    for (const Rank& rank : ranks_) {
      expect(&rank == &cause || !rank.ended_at || !cause.ended_at || *cause.ended_at <= *rank.ended_at,
             fmt::format("rank {} ended before the rank that failed", rank.rank));
    }
  }

  const Schedule& schedule_;
  const Shape shape_;
  const Defect defect_;
  Random random_;
  Duration now_{};
  std::int64_t number_ = 0;
  std::int64_t count_ = 0;
  std::uint64_t trace_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_{};
  std::deque<std::function<void()>> actions_{};
  std::vector<std::size_t> free_{};
  std::deque<Rank> ranks_{};
  std::vector<Node> nodes_{};
  std::unordered_map<std::string, std::string> texts_{};
  std::unordered_map<std::string, std::int64_t> numbers_{};
  bool collectives_broke_ = false;
  bool is_ending_ = false;  // the work is done
  Duration last_strike_{};
  bool has_failed_ = false;  // something struck that ends the run
};

constexpr const char* kFaultNames[] = {"exception", "death",    "death in call", "node death", "cut",
                                       "mute",      "launcher", "stall",         "pause",      "jump"};

Shape draw_shape(Random& random) {
  Shape shape;
  const auto size = random.between(1, 20'000);
  if (size == 1) {
    shape.nodes = 64;
    shape.ranks_per_node = 64;
  } else if (size <= 10) {
    shape.nodes = 64;
    shape.ranks_per_node = static_cast<int>(random.between(1, 8));
  } else if (size <= 100) {
    shape.nodes = static_cast<int>(random.between(1, 16));
    shape.ranks_per_node = static_cast<int>(random.between(1, 16));
  } else {
    shape.nodes = random.percent(50) ? 1 : static_cast<int>(random.between(2, 4));
    shape.ranks_per_node = static_cast<int>(random.between(1, 4));
  }
  if (shape.ranks() == 1) {
    shape.ranks_per_node = 2;
  }
  shape.supervised = random.percent(40);
  return shape;
}

Fault draw_fault(Random& random, const Shape& shape) {
  std::vector<FaultKind> kinds{FaultKind::exception, FaultKind::death, FaultKind::exception};
  if (shape.has_store()) {
    kinds.insert(kinds.end(), {FaultKind::death_in_call, FaultKind::death_in_call, FaultKind::cut});
  }
  if (shape.nodes > 1) {
    kinds.insert(kinds.end(), {FaultKind::node_death, FaultKind::mute});
  }
  if (!shape.supervised) {
    kinds.insert(kinds.end(), {FaultKind::launcher, FaultKind::stall});
  }
  return {.kind = kinds[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(kinds.size()) - 1))],
          .rank = static_cast<int>(random.between(0, shape.ranks() - 1)),
          .at = random.up_to(1500ms),
          .call = static_cast<int>(random.between(0, 8))};
}

}  // namespace

Schedule draw_schedule(std::uint64_t seed) {
  Random random(seed);
  Schedule schedule{.shape = draw_shape(random), .seed = seed};
  const Shape& shape = schedule.shape;
  const std::int64_t lethal = random.percent(15) ? 0 : random.between(1, 2);
  for (std::int64_t i = 0; i < lethal; ++i) {
    schedule.faults.push_back(draw_fault(random, shape));
    if (i > 0 && random.percent(50)) {
      schedule.faults.back().at = schedule.faults.front().at + random.up_to(20ms);
    }
    // After it has begun to report, perhaps.
    if (schedule.faults.back().kind == FaultKind::death_in_call && random.percent(50)) {
      schedule.faults.push_back({.kind = FaultKind::exception,
                                 .rank = schedule.faults.back().rank,
                                 .at = schedule.faults.back().at + random.up_to(1ms)});
    }
  }
  if (lethal == 0 || random.percent(30)) {
    const bool pause = random.percent(70);
    // Less than the silence of a node between two of its heartbeats.
    const Duration longest = shape.nodes > 1 ? Duration(1500ms) : Duration(20s);
    const Duration jump = random.up_to(10h) - 5h;
    schedule.faults.push_back({.kind = pause ? FaultKind::pause : FaultKind::jump,
                               .rank = static_cast<int>(random.between(0, shape.ranks() - 1)),
                               .at = random.up_to(2000ms),
                               .length = pause ? random.up_to(longest) : jump});
  }
  schedule.latency = random.percent(70) ? Duration(2ms) : random.up_to(50ms);
  schedule.late_percent = random.percent(25) ? 10 : 0;
  schedule.twice_percent = random.percent(25) ? 10 : 0;
  schedule.stuck_percent = static_cast<int>(random.between(0, 2)) * 50;
  return schedule;
}

std::string to_string(const Schedule& schedule) {
  const Shape& shape = schedule.shape;
  std::string text =
      fmt::format("{} nodes of {} ranks{}, latency {} us, {} % late, {} % twice, {} % stuck", shape.nodes,
                  shape.ranks_per_node, shape.supervised ? ", supervised" : "", schedule.latency.count(),
                  schedule.late_percent, schedule.twice_percent, schedule.stuck_percent);
  for (const Fault& fault : schedule.faults) {
    text += fmt::format("; {} of rank {} at {} us", kFaultNames[static_cast<std::size_t>(fault.kind)], fault.rank,
                        fault.at.count());
    if (fault.length != Duration(0)) {
      text += fmt::format(" for {} us", fault.length.count());
    }
    if (fault.kind == FaultKind::death_in_call) {
      text += fmt::format(" before call {}", fault.call);
    }
  }
  return text;
}

Outcome simulate(const Schedule& schedule, Defect defect) { return Run(schedule, defect).run(); }

}  // namespace lockstep::simulation
