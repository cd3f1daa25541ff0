#include "base/random_id.h"

#include <random>

#include <fmt/format.h>

namespace lockstep {

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

bool is_random_id(std::string_view text) noexcept {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace lockstep
