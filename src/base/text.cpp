#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>

#include <cxxabi.h>
#include <fmt/format.h>

#include "base/special_number.h"

namespace lockstep {
namespace {

constexpr bool is_blank(char c) noexcept { return c == ' ' || (c >= '\t' && c <= '\r'); }
constexpr char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
constexpr bool is_control(char c) noexcept { return (c >= 0 && c < 0x20) || c == 0x7f; }
/// The second byte of a control character U+0080 to U+009F in UTF-8, after 0xc2.
constexpr bool is_c1_tail(char c) noexcept { return (static_cast<unsigned char>(c) & 0xe0) == 0x80; }

/// The spelling that is compared: names ignore case, and - equals _.
std::string folded(std::string_view name) {
  std::string text = to_lower(name);
  std::ranges::replace(text, '-', '_');
  return text;
}

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    last[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

/// Length in bytes of the well-formed UTF-8 character at text[i]; 0: not well-formed.
std::size_t character_size(std::string_view text, std::size_t i) noexcept {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(i);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (size == 0 || size > text.size() - i) {
    return 0;
  }
  for (std::size_t k = 1; k < size; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) {
      return 0;
    }
  }
  const unsigned char second = byte(i + 1);  // overlong, a surrogate, or beyond U+10FFFF
  const bool refused = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return refused ? 0 : size;
}

/// The end of the escape sequence that begins at text[i] (an ESC).
std::size_t escape_end(std::string_view text, std::size_t i) noexcept {
  ++i;
  if (i == text.size()) {
    return i;
  }
  if (text[i] == '[') {  // CSI: parameters, then one final byte
    ++i;
    while (i < text.size() && text[i] >= 0x20 && text[i] < 0x40) {
      ++i;
    }
    return i < text.size() && text[i] >= 0x40 ? i + 1 : i;
  }
  if (text[i] == ']' || text[i] == 'P' || text[i] == '_' || text[i] == '^') {  // a string up to BEL or ESC backslash
    for (++i; i < text.size(); ++i) {
      if (text[i] == '\a') {
        return i + 1;
      }
      if (text[i] == '\x1b') {
        return i + 1 < text.size() && text[i + 1] == '\\' ? i + 2 : i;
      }
    }
    return i;
  }
  while (i < text.size() && text[i] >= 0x20 && text[i] < 0x30) {  // e.g. ESC ( B
    ++i;
  }
  return i < text.size() && text[i] >= 0x30 && !is_control(text[i]) ? i + 1 : i;
}

template <class T>
std::optional<T> parse_number(std::string_view text) noexcept {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::string_view trim(std::string_view text) noexcept {
  while (!text.empty() && is_blank(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && is_blank(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(end + 1);
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) {
      text += separator;
    }
    text += parts[i];
  }
  return text;
}

std::string join_first(std::span<const std::string> parts, std::size_t count) {
  return parts.size() > count ? join(parts.first(count), ", ") + ", ..." : join(parts, ", ");
}

std::string join_or(std::span<const std::string> words) {
  if (words.size() < 2) {
    return join(words, "");
  }
  return join(words.first(words.size() - 1), ", ") + " or " + words.back();
}

std::string to_lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower);
  return result;
}

std::optional<std::int64_t> parse_int(std::string_view text) noexcept { return parse_number<std::int64_t>(text); }

std::optional<double> parse_double(std::string_view text) noexcept {
  const auto value = parse_number<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<double> parse_seconds(std::string_view text) {
  struct Unit {
    std::string_view name;
    double seconds;
    double limit;  // in a text with colons, parts after the first one are less than this
  };
  constexpr double kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  constexpr std::array<Unit, 5> kUnits{
      {{"s", 1, 60}, {"min", kMinute, 60}, {"h", kHour, 24}, {"d", kDay, 0}, {"m", kMinute, 0}}};
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() == 3 || parts.size() == 4) {
    double total = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto number = parse_number<std::uint32_t>(parts[i]);
      const Unit& unit = kUnits[parts.size() - 1 - i];
      if (!number || (i > 0 && (parts[i].size() != 2 || *number >= unit.limit))) {
        return std::nullopt;
      }
      total += *number * unit.seconds;
    }
    return total;
  }
  for (const Unit& unit : kUnits) {
    const std::string_view number = text.substr(0, text.size() - std::min(text.size(), unit.name.size()));
    if (!number.empty() && number.find_first_not_of("0123456789.") == std::string_view::npos &&
        text.ends_with(unit.name)) {
      const auto value = parse_double(number);
      return value ? std::optional(*value * unit.seconds) : std::nullopt;
    }
  }
  return parse_double(text);
}

std::optional<std::int64_t> parse_bytes(std::string_view text) noexcept {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr double kKibi = 1024, kKilo = 1000;
  constexpr std::array<Unit, 14> kUnits{{{"", 1},
                                         {"b", 1},
                                         {"k", kKibi},
                                         {"kib", kKibi},
                                         {"kb", kKilo},
                                         {"m", kKibi * kKibi},
                                         {"mib", kKibi * kKibi},
                                         {"mb", kKilo * kKilo},
                                         {"g", kKibi * kKibi * kKibi},
                                         {"gib", kKibi * kKibi * kKibi},
                                         {"gb", kKilo * kKilo * kKilo},
                                         {"t", kKibi * kKibi * kKibi * kKibi},
                                         {"tib", kKibi * kKibi * kKibi * kKibi},
                                         {"tb", kKilo * kKilo * kKilo * kKilo}}};
  text = trim(text);
  const auto digits_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view digits = text.substr(0, digits_end);
  const std::string_view suffix = trim(text.substr(digits_end));
  for (const Unit& unit : kUnits) {
    if (!std::ranges::equal(suffix, unit.name, [](char a, char b) { return lower(a) == b; })) {
      continue;
    }
    if (unit.bytes == 1) {
      return parse_int(digits);
    }
    const auto value = parse_double(digits);
    if (!value || *value * unit.bytes >= static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
      return std::nullopt;
    }
    return static_cast<std::int64_t>(*value * unit.bytes);
  }
  return std::nullopt;
}

std::string with_commas(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::size_t i = digits.size(); i > 3; i -= 3) {
    digits.insert(i - 3, 1, ',');
  }
  return digits;
}

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string five_digits(double value) {
  const auto word = special_word(value);
  return word ? std::string(*word) : fmt::format("{:.5g}", value);
}

