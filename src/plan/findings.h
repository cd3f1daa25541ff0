// What planning has to say. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep {

struct Findings {
  std::vector<Problem> problems{};  ///< any of them refuses the plan
  std::vector<std::string> warnings{};
  std::vector<std::string> notes{};

  void problem(std::string what, std::string hint) { problems.push_back({std::move(what), std::move(hint)}); }
};

}  // namespace lockstep
