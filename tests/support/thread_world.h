// N ranks as N threads of the test, over Gloo on the loopback with a store in memory.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "world/world_access.h"

namespace lockstep {

/// Runs `body` once per rank and rethrows the primary exception: a lost peer is a consequence of another failure.
inline void thread_world(int size, const std::function<void(World&)>& body,
                         std::chrono::milliseconds timeout = std::chrono::seconds(30), int nodes = 1,
                         Backend backend = Backend::gloo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  std::latch connected(size);  // a rank that ends at once must not close a connection that another one still makes
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      set_log_rank(rank, size);
      at::get_num_threads();  // else a loader that another rank makes could give this thread the number of its workers
      bool is_connected = false;
      try {
        const int local_size = size / nodes;
        World world = WorldAccess::make(store,
                                        {.rank = rank,
                                         .size = size,
                                         .local_rank = rank % local_size,
                                         .local_size = local_size,
                                         .node = rank / local_size,
                                         .nodes = nodes},
                                        c10::Device(c10::kCPU), backend, timeout);
        is_connected = true;
        connected.arrive_and_wait();
        body(world);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
        if (!is_connected) {
          connected.count_down();
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  std::exception_ptr consequence;
  for (const auto& failure : failures) {
    try {
      if (failure) {
        std::rethrow_exception(failure);
      }
    } catch (const CommError& error) {
      if (error.exit_code() != ExitCode::peer_lost) {
        throw;
      }
      consequence = failure;
    }
  }
  if (consequence) {
    std::rethrow_exception(consequence);
  }
}

/// The same with gradients in shared memory.
inline void shared_memory_world(int size, const std::function<void(World&)>& body) {
  thread_world(size, body, std::chrono::seconds(30), /*nodes=*/1, Backend::shm);
}

}  // namespace lockstep
