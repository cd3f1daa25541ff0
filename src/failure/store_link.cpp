#include "failure/store_link.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "failure/deadlines.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr const char* kFailures = "failures";
constexpr const char* kFailed = "failed";
constexpr int kLooksPerBeat = 5;  // and per look at the processes of this machine
constexpr int kFirstLooks = 25;   // in which the other processes of a machine come
constexpr const char* kStoreGone =
    "the rendezvous store is gone: rank 0, or what serves it, ended, or the connection to it was cut";

std::string heard_key(int rank) { return fmt::format("heard/{}", rank); }
std::string beats_key(int node) { return fmt::format("beats/{}", node); }

/// One line of a report.
std::string report_line(std::string_view text) {
  constexpr std::size_t kLongest = 500;
  return printable(first_line(without_label(text)).substr(0, kLongest));
}

StoreCall set(std::string key, std::string value) {
  return {.kind = StoreCall::Kind::set, .key = std::move(key), .value = std::move(value)};
}
StoreCall add(std::string key, std::int64_t delta) {
  return {.kind = StoreCall::Kind::add, .key = std::move(key), .delta = delta};
}
StoreCall check(std::string key) { return {.kind = StoreCall::Kind::check, .key = std::move(key)}; }
StoreCall get(std::string key) { return {.kind = StoreCall::Kind::get, .key = std::move(key)}; }

std::string encode_report(const Failure& failure) {
  return fmt::format("{} {} {}", failure.rank, failure.code, failure.text);
}

Failure parse_report(std::string_view report) {
  const auto take_number = [&](std::int64_t otherwise) {
    const auto space = std::min(report.find(' '), report.size());
    const auto number = parse_int(report.substr(0, space)).value_or(otherwise);
    report.remove_prefix(std::min(space + 1, report.size()));
    return static_cast<int>(number);
  };
  Failure failure;
  failure.rank = take_number(-1);
  failure.code = take_number(1);
  failure.text = printable(report);
  return failure;
}

}  // namespace

StoreAnswer ask(Store& store, const StoreCall& call) noexcept {
  try {
    switch (call.kind) {
      case StoreCall::Kind::set:
        store.set(call.key, call.value);
        return {};
      case StoreCall::Kind::add:
        return {.number = store.add(call.key, call.delta)};
      case StoreCall::Kind::check:
        return {.number = store.check(call.key) ? 1 : 0};
      case StoreCall::Kind::get:
        return {.text = store.get(call.key, deadlines::kFirstReport)};
    }
  } catch (const CommError& error) {
    return {.kind = error.exit_code() == ExitCode::timeout ? StoreAnswer::Kind::late : StoreAnswer::Kind::gone};
  } catch (const std::exception&) {
  }
  return {.kind = StoreAnswer::Kind::gone};
}

StoreLink::StoreLink(int rank, int size, ProcessName self, std::string about)
    : rank_(rank),
      size_(size),
      self_(std::move(self)),
      about_(std::move(about)),
      here_("here/" + self_.machine),
      lingered_(rank != 0) {
  introduce();
}

void StoreLink::put(StoreCall call, Then then) {
  questions_.push_back({.call = std::move(call), .then = std::move(then)});
}

void StoreLink::drop_questions() { questions_.resize(waiting_ ? 1 : 0); }

std::optional<StoreCall> StoreLink::next_call() {
  if (waiting_ || closed_ || lost_ || questions_.empty() || now_ < ask_again_at_) {
    return std::nullopt;
  }
  waiting_ = true;
  asked_at_ = now_;
  return questions_.front().call;
}

void StoreLink::answer(const StoreAnswer& answer) {
  waiting_ = false;
  if (closed_ || lost_) {
    return;
  }
  if (answer.kind == StoreAnswer::Kind::gone) {
    lose(kStoreGone);
    return;
  }
  if (answer.kind == StoreAnswer::Kind::late) {
    ask_again_at_ = now_ + deadlines::kAskAgain;
    return;
  }
  const Then then = std::move(questions_.front().then);
  questions_.pop_front();
  then(answer);
}

