// Judges what the launches of `lockstep test` measured. Pure. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/doctor/facts.h"
#include "cli/doctor/findings.h"
#include "cli/test/probe_launch.h"
#include "environment/nvml.h"

namespace lockstep {

/// An advice and the numbers from which it follows.
struct Advice {
  std::string what{};
  std::string because{};
};

/// One group of findings for each part of the test.
std::vector<Finding> judge_directory(const DirectoryFacts& facts);
std::vector<Finding> judge_devices(const ProbeOutcome& outcome);
std::vector<Finding> judge_exchange(std::string_view backend, const ProbeOutcome& outcome);
std::vector<Finding> judge_save(const ProbeOutcome& outcome);
/// `saved`: what judge_save() was given.
std::vector<Finding> judge_resume(const ProbeOutcome& saved, const ProbeOutcome& outcome);
std::vector<Finding> judge_lost_rank(int ranks, const ProbeOutcome& outcome);

/// With two ranks, Gloo and shared memory promise the same bits.
std::vector<Finding> judge_same_weights(const ProbeOutcome& gloo, const ProbeOutcome& shm);

/// All launches of a test.
struct Measurements {
  DirectoryFacts directory{};
  std::vector<GpuPair> gpu_pairs{};  ///< of the GPUs that were tested, as the driver describes them
  ProbeOutcome devices{};            ///< on GPUs
  std::vector<std::pair<std::string, ProbeOutcome>> exchanges{};  ///< by backend
  ProbeOutcome saved{};
  std::int64_t gpu_memory_bytes = 0;  ///< of the smallest GPU; 0: no GPU was tested
};

/// Only what the measurements say, and on GPUs where the batch size comes from, which depends on the model.
std::vector<Advice> advise(const Measurements& measurements);

}  // namespace lockstep
