#include "data/worker_pool.h"

#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <lockstep/base/log.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

std::unique_ptr<PendingStep> step_of(WorkerPool& pool, std::int64_t epoch, std::size_t micro_batches) {
  auto step = pool.spare();
  step->plan.epoch = epoch;  // tells steps apart
  step->plan.micro_batches = micro_batches;
  return step;
}

std::string message_of_front(WorkerPool& pool) {
  return message_of<std::runtime_error>([&] { pool.front(); });
}

TEST(WorkerPool, HandsOverWholeStepsInOrder) {
  for (const int workers : {0, 1, 4}) {
    WorkerPool pool(workers, [](PendingStep& step, std::size_t index) {
      step.micro[index].batch.samples = step.plan.epoch * 100 + static_cast<std::int64_t>(index);
    });
    std::int64_t submitted = 0;
    for (std::int64_t expected = 0; expected < 200; ++expected) {
      while (pool.pending() < 4) {
        pool.submit(step_of(pool, submitted, static_cast<std::size_t>(submitted % 3 + 1)));
        ++submitted;
      }
      PendingStep& step = pool.front();
      ASSERT_EQ(step.plan.epoch, expected);
      ASSERT_EQ(step.micro.size(), static_cast<std::size_t>(expected % 3 + 1));
      for (std::size_t index = 0; index < step.micro.size(); ++index) {
        ASSERT_EQ(step.micro[index].batch.samples, expected * 100 + static_cast<std::int64_t>(index));
      }
      pool.pop();
    }
  }
}

// A worker looks for work while the caller takes the micro-batches of the step before it.
TEST(WorkerPool, LetsTheCallerMoveAwayTheMicroBatchesOfABuiltStep) {
  std::atomic<int> beyond = 0;
  WorkerPool pool(3, [&](PendingStep& step, std::size_t index) { beyond += index < step.plan.micro_batches ? 0 : 1; });
  std::size_t taken = 0;
  for (int i = 0; i < 100'000; ++i) {
    while (pool.pending() < 4) {
      pool.submit(step_of(pool, i, 1));
    }
    taken += std::exchange(pool.front().micro, {}).size();
    pool.pop();
  }
  EXPECT_EQ(taken, 100'000U);
  EXPECT_EQ(beyond, 0);
}

TEST(WorkerPool, ReusesSteps) {
  WorkerPool pool(1, [](PendingStep&, std::size_t) {});
  std::set<const PendingStep*> seen;
  for (int i = 0; i < 20; ++i) {
    pool.submit(step_of(pool, i, 1));
    seen.insert(&pool.front());
    pool.pop();
  }
  EXPECT_EQ(seen.size(), 1U);
}

TEST(WorkerPool, CarriesTheFirstErrorOfAStepToItsTurn) {
  for (const int workers : {0, 1, 4}) {
    WorkerPool pool(workers, [](PendingStep& step, std::size_t index) {
      if (step.plan.epoch == 1 && index >= 2) {
        throw std::runtime_error("micro-batch " + std::to_string(index));
      }
    });
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      pool.submit(step_of(pool, epoch, 5));
    }
    EXPECT_EQ(message_of_front(pool), "no error");
    pool.pop();
    EXPECT_EQ(message_of_front(pool), "micro-batch 2");
    EXPECT_EQ(message_of_front(pool), "micro-batch 2") << "the step stays where it is";
    pool.clear();
    EXPECT_EQ(pool.pending(), 0U);
    pool.submit(step_of(pool, 7, 5));
    EXPECT_EQ(message_of_front(pool), "no error") << "with the storage of a step that failed";
  }
}

TEST(WorkerPool, PrefersTheErrorOfTheFirstMicroBatchToTheEarliest) {
  std::latch second_failed(1);
  WorkerPool pool(2, [&](PendingStep&, std::size_t index) {
    if (index == 2) {  // taken by the thread whose error of micro-batch 1 is recorded by now
      second_failed.count_down();
      return;
    }
    if (index == 0) {
      second_failed.wait();
    }
    throw std::runtime_error("micro-batch " + std::to_string(index));
  });
  pool.submit(step_of(pool, 0, 3));
  EXPECT_EQ(message_of_front(pool), "micro-batch 0");
}

