#include "config/name_hints.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/text.h"
#include "config/foreign_names.h"

namespace lockstep {
namespace {

std::string last_part(std::string_view name) {
  const auto dot = name.rfind('.');
  return std::string(dot == std::string_view::npos ? name : name.substr(dot + 1));
}

std::vector<std::string> with_same_key(std::string_view name, const std::vector<std::string>& known) {
  std::vector<std::string> same_key;
  std::ranges::copy_if(known, std::back_inserter(same_key),
                       [&](const std::string& candidate) { return last_part(candidate) == last_part(name); });
  return same_key;
}

std::vector<std::string> with_near_spelling(std::string_view name, const std::vector<std::string>& known) {
  if (const auto near = closest(name, known)) {
    return {*near};
  }
  std::vector<std::string> keys;
  std::ranges::transform(known, std::back_inserter(keys), [](const auto& full) { return last_part(full); });
  if (const auto near_key = closest(last_part(name), keys)) {
    std::vector<std::string> names;
    std::ranges::copy_if(known, std::back_inserter(names),
                         [&](const std::string& full) { return last_part(full) == *near_key; });
    return names;
  }
  return {};
}

/// "did you mean --a, --b or --c?"
std::string did_you_mean(const std::vector<std::string>& names, std::string_view prefix) {
  std::vector<std::string> written;
  std::ranges::transform(names, std::back_inserter(written),
                         [&](const std::string& name) { return fmt::format("{}{}", prefix, name); });
  return fmt::format("did you mean {}?", join_or(written));
}

}  // namespace

std::string hint_for_unknown(std::string_view name, const std::vector<std::string>& known, std::string_view prefix,
                             std::string_view otherwise) {
  if (const auto names = with_same_key(name, known); !names.empty()) {
    return did_you_mean(names, prefix);
  }
  if (const ForeignName* foreign = find_foreign_name(name)) {
    return std::string(foreign->hint);
  }
  const auto names = with_near_spelling(name, known);
  if (names.empty() || closest(name, names)) {  // not if only the key of a section is near
    std::vector<std::string> near = names;      // a setting is preferred
    for (const ForeignName& row : foreign_names()) {
      std::ranges::copy(split(row.names, ' '), std::back_inserter(near));
    }
    if (const auto nearest = closest(name, near); nearest && std::ranges::find(names, *nearest) == names.end()) {
      return fmt::format("did you mean {}? {}", *nearest, find_foreign_name(*nearest)->hint);
    }
  }
  return names.empty() ? std::string(otherwise) : did_you_mean(names, prefix);
}

}  // namespace lockstep
