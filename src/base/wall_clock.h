// The time of day. Torch-free. For what is written for people; durations are measured with steady_clock.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

double unix_time();  ///< seconds since 1970-01-01 UTC
/// The same for a text of utc_time(), "2026-11-21T10:00:00.123Z"; nullopt: it is none.
std::optional<double> parse_utc_time(std::string_view text);
std::string utc_minute(double unix_time);  ///< "2026-11-21 10:02 UTC"
std::string utc_clock(double unix_time);   ///< "10:02:03"

}  // namespace lockstep
