#include "base/wall_clock.h"

#include <chrono>

namespace lockstep {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep
