// Warnings of LibTorch, which would come in each step.
#pragma once

#include <string>
#include <unordered_set>

#include <c10/util/Exception.h>

namespace lockstep {

/// While it exists, each warning that LibTorch gives in this thread is shown once, as in Python.
class RepeatedWarnings {
 public:
  RepeatedWarnings() : shown_(c10::WarningUtils::get_warning_handler()), scope_(&shown_) {}

 private:
  class Once final : public c10::WarningHandler {
   public:
    explicit Once(c10::WarningHandler* next) : next_(*next) {}
    void process(const c10::Warning& warning) override {
      if (seen_.insert(warning.msg()).second) {
        next_.process(warning);
      }
    }

   private:
    c10::WarningHandler& next_;
    std::unordered_set<std::string> seen_{};
  };

  Once shown_;
  const c10::WarningUtils::WarningHandlerGuard scope_;
};

}  // namespace lockstep
