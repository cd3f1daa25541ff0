// Parts of a Session that are not public, for trainer/, worker.cpp and the tests.
#pragma once

#include <memory>

#include <lockstep/session.h>

namespace lockstep {

// A public header declares it, and so would export it.
struct [[gnu::visibility("hidden")]] SessionAccess;

struct SessionAccess {
  /// Gets the reports of the main rank.
  static std::shared_ptr<Console>& console(Session& session) { return session.console_; }
};

}  // namespace lockstep
