// The only file that includes c10d's Gloo header, which needs the header stubs of cmake/gloo.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#ifndef USE_C10D_GLOO
#error "USE_C10D_GLOO is not defined: the header above is silently empty"
#endif

#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "base/text.h"
#include "world/process_group.h"
#include "world/world_access.h"

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

c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> make_options(const RankCoordinates& place,
                                                                 std::chrono::milliseconds timeout) {
  // Otherwise every rank reads the addresses of all others at the start, and the store sends n^2 of them.
  constexpr bool kConnectAtFirstUse = true;
  // Gloo looks up the PCI address of a network device in a map that it changes without a lock (interfaceToBusID).
  static std::mutex one_device_at_a_time;
  const std::lock_guard lock(one_device_at_a_time);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  if (place.interfaces.empty()) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(place.address, kConnectAtFirstUse));
  } else {
    for (const std::string& name : split(place.interfaces, ',')) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name, kConnectAtFirstUse));
    }
  }
  return options;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const RankCoordinates& place, std::chrono::milliseconds timeout) {
  const auto options = make_options(place, timeout);
  check_that_threads_can_be_made(options->threads);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, place.rank, place.size, options);
}

}  // namespace lockstep
