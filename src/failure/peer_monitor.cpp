#include "failure/peer_monitor.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/signals_blocked.h"
#include "failure/end_process.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

bool has_ended(const Descriptor& process) {
  pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
  return process.is_open() && poll(&ended, 1, 0) == 1;
}

/// A warning is not worth that this thread waits for a reader of standard error. The thread has no LogScope either: the
/// program's function may wait for a lock, and the thread that hangs may hold it.
void say(const std::string& warning) {
  pollfd terminal{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (!warning.empty() && poll(&terminal, 1, 0) == 1) {
    log_warning(warning);
  }
}

}  // namespace

PeerMonitor::PeerMonitor(Options options)
    : options_(std::move(options)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      watch_(
          {.rank = options_.rank, .head_start = options_.head_start, .launcher_blames = options_.supervisor == nullptr},
          options_.supervisor.get()) {
  if (!wake_.is_open()) {
    throw LaunchError(fmt::format("cannot watch the other ranks: eventfd: {}", std::strerror(errno)));
  }
  if (options_.supervisor) {
    begin();
  }
}

PeerMonitor::~PeerMonitor() {
  leave_peers();
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake();
  if (watcher_.joinable()) {
    watcher_.join();
  }
}

void PeerMonitor::begin() {
  const AllSignalsBlocked blocked;
  watcher_ = std::thread([this] { watch(); });
}

void PeerMonitor::wake() noexcept { eventfd_write(wake_.get(), 1); }

void PeerMonitor::watch_peers(std::unique_ptr<Store> store, std::vector<LauncherProcess> launcher) {
  if (!store && launcher.empty()) {
    return;
  }
  // First the threads: if one cannot be created, fail() must not wait for what peers say.
  if (!watcher_.joinable()) {
    begin();
  }
  if (store) {
    asker_ = std::thread([this] { ask_the_store(); });
  }
  std::unique_lock lock(mutex_);
  launcher_ = std::move(launcher);
  if (store) {
    store_ = std::move(store);
    watch_.join_peers(options_.size, this_process(), options_.stalls ? options_.stalls->about() : std::string());
  }
  wake();
  changed_.wait(lock, [this] { return watch_.peers() == nullptr || watch_.peers()->is_introduced(); });
}

void PeerMonitor::watch_nodes(const NodeRing& ring) {
  const std::lock_guard lock(mutex_);
  if (StoreLink* peers = watch_.peers()) {
    peers->watch_nodes(ring);
  }
}

// A question may be out to a store that does not answer. If it is silent for too long, the watch ends the process.
void PeerMonitor::leave_peers() {
  std::unique_lock lock(mutex_);
  launcher_.clear();
  watch_.leave_peers();
  changed_.wait(lock, [this] { return watch_.peers() == nullptr || watch_.decision(); });
  wait_for_the_end(lock);
  store_is_left_ = true;
  changed_.notify_all();
  lock.unlock();
  if (asker_.joinable()) {
    asker_.join();
    store_.reset();
  }
}

/// If the watching thread is about to end the process, nothing else happens in it.
void PeerMonitor::wait_for_the_end(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [this] { return !watch_.decision() || watch_.main_thread_ends(); });
}

ExitDecision PeerMonitor::fail(const Failure& own) {
  std::unique_lock lock(mutex_);
  wait_for_the_end(lock);
  const auto now = clock_.read(std::chrono::steady_clock::now());
  watch_.fail(own, now);
  watch_.step(now);
  wake();
  changed_.wait(lock, [this] { return watch_.decision().has_value(); });
  return *watch_.decision();
}

void PeerMonitor::watch() {
  set_log_rank(options_.rank, options_.size);
  std::unique_lock lock(mutex_);
  while (!over_) {
    const auto now = clock_.read(std::chrono::steady_clock::now());
    look_at_processes(now);
    serve_store();
    const std::string found = look_for_stalls(now);
    watch_.step(now);
    serve_store();
    changed_.notify_all();
    if (watch_.decision() && !watch_.main_thread_ends()) {
      const ExitDecision decision = *watch_.decision();
      lock.unlock();
      end_process(decision.code, [&] {
        if (options_.say) {
          options_.say(decision);
        }
      });
    }
    lock.unlock();
    say(found);
    wait();
    lock.lock();
  }
}

/// The answer that came, and the next question.
void PeerMonitor::serve_store() {
  StoreLink* peers = watch_.peers();
  if (peers == nullptr) {
    return;
  }
  if (answer_) {
    peers->answer(*std::exchange(answer_, std::nullopt));
  }
  if (!call_) {
    call_ = peers->next_call();
  }
}

void PeerMonitor::look_at_processes(PeerWatch::Time now) {
  for (const LauncherProcess& process : launcher_) {
    if (has_ended(process.handle) && !options_.may_lose_launcher()) {
      watch_.launcher_is_gone(process.name, now);
    }
  }
  StoreLink* peers = watch_.peers();
  if (peers == nullptr) {
    processes_.clear();
    return;
  }
  for (StoreLink::Peer& peer : peers->take_found()) {
    if (options_.stalls) {
      options_.stalls->add(peer);
    }
    Descriptor handle = open_process(peer.process.pid);
    if (!handle.is_open() && errno == ESRCH) {
      peers->peer_ended(peer);
    } else {
      processes_.push_back({.peer = std::move(peer), .handle = std::move(handle)});
    }
  }
  for (PeerProcess& process : processes_) {
    if (has_ended(process.handle)) {
      process.handle.close();
      peers->peer_ended(process.peer);
    }
  }
}

std::string PeerMonitor::look_for_stalls(PeerWatch::Time now) {
  if (!options_.stalls || watch_.peers() == nullptr || watch_.is_over()) {
    return {};
  }
  StallFinder::Finding found = options_.stalls->look(now);
  if (found.failure) {
    watch_.stall_was_found(*found.failure, now);
  }
  return found.text;
}

void PeerMonitor::wait() {
  std::vector<pollfd> events{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const PeerProcess& process : processes_) {
    events.push_back({.fd = process.handle.get(), .events = POLLIN, .revents = 0});  // -1 is ignored
  }
  int longest = -1;
  {
    const std::lock_guard lock(mutex_);
    if (options_.supervisor && !options_.supervisor->cause()) {
      events.push_back({.fd = options_.supervisor->fd(), .events = POLLIN, .revents = 0});
    }
    const bool looks_for_stalls = options_.stalls && watch_.peers() != nullptr;
    if (const auto due = watch_.due(); due || looks_for_stalls || !launcher_.empty()) {
      // Not longer than a look: the clock leaves out what nobody read.
      const auto left = due.value_or(PeerWatch::Time::max()) - clock_.read(std::chrono::steady_clock::now());
      longest = static_cast<int>(
          std::clamp(std::chrono::ceil<milliseconds>(left), milliseconds(0), deadlines::kLook).count());
    }
  }
  poll(events.data(), events.size(), longest);
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
}

// Note [A thread for the store]: a question to the store may wait for ever, behind a cable that was pulled. The
// watching thread must not: it obeys the supervisor, sees processes end, and ends this one when the store is silent for
// too long.
void PeerMonitor::ask_the_store() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return call_ || store_is_left_; });
    if (store_is_left_) {
      return;
    }
    const StoreCall call = *call_;
    lock.unlock();
    const StoreAnswer answer = ask(*store_, call);
    lock.lock();
    call_.reset();
    answer_ = answer;
    wake();
  }
}

}  // namespace lockstep
