// Note [A common failure]
//
// The ranks of a world that failed at the same moment can be saved. Each counts itself in the store, under a key with
// the number of its collectives: ranks that meet there have called the same ones, and none of them waits in another.
// The one that completes the count says so. One that waits in vain says that it is too late. The store keeps what was
// said first, so all ranks have the same answer.

#include <future>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "failure/deadlines.h"
#include "world/text_store.h"
#include "world/world_impl.h"

namespace lockstep {

bool WorldAccess::is_common_failure(World& world, std::int64_t step) {
  World::Impl& impl = *world.impl_;
  if (impl.alone()) {
    return true;
  }
  const std::string key = fmt::format("failed_at/{}/{}", step, impl.progress->collectives.load());
  std::packaged_task<bool()> question([store = impl.store, key, size = world.size()] {
    const std::string answer = key + "/answer";
    const bool completes = store_add(*store, key, 1) == size;
    if (completes || !store_poll(*store, answer, deadlines::kCommonFailure)) {
      store_set_if_absent(*store, answer, completes ? "all" : "too late");
    }
    return store_get(*store, answer) == "all";
  });
  // The store may not answer. Then this rank ends, and the thread with it.
  auto found = question.get_future();
  std::thread(std::move(question)).detach();
  return found.wait_for(deadlines::kCommonFailure + deadlines::kAnnounce) == std::future_status::ready && found.get();
}

}  // namespace lockstep
