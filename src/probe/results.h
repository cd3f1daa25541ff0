// What the ranks of the probe tell `lockstep test`: one line of JSON on the standard output of rank 0 for each check
// and each measurement. src/cli/test/verdict.cpp reads them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/world/world.h>

#include "base/json.h"

namespace lockstep {

class Results {
 public:
  /// `faults`: checks whose data the last rank falsifies, so that a test sees them fail.
  Results(World& world, std::vector<std::string> faults);

  /// Collective. Every rank runs `work`, which returns what is wrong, or "". Reports the first problem and its rank.
  void check(std::string_view name, const std::function<std::string()>& work);
  /// Of rank 0; the others' are dropped.
  void measured(std::string_view name, Json values);

  bool is_falsified(std::string_view check) const;  ///< by this rank
  World& world() const noexcept { return world_; }

 private:
  void write(const Json& line) const;

  World& world_;
  std::vector<std::string> faults_;
};

}  // namespace lockstep
