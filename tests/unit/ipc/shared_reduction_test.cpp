// Sums in shared memory: the right ones at every timing, and no rank that waits for one which is gone. A second binary
// runs the tests of threads under ThreadSanitizer.
#include "ipc/shared_reduction.h"

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mapped.h"
#include "support/message_of.h"
#include "support/process_states.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

void mean_of_floats(std::span<std::byte* const> means, std::span<const std::byte* const> parts, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(float)) {
    float total = 0;
    for (const std::byte* part : parts) {
      float value = 0;
      std::memcpy(&value, part + at, sizeof value);
      total += value / static_cast<float>(parts.size());
    }
    for (std::byte* mean : means) {
      std::memcpy(mean + at, &total, sizeof total);
    }
  }
}

/// More than 2,048 floats are divided into slices; 40,001 give slices of different sizes.
constexpr std::array<std::size_t, 8> kSizes{1, 3, 16, 1000, 2048, 2049, 40'001, 20'000};

#if defined(__SANITIZE_THREAD__)
constexpr int kSteps = 4;  // it is slow
#else
constexpr int kSteps = 20;
#endif

std::vector<std::size_t> parts() {
  return mapped(kSizes, [](std::size_t size) { return size * sizeof(float); });
}

SharedReduction make(const std::string& address, int rank, std::vector<pid_t> processes, bool spins = true,
                     milliseconds timeout = std::chrono::seconds(20)) {
  return {std::make_shared<SharedMemory>(SharedMemory::open(address)),
          {.rank = rank, .processes = std::move(processes), .parts = parts(), .timeout = timeout, .spins = spins}};
}

/// Sums with the last bit: floats that no other order of additions gives.
float value_of(int rank, int step, std::size_t part, std::size_t i) {
  return 0.1F * static_cast<float>(rank + 1) + 1e-3F * static_cast<float>(step) + static_cast<float>(part) +
         1e-4F * static_cast<float>(i % 1009);
}

/// One step: some parts are published, then all are finished, in one round or in two. Returns the number of wrong
/// elements.
int reduce(
    SharedReduction& reduction, int rank, int ranks, int step, const std::function<void()>& between = [] {}) {
  const bool has_two_rounds = step % 4 == 1;
  const std::size_t first = step % 4 == 2 ? 2 : 0;
  for (std::size_t part = first; part < kSizes.size(); ++part) {
    std::byte* const to = reduction.part(part);
    for (std::size_t i = 0; i < kSizes[part]; ++i) {
      const float value = value_of(rank, step, part, i);
      std::memcpy(to + i * sizeof(float), &value, sizeof value);
    }
    reduction.publish(part, &mean_of_floats);
    between();
    if (has_two_rounds && part == 1) {
      reduction.finish();
    }
  }
  reduction.finish();
  reduction.finish();  // does nothing
  between();
  int wrong = 0;
  for (std::size_t part = first; part < kSizes.size(); ++part) {
    for (std::size_t i = 0; i < kSizes[part]; ++i) {
      float expected = 0;
      for (int other = 0; other < ranks; ++other) {
        expected += value_of(other, step, part, i) / static_cast<float>(ranks);
      }
      float found = 0;
      std::memcpy(&found, reduction.part(part) + i * sizeof(float), sizeof found);
      wrong += found != expected ? 1 : 0;
    }
  }
  return wrong;
}

SharedMemory memory_for(int ranks) { return SharedMemory::create(SharedReduction::bytes_needed(ranks, parts())); }

