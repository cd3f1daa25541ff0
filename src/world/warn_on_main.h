// A warning about something that all ranks know.
#pragma once

#include <string_view>

#include <lockstep/base/log.h>
#include <lockstep/world/world.h>

namespace lockstep {

/// Rank 0 says it for all.
inline void warn_on_main(const World& world, std::string_view text) {
  if (world.is_main()) {
    log_warning(text);
  }
}

}  // namespace lockstep
