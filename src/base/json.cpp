#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "base/special_number.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kHex = "hex";

/// Records how far the parser has read; nlohmann's callbacks do not report it.
struct TrackedIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  const char** furthest = nullptr;

  reference operator*() const { return *at; }
  TrackedIterator& operator++() {
    *furthest = ++at;
    return *this;
  }
  bool operator==(const TrackedIterator& other) const { return at == other.at; }
  bool operator!=(const TrackedIterator& other) const { return at != other.at; }
};

std::string place(std::string_view text, const char* at) {
  const std::string_view before(text.data(), static_cast<std::size_t>(at - text.data()));
  const auto line = std::ranges::count(before, '\n') + 1;
  const auto line_start = before.rfind('\n');
  const auto column = line_start == std::string_view::npos ? before.size() : before.size() - line_start - 1;
  return fmt::format("line {}, column {}", line, std::max<std::size_t>(column, 1));
}

/// Removes nlohmann's prefix "[json.exception.parse_error.101] ".
std::string without_library_prefix(std::string text) {
  const auto end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return end == std::string::npos ? text : text.substr(end + 2);
}

/// The beginning of a value, for messages.
std::string beginning(const Json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = dump_json(value);
  return printable(text.size() > kMost ? text.substr(0, kMost) + "..." : text);
}

template <class T>
bool is_a(const Json& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value.is_string();
  } else if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    return value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>())
                                      : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  } else {
    return value.is_array() && std::ranges::all_of(value, is_a<typename T::value_type>);
  }
}

template <class T>
constexpr const char* kKind = "an integer";
template <>
constexpr const char* kKind<std::string> = "a string";
template <>
constexpr const char* kKind<bool> = "true or false";
template <>
constexpr const char* kKind<std::vector<std::string>> = "an array of strings";
template <>
constexpr const char* kKind<std::vector<bool>> = "an array of true and false";
template <>
constexpr const char* kKind<std::vector<std::int64_t>> = "an array of integers";

/// A copy in which numbers that JSON cannot represent are strings.
Json writable(const Json& value) {
  if (value.is_number_float()) {
    const auto word = special_word(value.get<double>());
    return word ? Json(*word) : value;
  }
  if (!value.is_structured()) {
    return value;
  }
  Json copy = value;
  for (auto& element : copy) {
    element = writable(element);
  }
  return copy;
}

}  // namespace

Json parse_json(std::string_view text, int max_depth) {
  if (text.find('\0') != std::string_view::npos) {  // the parser would treat it as the end of the text
    throw std::runtime_error("the text contains a zero byte");
  }
  const char* furthest = text.data();
  std::vector<std::set<std::string>> keys;  // of each open object
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth) {
        throw std::runtime_error(fmt::format("{}: nested deeper than {} levels", place(text, furthest), max_depth));
      }
      if (event == Event::object_start) {
        keys.emplace_back();
      }
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw std::runtime_error(
          fmt::format("{}: key \"{}\" appears twice", place(text, furthest), parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return Json::parse(TrackedIterator{text.data(), &furthest}, TrackedIterator{text.data() + text.size(), &furthest},
                       check);
  } catch (const Json::parse_error& error) {
    throw std::runtime_error(without_library_prefix(error.what()));  // the message contains line and column
  } catch (const Json::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", place(text, furthest), without_library_prefix(error.what())));
  }
}

const Json& member(const Json& object, std::string_view name) {
  if (!object.is_object()) {
    throw std::runtime_error(fmt::format("found {}, expected an object with \"{}\"", beginning(object), name));
  }
  const auto found = object.find(std::string(name));
  if (found == object.end()) {
    throw std::runtime_error(fmt::format("\"{}\" is missing", name));
  }
  return *found;
}

template <class T>
T value_as(const Json& value, std::string_view name) {
  if (!is_a<T>(value)) {
    throw std::runtime_error(fmt::format("found {}, expected \"{}\" to be {}", beginning(value), name, kKind<T>));
  }
  return value.get<T>();
}

template std::string value_as(const Json& value, std::string_view name);
template bool value_as(const Json& value, std::string_view name);
template int value_as(const Json& value, std::string_view name);
template std::int64_t value_as(const Json& value, std::string_view name);
template std::vector<std::string> value_as(const Json& value, std::string_view name);
template std::vector<bool> value_as(const Json& value, std::string_view name);
template std::vector<std::int64_t> value_as(const Json& value, std::string_view name);

Json exact_json(std::string_view text) {
  if (is_utf8(text)) {
    return std::string(text);
  }
  std::string digits;
  for (const char byte : text) {
    digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return Json::object({{std::string(kHex), digits}});
}

std::string exact_text(const Json& value, std::string_view name) {
  if (!value.is_object()) {
    return value_as<std::string>(value, name);
  }
  const std::string digits = member_as<std::string>(value, kHex);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    unsigned byte = 0;
    const char* const end = digits.data() + std::min(i + 2, digits.size());
    if (const auto [last, error] = std::from_chars(digits.data() + i, end, byte, 16);
        error != std::errc() || last != digits.data() + i + 2) {
      throw std::runtime_error(fmt::format("found {}, expected \"{}\" to have two hexadecimal digits for each byte",
                                           beginning(value), name));
    }
    text += static_cast<char>(byte);
  }
  return text;
}

std::string dump_json(const Json& value) {
  return writable(value).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string dump_json_pretty(const Json& value) {
  return writable(value).dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
