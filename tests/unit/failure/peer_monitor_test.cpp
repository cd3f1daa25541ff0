// Monitors of several ranks in one process, over a store in memory. tests/unit/world/peer_monitor_test.cpp has the real
// store, tests/simulation every order of events.
#include "failure/peer_monitor.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "support/captured_stderr.h"

namespace lockstep {
namespace {

struct Shared {
  std::mutex mutex{};
  std::condition_variable changed{};
  std::map<std::string, std::string, std::less<>> values{};
  bool is_gone = false;
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void set(std::string_view key, std::string_view value) override {
    const auto lock = open();
    shared_->values[std::string(key)] = value;
    shared_->changed.notify_all();
  }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    auto lock = open();
    if (!shared_->changed.wait_for(lock, timeout, [&] { return shared_->values.contains(key); })) {
      throw CommError("no value", {}, ExitCode::timeout);
    }
    return shared_->values.find(key)->second;
  }
  bool check(std::string_view key) override {
    const auto lock = open();
    return shared_->values.contains(key);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    const auto lock = open();
    std::string& value = shared_->values[std::string(key)];
    value = std::to_string((value.empty() ? 0 : std::stoll(value)) + delta);
    return std::stoll(value);
  }

 private:
  std::unique_lock<std::mutex> open() const {
    std::unique_lock lock(shared_->mutex);
    if (shared_->is_gone) {
      throw CommError("the store is gone");
    }
    return lock;
  }
  std::shared_ptr<Shared> shared_;
};

constexpr std::chrono::seconds kPatience{20};

std::unique_ptr<PeerMonitor> monitor_of(int rank, const std::shared_ptr<Shared>& shared) {
  auto monitor = std::make_unique<PeerMonitor>(
      PeerMonitor::Options{.rank = rank, .size = 2, .head_start = std::chrono::minutes(2)});  // ends no process
  monitor->watch_peers(std::make_unique<MemoryStore>(shared), {});
  return monitor;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which map terabytes for themselves
/// Exits with 1 if the rank can end with its own failure where no further thread can be made. `room`: in bytes.
[[noreturn]] void end_without_threads(rlim_t room) {
  alarm(30);               // ends it if it waits
  pthread_attr_t threads;  // larger than the stacks that threads before have left
  pthread_attr_init(&threads);
  pthread_attr_setstacksize(&threads, std::size_t{10} << 20U);
  pthread_setattr_default_np(&threads);
  PeerMonitor monitor({.rank = 1, .size = 2, .head_start = std::chrono::minutes(2)});
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + room;
  setrlimit(RLIMIT_AS, &limit);
  try {
    monitor.watch_peers(std::make_unique<MemoryStore>(std::make_shared<Shared>()), {});
    std::_Exit(100);
  } catch (const std::system_error& error) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_AS, &limit);
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    std::_Exit(sigismember(&mask, SIGTERM) == 1 ? 101 : monitor.fail({.code = 1, .text = error.what()}).code);
  }
}

TEST(MonitorsInOneProcess, EndWhereNoThreadCanBeMade) {
  for (const rlim_t mebibytes : {rlim_t{2}, rlim_t{14}}) {  // no thread, one thread
    EXPECT_EXIT(end_without_threads(mebibytes << 20U), testing::ExitedWithCode(1), "") << mebibytes;
  }
}
#endif

TEST(MonitorsInOneProcess, AgreeOnACause) {
  const auto shared = std::make_shared<Shared>();
  const auto first = monitor_of(0, shared);
  const auto second = monitor_of(1, shared);
  const ExitDecision decision =
      second->fail({.code = 65, .text = "error: bad sample\n  hint: x", .where = "at step 5"});
  EXPECT_EQ(decision.code, 65);
  EXPECT_FALSE(decision.is_stopped);
  EXPECT_TRUE(decision.is_cause);
  MemoryStore store(shared);
  EXPECT_THAT(store.get("failed", kPatience),
              testing::AllOf(testing::StartsWith("1 65 "), testing::EndsWith(" failed: at step 5: bad sample")));
  EXPECT_EQ(store.get("heard/0", kPatience), "1");
  EXPECT_EQ(store.get("heard/1", kPatience), "1");
}

