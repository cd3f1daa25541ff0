// lockstep/optim/precision.h
//
// Precision of the forward pass.
#pragma once

#include <c10/core/Device.h>

#include <lockstep/config/train_config.h>

namespace [[gnu::visibility("default")]] lockstep {

/// While it exists, forward code of this thread runs in the given precision. The outermost scope clears the cast cache
/// at its end. Restores the previous settings.
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
