// The only file that includes c10d's Gloo header, which needs the header stubs of cmake/gloo.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#ifndef USE_C10D_GLOO
#error "USE_C10D_GLOO is not defined: the header above is silently empty"
#endif

#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "world/process_group.h"

namespace lockstep {
namespace {

/// Checks that threads can be created: if c10d's constructor cannot create all of its threads, it waits forever for the
/// others. Throws: std::system_error.
void check_that_threads_can_be_made(int count) {
  std::promise<void> all_tried;
  const std::shared_future<void> end = all_tried.get_future().share();
  std::vector<std::jthread> threads;
  try {
    while (static_cast<int>(threads.size()) < count) {
      threads.emplace_back([end] { end.wait(); });
    }
  } catch (...) {
    all_tried.set_value();
    throw;
  }
  all_tried.set_value();
}

// Gloo looks up the PCI address of a network device in a map that it changes without a lock (interfaceToBusID).
c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> make_options(const std::string& address,
                                                                 std::chrono::milliseconds timeout) {
  static std::mutex one_device_at_a_time;
  const std::lock_guard lock(one_device_at_a_time);
  if (address.empty()) {
    return c10d::ProcessGroupGloo::Options::create_default(timeout);
  }
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  return options;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout) {
  const auto options = make_options(address, timeout);
  check_that_threads_can_be_made(options->threads);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace lockstep
