// Note [A common failure]
//
// The ranks of a world that failed at the same moment can be saved. Each counts itself in the store, under a key with
// the number of its collectives: ranks that meet there have called the same ones, and none of them waits in another.
// The one that completes the count says so. One that waits in vain says that it is too late. The store keeps what was
// said first, so all ranks have the same answer.

#include <string>
#include <vector>

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
  const std::string answer = key + "/answer";
  const bool completes = store_add(*impl.store, key, 1) == world.size();
  if (completes || !store_poll(*impl.store, answer, deadlines::kCommonFailure)) {
    store_set_first(*impl.store, answer, completes ? "all" : "too late");
  }
  return store_get(*impl.store, answer) == "all";
}

}  // namespace lockstep