void StoreLink::introduce() {
  put(add(here_, 1), [this](const StoreAnswer& answer) {
    put(set(fmt::format("{}/{}", here_, answer.number), fmt::format("{}\n{}\n{}", rank_, encode(self_), about_)),
        [this](const StoreAnswer&) { is_introduced_ = true; });
  });
}

void StoreLink::step(Time now) {
  now_ = now;
  if (lost_) {
    return;
  }
  if (waiting_ && is_limited() && now - asked_at_ >= ring_.silence) {
    lose(
        fmt::format("the rendezvous store has not answered for {} (--dist.heartbeat_timeout_s): its machine, or the "
                    "network to it, is gone",
                    in_seconds(ring_.silence)));
    return;
  }
  if (proposal_ && !cause_ && now - proposed_at_ >= patience()) {
    lose(proposal_->text);  // what serves the store may be stopped
    return;
  }
  lingered_ = lingered_ || (cause_ && now >= cause_at_ + deadlines::kLinger);
  if (!questions_.empty() || closed_) {
    return;
  }
  if (cause_) {
    if (!lingered_ && now >= linger_at_) {
      linger_at_ = now + deadlines::kLingerPause;
      linger();
    }
  } else if (report_by_) {
    if (now >= look_for_report_at_) {
      look_for_report_at_ = now + deadlines::kAskAgain;
      wait_for_report();
    }
  } else if (now >= look_at_) {
    look_at_ = now + deadlines::kLook;
    look();
  }
}

bool StoreLink::is_limited() const noexcept { return ring_.count > 1 && ring_.silence.count() > 0; }

StoreLink::Time StoreLink::due() const {
  if (lost_) {
    return Time::max();
  }
  const Time linger_until = cause_ && !lingered_ ? cause_at_ + deadlines::kLinger : Time::max();
  if (waiting_) {
    return std::min({linger_until, is_limited() ? asked_at_ + ring_.silence : Time::max(),
                     proposal_ && !cause_ ? proposed_at_ + patience() : Time::max()});
  }
  if (closed_) {
    return Time::max();
  }
  if (!questions_.empty()) {
    return std::max(now_, ask_again_at_);
  }
  return cause_       ? std::min(linger_until, lingered_ ? Time::max() : linger_at_)
         : report_by_ ? look_for_report_at_
                      : look_at_;
}

void StoreLink::watch_nodes(NodeRing ring) { ring_ = ring; }

milliseconds StoreLink::patience() const noexcept {
  return ring_.count > 1 ? std::max(deadlines::kAnnounce, ring_.silence) : deadlines::kAnnounce;
}

void StoreLink::close() {
  closed_ = true;
  drop_questions();
}

void StoreLink::look() {
  const bool in_full = looks_ % kLooksPerBeat == 0;
  if (in_full || looks_ < kFirstLooks) {
    put(add(here_, 0), [this](const StoreAnswer& answer) { find_peers(answer.number); });
  }
  if (ring_.count > 1) {
    if (looks_in_ring_++ % kLooksPerBeat == 0) {  // the first one at once
      put(add(beats_key(ring_.mine), 1), [](const StoreAnswer&) {});
    }
    beat();
  }
  ++looks_;
  put(check(kFailed), [this](const StoreAnswer& answer) {
    if (answer.number > 0) {
      read_report();
    }
  });
}

// A process may have ended between its number and its name: its number stays without one.
void StoreLink::find_peers(std::int64_t count) {
  while (known_here_ < count) {
    unnamed_.insert(++known_here_);
  }
  for (const std::int64_t number : unnamed_) {
    put(check(fmt::format("{}/{}", here_, number)), [this, number](const StoreAnswer& there) {
      if (there.number == 0) {
        return;
      }
      put(get(fmt::format("{}/{}", here_, number)), [this, number](const StoreAnswer& answer) {
        unnamed_.erase(number);
        std::vector<std::string> lines = split(answer.text, '\n');
        lines.resize(3);
        const auto rank = parse_int(lines[0]);
        const auto process = parse_process_name(lines[1]);
        if (rank && process && *rank != rank_) {
          found_.push_back({.rank = static_cast<int>(*rank), .process = *process, .about = std::move(lines[2])});
        }
      });
    });
  }
}