TEST(SharedReductionOfThreads, AddsInTheOrderOfRanksAtEveryTiming) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool spins : {true, false}) {
      const SharedMemory memory = memory_for(ranks);
      const std::vector<pid_t> processes(static_cast<std::size_t>(ranks), ::getpid());
      std::vector<int> wrong(static_cast<std::size_t>(ranks), -1);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          SharedReduction reduction = make(memory.address(), rank, processes, spins);
          std::minstd_rand random(static_cast<unsigned>(rank + 1));
          const auto disturb = [&] {
            if (random() % 4 == 0) {
              std::this_thread::yield();
            }
          };
          int found = 0;
          for (int step = 0; step < kSteps; ++step) {
            found += reduce(reduction, rank, ranks, step, disturb);
          }
          wrong[static_cast<std::size_t>(rank)] = found;
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      EXPECT_THAT(wrong, testing::Each(0)) << ranks << " ranks";
    }
  }
}

TEST(SharedReductionOfThreads, EndsWhenARankLeaves) {
  const SharedMemory memory = memory_for(2);
  const std::vector<pid_t> processes(2, ::getpid());
  std::thread other([&] {
    SharedReduction reduction = make(memory.address(), 1, processes);
    reduce(reduction, 1, 2, 0);
  });
  SharedReduction reduction = make(memory.address(), 0, processes);
  EXPECT_EQ(reduce(reduction, 0, 2, 0), 0);  // although the other one leaves after it
  other.join();
  EXPECT_EQ(message_of<SharedReductionFailed>([&] { reduce(reduction, 0, 2, 1); }), "rank 1 takes part no more");
}

TEST(SharedReductionOfThreads, GivesUpAfterItsTimeout) {
  const SharedMemory memory = memory_for(2);
  const std::vector<pid_t> processes(2, ::getpid());
  const SharedReduction silent = make(memory.address(), 1, processes);
  SharedReduction reduction = make(memory.address(), 0, processes, true, milliseconds(60));
  EXPECT_THAT([&] { reduce(reduction, 0, 2, 0); },
              testing::ThrowsMessage<SharedReductionFailed>("timed out after 60 ms of waiting for rank 1"));
}

#if !defined(__SANITIZE_THREAD__)  // which has no support for processes that fork with threads

/// Ends the process with the result of `work`: 0 if it is true.
pid_t start_process(const std::function<bool()>& work) {
  const pid_t process = ::fork();
  if (process == 0) {
    bool good = false;
    try {
      good = work();
    } catch (const std::exception&) {
    }
    ::_exit(good ? 0 : 1);
  }
  return process;
}

int wait_for(pid_t process) {
  int status = 0;
  ::waitpid(process, &status, 0);
  return status;
}

TEST(SharedReductionOfProcesses, AddsWhatOtherProcessesWrote) {
  const SharedMemory memory = memory_for(2);
  const pid_t parent = ::getpid();
  const auto work = [&](int rank, std::vector<pid_t> processes) {
    SharedReduction reduction = make(memory.address(), rank, std::move(processes));
    int wrong = 0;
    for (int step = 0; step < kSteps; ++step) {
      wrong += reduce(reduction, rank, 2, step);
    }
    return wrong == 0;
  };
  const pid_t child = start_process([&] { return work(1, {parent, ::getpid()}); });
  EXPECT_TRUE(work(0, {parent, child}));
  EXPECT_EQ(wait_for(child), 0);
}

// docker pause, scontrol suspend: it goes on, and waits for the rest of its time.
TEST(SharedReductionOfProcesses, DoesNotCountTheTimeInWhichItWasSuspended) {
  constexpr milliseconds kTimeout{2000};
  const SharedMemory memory = memory_for(2);
  const pid_t parent = ::getpid();
  std::array<int, 2> waits{};
  ASSERT_EQ(::pipe(waits.data()), 0);
  const pid_t child = start_process([&] {
    SharedReduction reduction = make(memory.address(), 1, {parent, ::getpid()}, /*spins=*/true, kTimeout);
    if (::write(waits[1], "x", 1) != 1) {
      return false;
    }
    return reduce(reduction, 1, 2, /*step=*/0) == 0;
  });
  SharedReduction reduction = make(memory.address(), 0, {parent, child});
  char byte = 0;
  ASSERT_EQ(::read(waits[0], &byte, 1), 1);
  ASSERT_TRUE(comes_into_state(child, 'S'));  // it waits
  ::kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  std::this_thread::sleep_for(kTimeout + milliseconds(500));  // the tested time
  ::kill(child, SIGCONT);
  std::this_thread::sleep_for(milliseconds(300));  // the tested time: it looks at its clock every 20 ms
  EXPECT_EQ(reduce(reduction, 0, 2, /*step=*/0), 0);
  EXPECT_EQ(wait_for(child), 0);
  ::close(waits[0]);
  ::close(waits[1]);
}

