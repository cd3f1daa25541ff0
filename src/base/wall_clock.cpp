#include "base/wall_clock.h"

#include <chrono>
#include <cstdint>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::optional<double> parse_utc_time(std::string_view text) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00.000Z";
  if (text.size() != kForm.size()) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_digit = text[i] >= '0' && text[i] <= '9';
    if (kForm[i] == '0' ? !is_digit : text[i] != kForm[i]) {
      return std::nullopt;
    }
  }
  const auto part = [&](std::size_t begin, std::size_t size) {
    return static_cast<int>(parse_int(text.substr(begin, size)).value_or(0));
  };
  const std::chrono::year_month_day date{std::chrono::year(part(0, 4)),
                                         std::chrono::month(static_cast<unsigned>(part(5, 2))),
                                         std::chrono::day(static_cast<unsigned>(part(8, 2)))};
  if (!date.ok()) {
    return std::nullopt;
  }
  const auto days = std::chrono::sys_days(date).time_since_epoch();
  const std::int64_t seconds = std::chrono::seconds(days).count() + part(11, 2) * 3600 + part(14, 2) * 60 + part(17, 2);
  return static_cast<double>(seconds) + part(20, 3) / 1000.0;
}

std::string utc_minute(double unix_time) {
  const std::chrono::sys_seconds time{std::chrono::seconds(static_cast<std::int64_t>(unix_time))};
  const std::chrono::year_month_day date{std::chrono::floor<std::chrono::days>(time)};
  return fmt::format("{:04}-{:02}-{:02} {} UTC", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()), utc_clock(unix_time).substr(0, 5));
}

std::string utc_clock(double unix_time) {
  const std::int64_t seconds = static_cast<std::int64_t>(unix_time) % 86400;
  return fmt::format("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace lockstep
