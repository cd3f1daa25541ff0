// What a test needs of this machine and this build, and all that is missing at once where it cannot run.
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

  /// Asks the driver, not LibTorch: that would decide for this process that there is no CUDA before it is loaded.
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

  /// Set where the hardware is known to be there: what would be skipped fails.
  static bool skips_are_forbidden() { return read_environment().get("LOCKSTEP_FORBID_SKIPS") == "1"; }

 private:
  std::vector<std::string> missing_{};
};

}  // namespace lockstep

/// Goes on when the Requirements are met; else skips the test with the reasons, or fails under LOCKSTEP_FORBID_SKIPS=1.
#define LOCKSTEP_REQUIRE(requirements)                                                            \
  if (const std::string missing_here = (requirements).missing(); !missing_here.empty()) {         \
    if (::lockstep::Requirements::skips_are_forbidden()) {                                        \
      GTEST_FAIL() << "LOCKSTEP_FORBID_SKIPS=1, and this test cannot run here: " << missing_here; \
    }                                                                                             \
    GTEST_SKIP() << missing_here;                                                                 \
  }                                                                                               \
  static_assert(true, "asks for the semicolon")
