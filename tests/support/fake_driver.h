// GPUs that a machine does not have, for the programs that a test starts. Torch-free.
#pragma once

#include <filesystem>
#include <string>

#include "support/process.h"

namespace lockstep {

/// The variables with which a program finds the fake driver in place of NVIDIA's; `folder` gets a link to it. `gpus` as
/// in tests/unit/environment/fake_nvml.cpp.
inline Process::Environment fake_driver(const std::filesystem::path& folder, const std::string& gpus) {
  const auto link = folder / "libnvidia-ml.so.1";
  if (!std::filesystem::exists(link)) {
    std::filesystem::create_symlink(LOCKSTEP_FAKE_NVML, link);
  }
  return {{"LD_LIBRARY_PATH", folder.string()}, {"LOCKSTEP_TEST_GPUS", gpus}};
}

}  // namespace lockstep