// A whole number has all its digits: the epoch 1234567 is not 1.23457e+06.
std::string short_number(double value) {
  constexpr double kMost = 1e15;
  if (const auto word = special_word(value)) {
    return std::string(*word);
  }
  return std::abs(value) < kMost && value == std::floor(value) ? fmt::format("{:.0f}", value)
                                                               : fmt::format("{:.6g}", value);
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 3.6e9) {
    return "--:--";
  }
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  const auto hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest) : fmt::format("{:02}:{:02}", minutes, rest);
}

std::string in_seconds(std::chrono::duration<double> time) { return fmt::format("{:g} s", time.count()); }

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("batch") ? "es" : "s");
}

std::string library_version(std::int64_t number) {
  const std::int64_t major = number < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", number / major, number % major / 100, number % 100);
}

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

bool is_random_id(std::string_view text) noexcept {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string utc_time() {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss time(now - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

std::string_view first_line(std::string_view text) noexcept { return text.substr(0, text.find('\n')); }

std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates,
                                   std::size_t most_edits) {
  const std::string wanted = folded(word);
  std::optional<std::string> best;
  std::size_t best_distance = std::min(std::max<std::size_t>(1, wanted.size() / 3), most_edits) + 1;
  for (const std::string& candidate : candidates) {
    const std::string name = folded(candidate);
    const bool abbreviated = wanted.size() >= 3 && name.size() > wanted.size() && name.starts_with(wanted);
    const std::size_t distance = abbreviated ? 1 : edit_distance(wanted, name);
    // If the edits replace all of a candidate, it is not a typing error.
    if (distance < best_distance && distance < std::max(wanted.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates, std::string_view prefix,
                         std::string_view otherwise) {
  const auto near = closest(word, candidates);
  return near ? fmt::format("did you mean {}{}?", prefix, *near) : std::string(otherwise);
}

std::string wrap(std::string_view text, std::size_t indent, std::size_t width) {
  std::string lines;
  std::size_t column = indent;
  for (const std::string& word : split(text, ' ')) {
    if (!lines.empty() && column + 1 + word.size() > width) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!lines.empty()) {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word.size();
  }
  return lines;
}

std::string format_ranges(std::span<const int> sorted) {
  std::string text;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[last]);
    i = last + 1;
  }
  return text;
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                    std::free);
  return name ? name.get() : type.name();
}

namespace {

std::size_t frames_begin(std::string_view what) noexcept {
  const auto newline = std::min(what.find("\nException raised from "), what.find("\nframe #0: "));
  return newline == std::string_view::npos ? what.size() : newline + 1;
}

}  // namespace

std::string_view without_frames(std::string_view what) noexcept { return trim(what.substr(0, frames_begin(what))); }

std::string_view frames_of(std::string_view what) noexcept { return what.substr(frames_begin(what)); }

bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_size(text, i);
    if (size == 0) {
      return false;
    }
    i += size;
  }
  return true;
}

std::string printable(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = character_size(text, i);
    if (text[i] == '\x1b') {
      i = escape_end(text, i);
    } else if (size == 0) {
      result += kReplacement;
      ++i;
    } else {
      const bool control = size == 1 ? is_control(text[i]) : text[i] == '\xc2' && is_c1_tail(text[i + 1]);
      if (!control || text[i] == '\t') {
        result += text.substr(i, size);
      }
      i += size;
    }
  }
  return result;
}

}  // namespace lockstep
