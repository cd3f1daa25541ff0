#include "base/random_id.h"

#include <random>

#include <fmt/format.h>

namespace lockstep {

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace lockstep