TEST(MonitorsInOneProcess, AgreeOnOneCauseIfAllFail) {
  const auto shared = std::make_shared<Shared>();
  const auto first = monitor_of(0, shared);
  const auto second = monitor_of(1, shared);
  auto other = std::async(std::launch::async, [&] { return first->fail({.code = 66, .text = "error: no file"}); });
  const ExitDecision of_second = second->fail({.code = 65, .text = "error: bad sample"});
  const ExitDecision of_first = other.get();
  EXPECT_EQ(of_first.code, 66);
  EXPECT_EQ(of_second.code, 65);
  EXPECT_FALSE(of_first.is_stopped || of_second.is_stopped) << "each has words of its own";
  EXPECT_NE(of_first.is_cause, of_second.is_cause);
  EXPECT_THAT(MemoryStore(shared).get("failed", kPatience), testing::StartsWith(of_first.is_cause ? "0 66 " : "1 65 "));
}

[[noreturn]] void lose_the_store() {
  alarm(30);  // ends it if nothing else does
  const auto shared = std::make_shared<Shared>();
  PeerMonitor monitor(
      {.rank = 1, .size = 2, .head_start = std::chrono::milliseconds(0), .say = [](const ExitDecision& end) {
         std::fputs(end.failure.text.c_str(), stderr);
       }});
  monitor.watch_peers(std::make_unique<MemoryStore>(shared), {});
  {
    const std::lock_guard lock(shared->mutex);
    shared->is_gone = true;
  }
  while (true) {
    pause();
  }
}

TEST(MonitorsInOneProcess, EndItWhenTheStoreIsGone) {
  EXPECT_EXIT(lose_the_store(), testing::ExitedWithCode(static_cast<int>(ExitCode::peer_lost)),
              "the rendezvous store is gone");
}

/// Finds something once, and tells when that is logged.
class OneFinding final : public StallFinder {
 public:
  explicit OneFinding(std::promise<void>& is_logged) : is_logged_(is_logged) {}
  std::string about() const override { return "a rank of a test"; }
  void add(const StoreLink::Peer&) override {}
  Finding look(Time) override {
    if (++looks_ == 2) {
      is_logged_.set_value();
    }
    return {.text = looks_ == 1 ? "rank 1 is behind" : ""};
  }

 private:
  std::promise<void>& is_logged_;
  int looks_ = 0;
};

// The program's function may wait for a lock, and the thread that hangs may hold it.
TEST(MonitorsInOneProcess, WarnOnStandardErrorAlone) {
  std::atomic<int> given = 0;
  std::promise<void> is_logged;
  CapturedStderr captured;
  {
    const LogScope scope([&](LogLevel, std::string_view) { ++given; });
    PeerMonitor monitor({.rank = 0,
                         .size = 2,
                         .head_start = std::chrono::minutes(2),
                         .stalls = std::make_unique<OneFinding>(is_logged)});
    monitor.watch_peers(std::make_unique<MemoryStore>(std::make_shared<Shared>()), {});
    EXPECT_EQ(is_logged.get_future().wait_for(kPatience), std::future_status::ready);
  }
  EXPECT_EQ(captured.text(), "[rank0]: warning: rank 1 is behind\n");
  EXPECT_EQ(given, 0);
}

TEST(MonitorsInOneProcess, LeaveWhileAQuestionIsOut) {
  const auto shared = std::make_shared<Shared>();
  for (int i = 0; i < 50; ++i) {
    const auto monitor = monitor_of(0, shared);
    monitor->leave_peers();
  }
  EXPECT_FALSE(shared->values.contains("failed"));
}

}  // namespace
}  // namespace lockstep
