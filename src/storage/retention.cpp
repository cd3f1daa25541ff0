#include <algorithm>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep {

std::vector<std::int64_t> steps_to_delete(std::vector<std::int64_t> steps, int keep_last,
                                          std::span<const std::int64_t> keep) {
  LOCKSTEP_ASSERT(keep_last >= 0, "keep_last must not be negative");
  std::sort(steps.begin(), steps.end());
  steps.resize(steps.size() - std::min(steps.size(), static_cast<std::size_t>(keep_last)));
  std::erase_if(steps, [&](std::int64_t step) { return std::find(keep.begin(), keep.end(), step) != keep.end(); });
  return steps;
}

}  // namespace lockstep
