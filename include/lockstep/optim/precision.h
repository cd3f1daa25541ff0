// lockstep/optim/precision.h
//
// In which precision the forward pass runs.
#pragma once

#include <c10/core/Device.h>

#include <lockstep/config/train_config.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Guard: forward code of this thread runs in the policy's precision until it dies; the cast cache is cleared with the
/// outermost guard. Restores what was set before.
class [[nodiscard]] AutocastScope {
 public:
  AutocastScope(Precision precision, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool active_;
  c10::DeviceType device_;
  bool was_enabled_ = false;
  bool was_cached_ = false;
  int was_dtype_ = 0;
};

}  // namespace lockstep
