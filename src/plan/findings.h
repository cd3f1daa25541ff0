// Messages of the planning. Torch-free.
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep {

struct Findings {
  std::vector<Problem> problems{};  ///< with any of them there is no plan
  std::vector<std::string> warnings{};
  std::vector<std::string> notes{};

  void problem(std::string what, std::string hint) { problems.push_back({std::move(what), std::move(hint)}); }
};

}  // namespace lockstep
