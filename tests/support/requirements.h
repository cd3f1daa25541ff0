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

  /// Not every machine with a GPU has it, so the test may always be skipped.
  Requirements& of_the_machine(bool met, const std::string& otherwise) {
    if (!met) {
      absent_.push_back(otherwise);
    }
    return *this;
  }

  /// Asks the driver, not LibTorch: LibTorch would decide that there is no CUDA if its CUDA half is not loaded yet.
  Requirements& gpus(std::size_t count) {
    const Hardware hardware = probe_hardware();
    that(hardware.cuda_built, "this build has no CUDA");
    const std::string note = hardware.gpu_note.empty() ? "" : " (" + hardware.gpu_note + ")";
    const std::string found =
        "GPUs: needs " + std::to_string(count) + ", found " + std::to_string(hardware.gpus.size()) + note;
    return hardware.gpus.empty() ? that(count == 0, found) : of_the_machine(hardware.gpus.size() >= count, found);
  }

  Requirements& nccl() { return that(probe_hardware().nccl_built, "this build has no NCCL"); }

  /// Empty: the test can run.
  std::string missing() const {
    std::vector<std::string> all = missing_;
    all.insert(all.end(), absent_.begin(), absent_.end());
    return join(all, "; ");
  }

  /// What is missing may be so, or skips are not forbidden.
  bool may_skip() const { return missing_.empty() || !skips_are_forbidden(); }

  /// Set if the hardware must be available: a test fails instead of being skipped.
  static bool skips_are_forbidden() { return read_environment().get("LOCKSTEP_FORBID_SKIPS") == "1"; }

 private:
  std::vector<std::string> missing_{};
  std::vector<std::string> absent_{};
};

}  // namespace lockstep

/// Continues if the Requirements are met; otherwise skips the test with the reasons, or fails under
/// LOCKSTEP_FORBID_SKIPS=1.
#define LOCKSTEP_REQUIRE(requirements)                                                                       \
  if (const auto required_here = (requirements); !required_here.missing().empty()) {                         \
    if (!required_here.may_skip()) {                                                                         \
      GTEST_FAIL() << "LOCKSTEP_FORBID_SKIPS=1, and this test cannot run here: " << required_here.missing(); \
    }                                                                                                        \
    GTEST_SKIP() << required_here.missing();                                                                 \
  }                                                                                                          \
  static_assert(true, "asks for the semicolon")
