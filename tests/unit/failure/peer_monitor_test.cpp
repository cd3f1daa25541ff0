// Monitors of several ranks in one process, over a store in memory. tests/unit/world/peer_monitor_test.cpp has the real
// store, tests/simulation every order of events.
#include "failure/peer_monitor.h"

#include <future>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

struct Shared {
  std::mutex mutex{};
  std::map<std::string, std::string, std::less<>> values{};
  bool is_gone = false;
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void set(std::string_view key, std::string_view value) override {
    const auto lock = open();
    shared_->values[std::string(key)] = value;
  }
  std::string get(std::string_view key, std::chrono::milliseconds /*timeout*/) override {
    const auto lock = open();
    const auto found = shared_->values.find(key);
    return found == shared_->values.end() ? throw CommError("no value", {}, ExitCode::timeout) : found->second;
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

TEST(MonitorsInOneProcess, AgreeOnACause) {
  const auto shared = std::make_shared<Shared>();
  const auto first = monitor_of(0, shared);
  const auto second = monitor_of(1, shared);
  const Parting parting = second->fail({.code = 65, .text = "error: bad sample\n  hint: x", .where = "at step 5"});
  EXPECT_EQ(parting.code, 65);
  EXPECT_FALSE(parting.is_stopped);
  EXPECT_TRUE(parting.is_cause);
  for (const auto& monitor : {first.get(), second.get()}) {
    const auto cause = monitor->first_cause(kPatience);
    ASSERT_TRUE(cause);
    EXPECT_EQ(cause->rank, 1);
    EXPECT_EQ(cause->code, 65);
    EXPECT_THAT(cause->text, testing::EndsWith(" failed: at step 5: bad sample"));
  }
}

TEST(MonitorsInOneProcess, AgreeOnOneCauseIfAllFail) {
  const auto shared = std::make_shared<Shared>();
  const auto first = monitor_of(0, shared);
  const auto second = monitor_of(1, shared);
  auto other = std::async(std::launch::async, [&] { return first->fail({.code = 66, .text = "error: no file"}); });
  const Parting of_second = second->fail({.code = 65, .text = "error: bad sample"});
  const Parting of_first = other.get();
  EXPECT_EQ(of_first.code, 66);
  EXPECT_EQ(of_second.code, 65);
  EXPECT_FALSE(of_first.is_stopped || of_second.is_stopped) << "each has words of its own";
  EXPECT_NE(of_first.is_cause, of_second.is_cause);
  const auto cause = second->first_cause(kPatience);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, of_first.is_cause ? 0 : 1);
}

TEST(MonitorsInOneProcess, KnowThatTheStoreIsGone) {
  const auto shared = std::make_shared<Shared>();
  const auto monitor = monitor_of(1, shared);
  {
    const std::lock_guard lock(shared->mutex);
    shared->is_gone = true;
  }
  const auto cause = monitor->first_cause(kPatience);
  ASSERT_TRUE(cause);
  EXPECT_THAT(cause->text, testing::StartsWith("the rendezvous store is gone"));
}

TEST(MonitorsInOneProcess, LeaveWhileAQuestionIsOut) {
  const auto shared = std::make_shared<Shared>();
  for (int i = 0; i < 50; ++i) {
    const auto monitor = monitor_of(0, shared);
    monitor->leave_peers();
    EXPECT_FALSE(monitor->first_cause(std::chrono::milliseconds(0)));
  }
}

}  // namespace
}  // namespace lockstep
