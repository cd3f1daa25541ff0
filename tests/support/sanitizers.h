// Whether this build has a sanitizer.
#pragma once

namespace lockstep {

/// Address or thread sanitizer, which allocate memory in their own ways.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHasSanitizer = true;
#else
inline constexpr bool kHasSanitizer = false;
#endif

}  // namespace lockstep
