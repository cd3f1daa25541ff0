// Page faults of a process that uses memory as a training does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include <sys/resource.h>

namespace lockstep {

inline long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// Allocates, writes and frees blocks as a training step does, of `smallest` bytes and up to 8 times as much. Returns
/// the page faults of its later rounds.
inline long faults_of_steps(std::size_t smallest = 8 << 20) {
  constexpr std::size_t kBlocks = 8;
  long begin = 0;
  for (int step = 0; step < 5; ++step) {
    if (step == 3) {
      begin = page_faults();
    }
    std::vector<std::unique_ptr<char[]>> blocks;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(std::make_unique_for_overwrite<char[]>(smallest << (i % 4)));
      std::fill_n(blocks.back().get(), smallest << (i % 4), static_cast<char>(step));
    }
  }
  return page_faults() - begin;
}

}  // namespace lockstep
