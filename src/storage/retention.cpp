#include <algorithm>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep {

std::vector<std::int64_t> steps_to_delete(std::vector<std::int64_t> steps, int keep_last) {
  LOCKSTEP_ASSERT(keep_last >= 0, "a number of checkpoints");
  std::sort(steps.begin(), steps.end());
  const auto keep = std::min(steps.size(), static_cast<std::size_t>(keep_last));
  steps.resize(steps.size() - keep);
  return steps;
}

}  // namespace lockstep
