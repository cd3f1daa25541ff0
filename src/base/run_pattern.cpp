#include "base/run_pattern.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr std::pair<std::string_view, RunPattern::Kind> kPlaceholders[] = {{"{n}", RunPattern::Kind::number},
                                                                           {"{time}", RunPattern::Kind::time}};
constexpr std::size_t kMostDigits = 18;                     // of an int64, also of the next number
constexpr std::string_view kTimeShape = "00000000-000000";  // 20261121-100000

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_value(RunPattern::Kind kind, std::string_view value) {
  if (kind == RunPattern::Kind::number) {
    return !value.empty() && value.size() <= kMostDigits && value.front() != '0' &&
           std::ranges::all_of(value, is_digit);
  }
  return std::ranges::equal(value, kTimeShape, [](char c, char like) { return like == '0' ? is_digit(c) : c == like; });
}

}  // namespace

std::string RunPattern::path(std::string_view value) const {
  return fmt::format("{}{}{}{}", parent, before, value, after);
}

std::optional<std::string> RunPattern::value_in(std::string_view name) const {
  if (name.size() < before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) {
    return std::nullopt;
  }
  const std::string_view value = name.substr(before.size(), name.size() - before.size() - after.size());
  return is_value(kind, value) ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<RunPattern> parse_run_pattern(std::string_view directory) {
  for (const auto& [placeholder, kind] : kPlaceholders) {
    if (const auto at = directory.find(placeholder); at != std::string_view::npos) {
      const auto name = directory.substr(0, at).find_last_of('/') + 1;  // npos + 1 is 0
      return RunPattern{.parent = std::string(directory.substr(0, name)),
                        .before = std::string(directory.substr(name, at - name)),
                        .kind = kind,
                        .after = std::string(directory.substr(at + placeholder.size()))};
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_pattern_fault(std::string_view directory) {
  const auto pattern = parse_run_pattern(directory);
  const std::string rest = pattern ? pattern->path("") : std::string(directory);
  if (rest.find_first_of("{}") != std::string::npos) {
    return "found another { or }, expected at most one {n} or {time}";
  }
  if (pattern && pattern->after.find_first_not_of('/', pattern->after.find('/')) != std::string::npos) {
    return "the placeholder is not in the last directory";
  }
  return std::nullopt;
}

}  // namespace lockstep
