#include "world/guard.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/text.h"
#include "environment/process_name.h"
#include "failure/end_process.h"
#include "failure/linger.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{200};
constexpr milliseconds kHearingTime{1000};
constexpr milliseconds kNap{100};
constexpr const char* kFailures = "failures";  // how many have told of one; the first one's word counts
constexpr const char* kFailed = "failed";
constexpr const char* kHeard = "heard";
constexpr int kLooksPerBeat = 5;
constexpr const char* kStoreGone =
    "the rendezvous store is gone: rank 0, or what serves it, ended, or the connection to it was cut";

std::string process_key(int rank) { return fmt::format("process/{}", rank); }

std::string beats_key(int node) { return fmt::format("beats/{}", node); }

std::string in_seconds(milliseconds time) { return fmt::format("{:g} s", std::chrono::duration<double>(time).count()); }

std::string first_line(std::string_view text) {
  constexpr std::size_t kLongest = 500;
  constexpr std::string_view kLabel = "error: ";
  text.remove_prefix(text.starts_with(kLabel) ? kLabel.size() : 0);
  return printable(text.substr(0, std::min({text.find('\n'), text.size(), kLongest})));
}

}  // namespace

Guard::Guard(const World& world, Options options, std::vector<LauncherProcess> launcher)
    : rank_(world.rank()),
      size_(world.size()),
      options_(std::move(options)),
      store_(world.size() > 1 ? world.store("lockstep/guard") : nullptr),
      launcher_(std::move(launcher)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peers_(static_cast<std::size_t>(world.size())),
      code_(static_cast<int>(ExitCode::peer_lost)) {
  if (store_) {
    store_->set(process_key(rank_), encode(this_process()));
  }
  peers_[static_cast<std::size_t>(rank_)].name = to_string(this_process());
  watcher_ = std::thread([this] { watch(); });
}

void Guard::watch_nodes(const World& world) {
  if (world.nodes() == 1 || options_.heartbeat_timeout.count() == 0) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    nodes_ = {.count = world.nodes(), .mine = world.node(), .watches_next = world.local_rank() == 0};
    store_silent_ = milliseconds(0);
  }
  answers_watcher_ = std::thread([this] { watch_answers(); });
}

Guard::~Guard() {
  {
    const std::lock_guard lock(mutex_);
    handed_over_ = true;
  }
  changed_.notify_all();
  eventfd_write(stop_.get(), 1);
  watcher_.join();
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (answers_watcher_.joinable()) {
    answers_watcher_.join();
  }
}

void Guard::watch() {
  set_log_rank(rank_, size_);
  std::optional<std::string> failure;
  while (!failure) {
    std::vector<pollfd> events{{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    for (const Peer& peer : peers_) {
      events.push_back({.fd = peer.process.get(), .events = POLLIN, .revents = 0});  // -1 is ignored
    }
    poll(events.data(), events.size(), static_cast<int>(kInterval.count()));
    if (events.front().revents != 0) {
      return;
    }
    try {
      failure = look();
    } catch (const CommError& error) {
      if (error.exit_code() != ExitCode::timeout) {
        failure = kStoreGone;
      }  // else it is late, which is another matter: the next look asks again
    } catch (const std::exception&) {
      failure = kStoreGone;
    }
    const std::lock_guard lock(mutex_);
    store_silent_ = milliseconds(0);
  }
  try {
    if (store_) {
      store_->add(kHeard, 1);
    }
  } catch (const std::exception&) {
    // It has served its purpose.
  }
  end(*failure);
}

void Guard::watch_answers() {
  set_log_rank(rank_, size_);
  std::unique_lock lock(mutex_);
  while (store_silent_ < options_.heartbeat_timeout) {
    if (changed_.wait_for(lock, kInterval, [this] { return over_ || failure_; })) {
      return;  // of a failure the other thread makes the end
    }
    store_silent_ += kInterval;
  }
  lock.unlock();
  end(
      fmt::format("the rendezvous store has not answered for {} (--dist.heartbeat_timeout_s): its machine, or the "
                  "network to it, is gone",
                  in_seconds(options_.heartbeat_timeout)));
  // The main thread wanted to end the process by itself, but may wait for the store, too.
  lock.lock();
  if (!changed_.wait_for(lock, kHearingTime, [this] { return over_; })) {
    end_process(code_);
  }
}

std::optional<std::string> Guard::look() {
  if (auto ended = look_for_launcher()) {
    return ended;
  }
  if (!store_) {
    return std::nullopt;
  }
  meet_peers();
  const Nodes nodes = [this] {
    const std::lock_guard lock(mutex_);
    return nodes_;
  }();
  if (nodes.count > 1) {
    beat(nodes);
  }
  if (store_->check(kFailed)) {
    return printable(store_->get(kFailed, kHearingTime));
  }
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    pollfd ended{.fd = peers_[rank].process.get(), .events = POLLIN, .revents = 0};
    if (ended.fd >= 0 && poll(&ended, 1, 0) == 1) {
      tell(fmt::format("rank {} ({}) ended before the others", rank, peers_[rank].name));
      return printable(store_->get(kFailed, kHearingTime));
    }
  }
  return std::nullopt;
}

// Twice in a row: what ends the launcher, a signal to a whole job for example, may be about to reach this rank as well.
std::optional<std::string> Guard::look_for_launcher() {
  for (const LauncherProcess& process : launcher_) {
    pollfd ended{.fd = process.handle.get(), .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, 0) != 1 || options_.may_lose_launcher()) {
      continue;
    }
    if (!std::exchange(launcher_ended_, true)) {
      return std::nullopt;
    }
    const std::string failure = fmt::format("the launcher of rank {} ended: {}", rank_, process.name);
    try {
      tell(failure);
    } catch (const std::exception&) {
      // The store went with the launcher: the others see that, too.
    }
    return failure;
  }
  return std::nullopt;
}

