// What the Trainer adds to a step beside its time: see docs/performance.md.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/ptrace.h>

#include "support/plain_ranks.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

Requirements own_allocator() { return Requirements().that(!kHasSanitizer, "a sanitizer has an allocator of its own"); }

TEST(SteadyStep, HasNoAllocationAndNoPageFaultMoreThanALoopByHand) {
  LOCKSTEP_REQUIRE(own_allocator());
  const auto result = Process({STEADY_STEP_PROGRAM}, {{"OMP_NUM_THREADS", "1"}}).wait();
  ASSERT_EQ(result.code, 0) << result.err;
  const auto costs = nlohmann::json::parse(result.out);
  const auto allocations = [&](const char* of) { return costs.at(of).at("allocations").get<double>(); };
  EXPECT_GT(allocations("by_hand"), 10) << "each tensor is at least one";
  EXPECT_LE(allocations("trainer"), allocations("by_hand"));
  EXPECT_NEAR(allocations("callbacks_of_other_stages"), allocations("trainer"), 0.1);
  EXPECT_EQ(costs.at("calls"), 1) << "the start of the fit";
  EXPECT_NEAR(allocations("costly_callback"), allocations("trainer") + 1, 0.1) << "the control";
  EXPECT_GT(allocations("trainer_with_all"), allocations("trainer") + 10) << "it clips and has a metric";
  EXPECT_LE(allocations("trainer_with_all"), allocations("by_hand_with_all"));
  const auto page_faults = [&](const char* of) { return costs.at(of).at("page_faults").get<double>(); };
  // The system may take pages away meanwhile.
  EXPECT_LT(page_faults("trainer"), page_faults("by_hand") + 0.1);
  EXPECT_LT(page_faults("trainer_with_all"), page_faults("by_hand_with_all") + 0.1);
  // A batch of the loader is two new tensors in memory that is used again.
  for (const char* loader : {"loader", "loader_with_thread"}) {
    EXPECT_LE(allocations(loader), allocations("trainer") + 10) << loader;
    EXPECT_LT(page_faults(loader), page_faults("by_hand") + 0.1) << loader;
  }
}

TEST(SteadyStep, OfRanksThatShareMemoryHasNoPageFault) {
  LOCKSTEP_REQUIRE(own_allocator());
  const auto alone = Process({STEADY_STEP_PROGRAM}, {{"OMP_NUM_THREADS", "1"}}).wait();
  ASSERT_EQ(alone.code, 0) << alone.err;
  const auto of_one_rank = nlohmann::json::parse(alone.out).at("trainer").at("allocations").get<double>();
  for (const auto& rank : start_ranks(2, {STEADY_STEP_PROGRAM})) {
    const auto result = rank->wait();
    ASSERT_EQ(result.code, 0) << result.err;
    const auto costs = nlohmann::json::parse(result.out);
    const auto allocations = costs.at("trainer").at("allocations").get<double>();
    // LibTorch's reducer runs a hook and a callback of the backward for its bucket: measured 81 more than one rank.
    EXPECT_LE(allocations, of_one_rank + 90);
    // The control. Now and then ranks exchange how fast they are, more often if a step takes long.
    EXPECT_NEAR(costs.at("costly_loss").at("allocations").get<double>(), allocations + 10, 3);
    EXPECT_LT(costs.at("trainer").at("page_faults").get<double>(), 0.1);
  }
}

/// How many system calls the main thread of a traced program makes after each call of getrusage.
std::vector<std::int64_t> calls_after_marks(pid_t traced) {
  std::vector<std::int64_t> counts;
  int status = 0;
  const auto event = [&] { return status >> 16; };
  while (waitpid(traced, &status, 0) == traced && WIFSTOPPED(status) && event() != PTRACE_EVENT_EXIT) {
    int signal = event() == 0 ? WSTOPSIG(status) : 0;
    if (signal == (SIGTRAP | 0x80)) {  // PTRACE_O_TRACESYSGOOD
      signal = 0;
      __ptrace_syscall_info call{};
      ptrace(PTRACE_GET_SYSCALL_INFO, traced, sizeof call, &call);
      if (call.op == PTRACE_SYSCALL_INFO_ENTRY && call.entry.nr == SYS_getrusage) {
        counts.push_back(0);
      } else if (call.op == PTRACE_SYSCALL_INFO_ENTRY && !counts.empty()) {
        ++counts.back();
      }
    }
    ptrace(PTRACE_SYSCALL, traced, 0, signal);
  }
  ptrace(PTRACE_DETACH, traced, 0, 0);
  return counts;
}

TEST(SteadyStep, HasNoSystemCallMoreThanALoopByHand) {
  LOCKSTEP_REQUIRE(own_allocator());
  // Stopped until it is traced.
  Process process({"sh", "-c", "kill -STOP $$; exec \"$0\"", STEADY_STEP_PROGRAM}, {{"OMP_NUM_THREADS", "1"}});
  int status = 0;
  ASSERT_EQ(waitpid(process.pid(), &status, WUNTRACED), process.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  constexpr auto kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL;
  LOCKSTEP_REQUIRE(
      Requirements().that(ptrace(PTRACE_SEIZE, process.pid(), 0, kOptions) == 0, "this process may not trace another"));
  process.signal(SIGCONT);
  const std::vector<std::int64_t> counts = calls_after_marks(process.pid());
  const auto result = process.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  const auto costs = nlohmann::ordered_json::parse(result.out);
  std::vector<std::string> contestants;
  for (const auto& [name, cost] : costs.items()) {
    if (cost.is_object()) {
      contestants.push_back(name);
    }
  }
  ASSERT_EQ(counts.size(), 2 * contestants.size()) << "one mark before the steps of each, one after them";
  std::map<std::string, double> calls;  // in a step
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    calls[contestants[i]] = static_cast<double>(counts[2 * i]) / costs.at("steps").get<double>();
  }
  constexpr double kFew = 0.01;  // the heap may grow once
  EXPECT_LE(calls.at("trainer"), calls.at("by_hand") + kFew);
  EXPECT_LE(calls.at("trainer_with_all"), calls.at("by_hand_with_all") + kFew);
  EXPECT_NEAR(calls.at("costly_callback"), calls.at("trainer") + 1, kFew) << "the control";
  // With a thread the loader wakes it and may wait for it; so do ranks that share memory.
  EXPECT_LE(calls.at("loader"), calls.at("trainer") + kFew);
}

}  // namespace
}  // namespace lockstep
