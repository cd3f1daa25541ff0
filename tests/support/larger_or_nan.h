// The largest of some differences.
#pragma once

#include <cmath>

namespace lockstep {

/// NaN if one of them is NaN: std::max() drops a NaN that stands second.
inline double larger_or_nan(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

}  // namespace lockstep
