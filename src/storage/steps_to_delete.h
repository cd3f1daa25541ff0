// Which checkpoints of a directory are too old. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

/// The steps to delete, ascending, so that the newest `keep_last` and those in `keep` remain. Pure.
std::vector<std::int64_t> steps_to_delete(std::vector<std::int64_t> steps, int keep_last,
                                          std::span<const std::int64_t> keep = {});

}  // namespace lockstep
