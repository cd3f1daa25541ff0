#include "base/json.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "base/special_number.h"

namespace lockstep {
namespace {

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

std::string dump_json(const Json& value) {
  return writable(value).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string dump_json_pretty(const Json& value) {
  return writable(value).dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
