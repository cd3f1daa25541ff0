#include "config/name_hints.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/text.h"
#include "config/command_tokens.h"
#include "config/field_value.h"
#include "config/foreign_names.h"
#include "config/help.h"

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

/// The most typing errors that are assumed in a key without its section and in a name of another system. Many of these
/// names are short and there are many of them, so with more errors an unrelated name would match.
constexpr std::size_t kMostEdits = 2;

std::vector<std::string> with_near_spelling(std::string_view name, const std::vector<std::string>& known) {
  if (const auto near = closest(name, known)) {
    return {*near};
  }
  if (const auto near_key = closest(last_part(name), mapped(known, last_part), kMostEdits)) {
    std::vector<std::string> names;
    std::ranges::copy_if(known, std::back_inserter(names),
                         [&](const std::string& full) { return last_part(full) == *near_key; });
    return names;
  }
  return {};
}

/// "did you mean --a, --b or --c?"
std::string did_you_mean(const std::vector<std::string>& names, std::string_view prefix) {
  const auto written = mapped(names, [&](const std::string& name) { return fmt::format("{}{}", prefix, name); });
  return fmt::format("did you mean {}?", join_or(written));
}

/// The section of another system that `name` is in; null: none.
const ForeignName* foreign_section(std::string_view name, const std::vector<std::string>& known) {
  const std::string section = section_of(name);
  const bool is_own = std::ranges::any_of(known, [&](const auto& own) { return section_of(own) == section; });
  return section.empty() || is_own ? nullptr : find_foreign_name(section);
}

/// --config and others that no file and no variable sets; null: it is none of them.
const FlagRow* flag_of_command_line(std::string_view name, const std::vector<std::string>& known) {
  const std::string wanted = to_lower(name);
  const auto* const found =
      std::ranges::find(kProgramFlags, wanted, [](const FlagRow& flag) { return normal_name(flag.name); });
  const bool is_other = found == std::end(kProgramFlags) || std::ranges::find(known, wanted) != known.end();
  return is_other ? nullptr : found;
}

}  // namespace

std::string hint_for_unknown(std::string_view name, const std::vector<std::string>& known, std::string_view prefix,
                             std::string_view otherwise) {
  if (const FlagRow* flag = flag_of_command_line(name, known)) {
    return fmt::format("use --{} on the command line", flag->name);
  }
  const ForeignName* section = foreign_section(name, known);
  const ForeignName* foreign = find_foreign_name(name);
  const bool is_in_section = name.find('.') != std::string_view::npos;
  if (const auto names = with_same_key(name, known);
      section == nullptr && !names.empty() && (foreign == nullptr || !is_in_section)) {
    return did_you_mean(names, prefix);
  }
  if (foreign != nullptr || section != nullptr) {
    return std::string((foreign != nullptr ? foreign : section)->hint);
  }
  const auto names = with_near_spelling(name, known);
  if (names.empty() || closest(name, names)) {  // not if only the key of a section is near
    std::vector<std::string> near = names;      // a setting is preferred
    const std::string first_letter = to_lower(name.substr(0, 1));
    for (const ForeignName& row : foreign_names()) {
      std::ranges::copy_if(split(row.names, ' '), std::back_inserter(near),
                           [&](const std::string& other) { return other.starts_with(first_letter); });
    }
    if (const auto nearest = closest(name, near, kMostEdits);
        nearest && std::ranges::find(names, *nearest) == names.end()) {
      return fmt::format("did you mean {}? {}", *nearest, find_foreign_name(*nearest)->hint);
    }
  }
  return names.empty() ? std::string(otherwise) : did_you_mean(names, prefix);
}

}  // namespace lockstep