// One look adds two intervals at most: in an outage of the store no heartbeat of any node arrives.
void StoreLink::beat() {
  if (!ring_.watches_next || ring_.silence.count() == 0) {
    return;
  }
  const int next = (ring_.mine + 1) % ring_.count;
  put(add(beats_key(next), 0), [this, next](const StoreAnswer& answer) {
    const std::int64_t beats = answer.number;
    const auto since_last_look = std::chrono::duration_cast<milliseconds>(now_ - looked_for_beats_at_);
    next_node_silence_ = beats == next_node_beats_
                             ? next_node_silence_ + std::min(since_last_look, 2 * deadlines::kLook)
                             : milliseconds(0);
    next_node_beats_ = beats;
    looked_for_beats_at_ = now_;
    if (next_node_silence_ >= ring_.silence + (beats == 0 ? deadlines::kFirstHeartbeat : milliseconds(0))) {
      announce(
          {.code = static_cast<int>(ExitCode::peer_lost),
           .text = fmt::format("node {} has not been heard of for {} (--dist.heartbeat_timeout_s): the machine, or "
                               "the network to it, is gone",
                               next, in_seconds(ring_.silence))});
    }
  });
}

std::vector<StoreLink::Peer> StoreLink::take_found() { return std::exchange(found_, {}); }

void StoreLink::peer_ended(const Peer& peer) {
  announce({.rank = peer.rank,
            .code = static_cast<int>(ExitCode::peer_lost),
            .text = fmt::format("rank {} ({}) ended before the others", peer.rank, to_string(peer.process))});
}

void StoreLink::announce(const Failure& failure) {
  if (proposal_ || cause_ || closed_) {
    return;
  }
  proposal_ = failure;
  proposed_at_ = now_;
  proposal_->text = failure.rank == rank_ ? fmt::format("rank {} ({}) failed: {}", rank_, to_string(self_),
                                                        report_line(with_place(failure)))
                                          : report_line(failure.text);
  drop_questions();
  put(add(kFailures, 1), [this](const StoreAnswer& answer) {
    if (answer.number <= 1) {
      report();
    } else {
      report_by_ = now_ + deadlines::kFirstReport;
    }
  });
}

void StoreLink::report() {
  put(set(kFailed, encode_report(*proposal_)), [this](const StoreAnswer&) { know(*proposal_); });
}

// The first report counts, unless its rank ended before it could write it.
void StoreLink::wait_for_report() {
  put(check(kFailed), [this](const StoreAnswer& answer) {
    if (answer.number > 0) {
      read_report();
    } else if (now_ >= *report_by_) {
      report();
    }
  });
}

void StoreLink::read_report() {
  put(get(kFailed), [this](const StoreAnswer& answer) { know(parse_report(answer.text)); });
}

void StoreLink::know(Failure cause) {
  if (cause_) {
    return;
  }
  cause_ = std::move(cause);
  cause_at_ = now_;
  drop_questions();
  put(set(heard_key(rank_), "1"), [this](const StoreAnswer&) { acknowledged_ = true; });
}

// One rank after the other: whoever has not heard yet is waited for in any case.
void StoreLink::linger() {
  put(check(heard_key(next_to_hear_)), [this](const StoreAnswer& answer) {
    if (answer.number > 0 && ++next_to_hear_ < size_) {
      linger();
    }
    lingered_ = lingered_ || next_to_hear_ == size_;
  });
}

void StoreLink::lose(std::string text) {
  lost_ = true;
  questions_.clear();
  if (!cause_) {
    cause_ = proposal_ ? *proposal_ : Failure{.code = static_cast<int>(ExitCode::peer_lost), .text = std::move(text)};
    cause_at_ = now_;
  }
}

}  // namespace lockstep
