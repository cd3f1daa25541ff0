#include "failure/peer_watch.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

constexpr int kPeerLost = static_cast<int>(ExitCode::peer_lost);

}  // namespace

void PeerWatch::leave_peers() {
  is_leaving_ = true;
  if (peers_) {
    peers_->close();
  }
  drop_peers();
}

void PeerWatch::drop_peers() {
  if (!is_leaving_ || (peers_ && peers_->is_waiting())) {
    return;
  }
  is_leaving_ = false;
  peers_.reset();
  if (!own_) {
    verdict_ = {};
    known_at_.reset();
  }
}

void PeerWatch::fail(const Failure& own, Time now) {
  own_ = own;
  own_->rank = options_.rank;
  verdict_.add(*own_, now);
  if (supervisor_ != nullptr && !own_->is_consequence) {
    supervisor_->announce(*own_);  // it listens always, the store may not
  }
}

void PeerWatch::launcher_is_gone(const std::string& name, Time now) {
  launcher_gone_at_ = launcher_gone_at_.value_or(now);
  if (now >= *launcher_gone_at_ + deadlines::kLook) {
    verdict_.add({.code = kPeerLost, .text = fmt::format("the launcher of rank {} ended: {}", options_.rank, name)},
                 now);
  }
}

void PeerWatch::step(Time now) {
  now_ = now;
  drop_peers();
  for (FailureLink* link : {supervisor_, static_cast<FailureLink*>(peers_ ? &*peers_ : nullptr)}) {
    if (link != nullptr) {
      link->step(now);
      if (link->cause()) {
        verdict_.add(*link->cause(), now);
      }
    }
  }
  verdict_.settle(now, /*nothing_follows=*/!peers_);  // a supervisor finds the cause by itself
  if (!verdict_.cause() || decision_) {
    return;
  }
  if (peers_) {
    peers_->announce(*verdict_.cause());
  }
  known_at_ = known_at_.value_or(now);
  if (may_end()) {
    decision_ = make_decision();
    if (supervisor_ != nullptr) {
      supervisor_->announce(decision_->is_stopped ? Failure{.rank = options_.rank,
                                                            .code = kPeerLost,
                                                            .text = "stopped: " + decision_->failure.text,
                                                            .is_consequence = true}
                                                  : decision_->failure);
    }
  }
}

bool PeerWatch::is_ordered() const { return supervisor_ != nullptr && supervisor_->ends_at_once(); }

std::chrono::milliseconds PeerWatch::patience() const {
  return is_ordered() ? deadlines::kAnnounceOrder : peers_ ? peers_->patience() : std::chrono::milliseconds(0);
}

bool PeerWatch::may_end() const {
  const auto known_for = now_ - *known_at_;
  const bool is_told = !peers_ || peers_->is_done() || known_for >= patience();
  if (is_ordered()) {
    return is_told;
  }
  const bool had_head_start = known_for >= options_.head_start;
  if (!own_) {
    return had_head_start || (is_told && make_decision().hangs);
  }
  return is_told && (had_head_start || !options_.launcher_blames || !make_decision().is_stopped);
}

std::optional<PeerWatch::Time> PeerWatch::due() const {
  Time next = std::min(peers_ ? peers_->due() : Time::max(), verdict_.due().value_or(Time::max()));
  if (known_at_ && !decision_) {
    for (const Time::duration limit : {Time::duration(options_.head_start), Time::duration(patience())}) {
      next = *known_at_ + limit > now_ ? std::min(next, *known_at_ + limit) : next;
    }
  }
  return next == Time::max() ? std::nullopt : std::optional(next);
}

ExitDecision PeerWatch::make_decision() const {
  const Failure cause = peers_ && peers_->cause() ? *peers_->cause() : *verdict_.cause();
  const bool is_mine = cause.rank == options_.rank;
  if (!own_) {
    return {.code = is_mine ? cause.code : kPeerLost, .failure = cause, .is_stopped = !is_mine, .hangs = is_mine};
  }
  // A consequence of which no cause was heard is the cause.
  const bool reports_own_failure = !own_->is_consequence || (verdict_.cause()->is_consequence && is_mine);
  return {.code = own_->code,
          .failure = reports_own_failure ? *own_ : cause,
          .is_stopped = !reports_own_failure,
          .is_cause = is_mine};
}

}  // namespace lockstep