// kill -9 at a random moment of the work: the survivor is told within a fraction of a second.
TEST(SharedReductionOfProcesses, NoticesAKilledRankAtOnce) {
  std::minstd_rand random(7);
  for (int round = 0; round < 10; ++round) {
    const SharedMemory memory = memory_for(2);
    const pid_t parent = ::getpid();
    std::array<int, 2> ready{};
    ASSERT_EQ(::pipe(ready.data()), 0);
    const pid_t child = start_process([&] {
      SharedReduction reduction = make(memory.address(), 1, {parent, ::getpid()});
      for (int step = 0;; ++step) {
        reduce(reduction, 1, 2, step);
        if (step == 2 && ::write(ready[1], "x", 1) != 1) {
          return false;
        }
      }
    });
    std::thread killer([&] {
      char byte = 0;
      EXPECT_EQ(::read(ready[0], &byte, 1), 1);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));  // the moment, not a wait
      ::kill(child, SIGKILL);
    });
    SharedReduction reduction = make(memory.address(), 0, {parent, child});
    int wrong = 0;
    const std::string message = message_of<SharedReductionFailed>([&] {
      for (int step = 0;; ++step) {
        wrong += reduce(reduction, 0, 2, step);
      }
    });
    killer.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(message, "rank 1 (process " + std::to_string(child) + ") has ended");
    EXPECT_TRUE(WIFSIGNALED(wait_for(child)));
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

#endif

TEST(SharedMemory, IsRefusedIfTheMachineHasLess) {
  EXPECT_THAT([] { SharedMemory::create(std::size_t{1} << 50); },
              testing::ThrowsMessage<std::system_error>(
                  AllOf(HasSubstr("of shared memory"), HasSubstr("Cannot allocate memory"))));
}

// The system would end the process.
TEST(SharedMemory, IsRefusedBeyondTheLimitOfFileSizes) {
  const SharedMemory memory = SharedMemory::create(std::size_t{1} << 20);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{.rlim_cur = 65536, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto is_refused = testing::ThrowsMessage<std::system_error>(
      AllOf(HasSubstr("of shared memory (ulimit -f: 64.0 KiB)"), HasSubstr("File too large")));
  EXPECT_THAT([] { SharedMemory::create(65537); }, is_refused);
  EXPECT_THAT([&] { memory.reserve(65536, 1); }, is_refused);
  memory.reserve(0, 65536);
  ::setrlimit(RLIMIT_FSIZE, &before);
}

TEST(SharedMemory, IsOnlyFoundUnderItsAddress) {
  const SharedMemory memory = SharedMemory::create(8192);
  const SharedMemory same = SharedMemory::open(memory.address());
  EXPECT_EQ(same.size(), 8192U);
  EXPECT_THAT([&] { SharedMemory::open(memory.address() + "1"); },
              testing::ThrowsMessage<std::runtime_error>(HasSubstr("is not the shared memory of the main rank")));
  const std::string process = std::to_string(::getpid());
  EXPECT_THAT([&] { SharedMemory::open(process + "/9999/1"); },
              testing::ThrowsMessage<std::system_error>(
                  AllOf(HasSubstr("cannot open /proc/" + process), HasSubstr("No such file"))));
}

}  // namespace
}  // namespace lockstep