TEST(WorkerPool, BuildsTheMicroBatchesOfSeveralStepsAtTheSameTime) {
  constexpr int kWorkers = 3;
  std::latch all_building(kWorkers);
  WorkerPool pool(kWorkers, [&](PendingStep&, std::size_t) { all_building.arrive_and_wait(); });
  pool.submit(step_of(pool, 0, 2));
  pool.submit(step_of(pool, 1, 1));
  pool.front();  // would wait for ever if the second step were built after the first
  EXPECT_TRUE(all_building.try_wait());
}

TEST(WorkerPool, EndsWhileItsThreadsAreBusy) {
  std::atomic<int> begun = 0;
  std::atomic<int> ended = 0;
  std::latch open(1);
  std::latch busy(2);
  std::thread opener;
  {
    WorkerPool pool(2, [&](PendingStep&, std::size_t) {
      if (++begun <= 2) {
        busy.count_down();
      }
      open.wait();
      ++ended;
    });
    pool.submit(step_of(pool, 0, 50));
    pool.submit(step_of(pool, 1, 50));
    busy.wait();
    opener = std::thread([&] { open.count_down(); });
  }
  EXPECT_EQ(begun, ended) << "nothing is abandoned half-way";
  opener.join();
}

TEST(WorkerPool, ClearsWhileItsThreadsAreBusy) {
  std::latch open(1);
  std::latch busy(2);
  std::atomic<int> begun = 0;
  WorkerPool pool(2, [&](PendingStep& step, std::size_t index) {
    if (step.plan.epoch == 0) {
      if (++begun <= 2) {
        busy.count_down();
      }
      open.wait();
    }
    step.micro[index].batch.samples = step.plan.epoch;
  });
  pool.submit(step_of(pool, 0, 3));
  busy.wait();
  std::thread opener([&] { open.count_down(); });
  pool.clear();
  opener.join();
  const int begun_before = begun;
  pool.submit(step_of(pool, 9, 3));
  PendingStep& step = pool.front();
  for (const PreparedBatch& prepared : step.micro) {
    EXPECT_EQ(prepared.batch.samples, 9);
  }
  EXPECT_EQ(begun, begun_before) << "a dropped step is not built any more";
}

TEST(WorkerPool, EndsIdleOrUnused) {
  {
    const WorkerPool unused(3, [](PendingStep&, std::size_t) {});
  }
  WorkerPool idle(3, [](PendingStep&, std::size_t) {});
  idle.submit(step_of(idle, 0, 1));
  idle.front();
  idle.pop();
  idle.clear();
}

TEST(WorkerPool, WorkersComputeWithOneThreadAndAffectNoOtherThread) {
  at::set_num_threads(3);
  std::atomic<int> of_worker = 0;
  WorkerPool pool(2, [&](PendingStep&, std::size_t) { of_worker = at::get_num_threads(); });
  pool.submit(step_of(pool, 0, 1));
  pool.front();
  EXPECT_EQ(of_worker, 1);
  EXPECT_EQ(at::get_num_threads(), 3);
  int of_new_thread = 0;
  std::thread([&] { of_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(of_new_thread, 3);
}

TEST(WorkerPool, WorkersLogAsTheirOwner) {
  std::thread([] {
    set_log_rank(5, 8);
    std::atomic<int> lines = 0;
    const LogScope scope([&](LogLevel, std::string_view) { ++lines; });
    std::atomic<int> rank = -1;
    std::atomic<int> world_size = -1;
    WorkerPool pool(1, [&](PendingStep&, std::size_t) {
      rank = log_rank();
      world_size = log_world_size();
      log_warning("a bad sample");
    });
    pool.submit(step_of(pool, 0, 1));
    pool.front();
    EXPECT_EQ(rank, 5);
    EXPECT_EQ(world_size, 8);
    EXPECT_EQ(lines, 1);
  }).join();
}

}  // namespace
}  // namespace lockstep
