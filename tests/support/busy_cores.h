// Simulates other programs on the machine of a test.
#pragma once

#include <memory>
#include <vector>

#include "support/process.h"

namespace lockstep {

/// Runs `programs` busy processes until it is destroyed.
class BusyCores {
 public:
  explicit BusyCores(int programs) {
    for (int i = 0; i < programs; ++i) {
      programs_.push_back(std::make_unique<Process>(std::vector<std::string>{"sh", "-c", "while :; do :; done"}));
    }
  }

 private:
  std::vector<std::unique_ptr<Process>> programs_;
};

}  // namespace lockstep
