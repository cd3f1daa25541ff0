// Parts of a TrainControl that are not public, for trainer/ and the tests. Torch-free.
#pragma once

#include <lockstep/base/control.h>

namespace lockstep {

// A public header declares it, and so would export it.
struct [[gnu::visibility("hidden")]] TrainControlAccess;

struct TrainControlAccess {
  /// Around each fit. In a fit inside another one, the program's requests to the outer one wait until the inner one
  /// ends. Throws: ConfigError (a fit in another thread).
  static void begin_fit(TrainControl& control);
  static void end_fit(TrainControl& control) noexcept;
  /// A fit that uses these requests is running, of whatever Trainer.
  static bool in_fit(const TrainControl& control) noexcept;
  /// Drops the program's own.
  static void clear_requests(TrainControl& control) noexcept;
};

}  // namespace lockstep