void Guard::meet_peers() {
  const std::string machine = this_process().machine;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    const std::string key = process_key(static_cast<int>(rank));
    if (!peer.name.empty() || !store_->check(key)) {
      continue;
    }
    const auto process = parse_process_name(store_->get(key, kHearingTime));
    peer.name = process ? to_string(*process) : "unknown process";
    if (process && process->machine == machine) {
      peer.process = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process->pid, 0)));
      if (!peer.process.is_open() && errno == ESRCH) {
        tell(fmt::format("rank {} ({}) ended before the others", rank, peer.name));
      }
    }
  }
}

void Guard::beat(const Nodes& nodes) {
  if (looks_++ % kLooksPerBeat == 0) {
    store_->add(beats_key(nodes.mine), 1);
  }
  if (!nodes.watches_next) {
    return;
  }
  const int next = (nodes.mine + 1) % nodes.count;
  const auto beats = store_->add(beats_key(next), 0);
  next_node_silent_ = beats == next_node_beats_ && beats > 0 ? next_node_silent_ + kInterval : milliseconds(0);
  next_node_beats_ = beats;
  if (next_node_silent_ >= options_.heartbeat_timeout) {
    tell(fmt::format(
        "node {} has not been heard of for {} (--dist.heartbeat_timeout_s): the machine, or the network to it, is gone",
        next, in_seconds(options_.heartbeat_timeout)));
  }
}

// The first one's word counts, unless it ended before it could say it.
void Guard::tell(const std::string& failure) {
  if (!store_) {
    return;
  }
  bool said = false;
  if (store_->add(kFailures, 1) > 1) {
    for (milliseconds waited{0}; !(said = store_->check(kFailed)) && waited < kHearingTime; waited += kNap) {
      std::this_thread::sleep_for(kNap);  // a wait in the store that times out makes c10d write warnings
    }
  }
  if (!said) {
    store_->set(kFailed, failure);
  }
}

void Guard::end(const std::string& failure) {
  std::unique_lock lock(mutex_);
  failure_ = failure;
  changed_.notify_all();
  if (changed_.wait_for(lock, options_.head_start, [this] { return handed_over_; })) {
    return;
  }
  end_process(code_, [&] { options_.say(failure); });
}

void Guard::report(std::string_view error, int code) noexcept {
  {
    const std::lock_guard lock(mutex_);
    handed_over_ = true;
    code_ = code;
  }
  changed_.notify_all();
  try {
    tell(
        fmt::format("rank {} ({}) failed: {}", rank_, peers_[static_cast<std::size_t>(rank_)].name, first_line(error)));
  } catch (const std::exception&) {
    return;  // the store is gone, which the others see as well
  }
  let_others_hear();
}

std::optional<std::string> Guard::first_failure(milliseconds patience) noexcept {
  std::optional<std::string> failure;
  {
    std::unique_lock lock(mutex_);
    handed_over_ = true;
    changed_.notify_all();
    for (milliseconds waited{0}; !failure_ && waited < patience; waited += kNap) {
      changed_.wait_for(lock, kNap, [this] { return failure_.has_value(); });
    }
    failure = failure_;
  }
  if (failure) {
    let_others_hear();
  }
  return failure;
}

void Guard::let_others_hear() noexcept {
  if (rank_ == 0 && store_) {
    linger(deadlines::kLinger, [this] { return store_->add(kHeard, 0) >= size_; });
  }
}

}  // namespace lockstep
