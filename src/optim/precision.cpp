#include <ATen/autocast_mode.h>

#include <lockstep/optim/precision.h>

namespace lockstep {

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device)
    : active_(precision == Precision::bf16_mixed), device_(device) {
  if (!active_) {
    return;
  }
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  was_cached_ = at::autocast::is_autocast_cache_enabled();
  was_dtype_ = static_cast<int>(at::autocast::get_autocast_dtype(device_));
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) {
    return;
  }
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_dtype(device_, static_cast<at::ScalarType>(was_dtype_));
  at::autocast::set_autocast_cache_enabled(was_cached_);
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

}  // namespace lockstep
