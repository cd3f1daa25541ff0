// Requirements of a test on the machine and the build, and a list of all that are not met.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/base/variables.h>
#include <lockstep/environment/hardware.h>

#include "base/text.h"

namespace lockstep {

class Requirements {
 public:
  Requirements& that(bool met, const std::string& otherwise) {
    if (!met) {
      missing_.push_back(otherwise);
    }
    return *this;
  }

  /// Asks the driver, not LibTorch: LibTorch would decide that there is no CUDA if its CUDA half is not loaded yet.
  Requirements& gpus(std::size_t count) {
    const Hardware hardware = probe_hardware();
    that(hardware.cuda_built, "this build has no CUDA");
    const std::string note = hardware.gpu_note.empty() ? "" : " (" + hardware.gpu_note + ")";
    return that(hardware.gpus.size() >= count,
                "GPUs: needs " + std::to_string(count) + ", found " + std::to_string(hardware.gpus.size()) + note);
  }

  Requirements& nccl() { return that(probe_hardware().nccl_built, "this build has no NCCL"); }

  /// Empty: the test can run.
  std::string missing() const { return join(missing_, "; "); }

  /// Set if the hardware must be available: a test fails instead of being skipped.
  static bool skips_are_forbidden() { return read_environment().get("LOCKSTEP_FORBID_SKIPS") == "1"; }

 private:
  std::vector<std::string> missing_{};
};

}  // namespace lockstep

/// Continues if the Requirements are met; otherwise skips the test with the reasons, or fails under
/// LOCKSTEP_FORBID_SKIPS=1.
#define LOCKSTEP_REQUIRE(requirements)                                                            \
  if (const std::string missing_here = (requirements).missing(); !missing_here.empty()) {         \
    if (::lockstep::Requirements::skips_are_forbidden()) {                                        \
      GTEST_FAIL() << "LOCKSTEP_FORBID_SKIPS=1, and this test cannot run here: " << missing_here; \
    }                                                                                             \
    GTEST_SKIP() << missing_here;                                                                 \
  }                                                                                               \
  static_assert(true, "asks for the semicolon")
