#include "config/migrate.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "config/command_tokens.h"
#include "config/config_file.h"
#include "config/field_value.h"
#include "config/foreign_names.h"
#include "config/toml_writer.h"

namespace lockstep {
namespace {

std::string key_of(std::string_view name) {
  const auto dot = name.find('.');
  return std::string(dot == std::string_view::npos ? name : name.substr(dot + 1));
}

bool is_field(const std::string& name) {
  const auto values = config_values({});
  return std::ranges::any_of(values, [&](const auto& value) { return value.first == name; });
}

/// One version of the file. Every change makes another one, so that line numbers are always right.
class Document {
 public:
  Document(std::string_view text, std::string label)
      : label_(std::move(label)), lines_(split(text, '\n')), settings_(parse_config_toml(text, label_)) {}

  const std::vector<FileSetting>& settings() const noexcept { return settings_; }
  std::string text() const { return join(lines_, "\n"); }

  const FileSetting* find(std::string_view name) const {
    const auto found =
        std::ranges::find_if(settings_, [&](const FileSetting& setting) { return normal_name(setting.name) == name; });
    return found == settings_.end() ? nullptr : &*found;
  }

  /// The text with `setting` under another name; nullopt: it is written in a way that only a person can change.
  std::optional<std::string> renamed(const FileSetting& setting, const std::string& field) const {
    const std::string& first = lines_[setting.first_line - 1];
    const std::string written(trim(std::string_view(first).substr(0, first.find('='))));
    const std::string section = section_of(field);
    const auto with_key = [&](const std::string& key) {
      std::vector<std::string> lines = lines_;
      lines[setting.first_line - 1].replace(first.find_first_not_of(" \t"), written.size(), key);
      return lines;
    };
    Values expected = values_of(settings_);
    auto node = expected.extract(setting.name);
    node.key() = field;
    expected.insert(std::move(node));
    std::optional<std::string> text;
    if (written == key_of(setting.name) && section_of(setting.name) == section) {
      text = checked(with_key(key_of(field)), expected);
    } else if (written == key_of(setting.name)) {
      std::vector<std::string> lines = with_key(key_of(field));
      move_to_section(lines, setting, section);
      text = checked(lines, expected);
    }
    if (!text && written == setting.name) {
      text = checked(with_key(field), expected);  // a whole name, outside of any section
    }
    return text;  // nullopt also for a quoted name, or one inside { }
  }

  /// The text in which `setting` has another value, without the settings `removed`; nullopt: as above.
  std::optional<std::string> with_value(const FileSetting& setting, const std::string& value,
                                        const std::vector<const FileSetting*>& removed) const {
    std::vector<std::string> lines = lines_;
    std::string& line = lines[setting.first_line - 1];
    const std::string old = describe(setting.value);
    const auto at = line.find(old, line.find('=') + 1);
    if (at == std::string::npos) {
      return std::nullopt;
    }
    line.replace(at, old.size(), value);
    auto expected = values_of(settings_);
    expected[setting.name] = value;
    for (auto other = removed.rbegin(); other != removed.rend(); ++other) {
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>((*other)->first_line - 1));
      expected.erase((*other)->name);
    }
    return checked(lines, expected);
  }

 private:
  static bool is_header(const std::string& line) { return trim(line).starts_with('['); }

  static void move_to_section(std::vector<std::string>& lines, const FileSetting& setting, const std::string& section) {
    auto first = lines.begin() + static_cast<std::ptrdiff_t>(setting.first_line - 1);
    while (first != lines.begin() && trim(*std::prev(first)).starts_with('#')) {
      --first;  // what a comment says of the setting
    }
    const auto last = lines.begin() + static_cast<std::ptrdiff_t>(setting.last_line);
    const std::vector<std::string> moved(first, last);
    lines.erase(first, last);
    auto to = lines.end();
    if (section.empty()) {
      to = std::ranges::find_if(lines, is_header);
    } else {
      const std::string header = fmt::format("[{}]", section);
      to = std::ranges::find_if(
          lines, [&](const std::string& line) { return trim(line.substr(0, line.find('#'))) == header; });
      if (to == lines.end()) {
        while (!lines.empty() && trim(lines.back()).empty()) {
          lines.pop_back();
        }
        lines.insert(lines.end(), {"", header, ""});
        to = lines.end() - 1;
      } else {
        ++to;
      }
    }
    lines.insert(to, moved.begin(), moved.end());
  }

  using Values = std::map<std::string, std::string>;  // by name, as they are written

  static Values values_of(const std::vector<FileSetting>& settings) {
    Values values;
    for (const FileSetting& setting : settings) {
      values[setting.name] = describe(setting.value);
    }
    return values;
  }

  /// The lines were edited as text: they must say what was intended, and nothing else.
  std::optional<std::string> checked(const std::vector<std::string>& lines, const Values& expected) const {
    std::string text = join(lines, "\n");
    try {
      return values_of(parse_config_toml(text, label_)) == expected ? std::optional(std::move(text)) : std::nullopt;
    } catch (const ConfigError&) {
      return std::nullopt;  // such as [optim] behind optim.lr
    }
  }

  std::string label_;
  std::vector<std::string> lines_;
  std::vector<FileSetting> settings_;
};

/// The fields of the earlier schedule: "constant" or "cosine", and up to three numbers.
constexpr const char* kScheduleParts[] = {"optim.warmup_steps", "optim.decay_steps", "optim.min_lr_ratio"};

/// Makes one change; false: there is none.
class Migrator {
 public:
  explicit Migrator(std::string label) : label_(std::move(label)) {}

  bool change(Migration& migration) const {
    const Document document(migration.text, label_);
    return join_schedule(document, migration) || rename_one(document, migration);
  }

 private:
  static double number(const FileSetting* setting) {
    if (setting == nullptr) {
      return 0;
    }
    if (const auto* whole = std::get_if<std::int64_t>(&setting->value)) {
      return static_cast<double>(*whole);
    }
    const auto* real = std::get_if<double>(&setting->value);
    return real != nullptr ? *real : -1;
  }

  static bool join_schedule(const Document& document, Migration& migration) {
    const FileSetting* schedule = document.find("optim.schedule");
    const auto* curve = schedule == nullptr ? nullptr : std::get_if<std::string>(&schedule->value);
    std::vector<const FileSetting*> parts;
    std::vector<std::string> names;
    for (const char* name : kScheduleParts) {
      if (const FileSetting* part = document.find(name)) {
        if (number(part) < 0) {
          return false;
        }
        parts.push_back(part);
        names.emplace_back(name);
      }
    }
    if (curve == nullptr || parts.empty() || (*curve != "constant" && *curve != "cosine")) {
      return false;
    }
    const double warmup = number(document.find(kScheduleParts[0]));
    std::string now = warmup > 0 ? fmt::format("warmup:{}+{}", warmup, *curve) : *curve;
    if (*curve == "cosine") {
      std::vector<std::string> options;
      if (const double end = number(document.find(kScheduleParts[1])); end > 0) {
        options.push_back(fmt::format("until={}", end));
      }
      if (const double least = number(document.find(kScheduleParts[2])); least > 0) {
        options.push_back(fmt::format("to={}", least));
      }
      now += (options.empty() ? "" : ":") + join(options, ",");
    }
    std::ranges::sort(parts, [](const FileSetting* a, const FileSetting* b) { return a->first_line < b->first_line; });
    if (auto text = document.with_value(*schedule, in_quotes(now), parts)) {
      migration.text = *std::move(text);
      migration.changes.push_back(
          fmt::format("{} became a part of optim.schedule = {}", join(names, ", "), in_quotes(now)));
      return true;
    }
    return false;
  }

  /// Today's name of a setting; "": it has none.
  static std::string field_for(const std::string& name) {
    if (section_of(name) == "trainer" && is_field(key_of(name))) {
      return key_of(name);  // a file of Lightning
    }
    const ForeignName* foreign = find_foreign_name(name);
    return foreign == nullptr ? std::string() : std::string(foreign->field);
  }

  static bool rename_one(const Document& document, Migration& migration) {
    for (const FileSetting& setting : document.settings()) {
      const std::string name = normal_name(setting.name);
      const bool is_of_program = section_of(name) == kProgramSection;
      const std::string field = is_of_program || is_field(name) ? std::string() : field_for(name);
      if (field.empty() || document.find(field) != nullptr) {
        continue;
      }
      if (auto text = document.renamed(setting, field)) {
        migration.text = *std::move(text);
        migration.changes.push_back(fmt::format("{} is now {}", printable(setting.name), field));
        return true;
      }
    }
    return false;
  }

  std::string label_;
};

}  // namespace

Migration migrate_toml(std::string_view text, const std::string& label) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";  // of UTF-8, which editors write before the first line
  const std::string_view mark = text.starts_with(kMark) ? kMark : std::string_view();
  Migration migration{.text = std::string(text.substr(mark.size()))};
  const Migrator migrator(label);
  while (migrator.change(migration)) {
  }
  migration.text.insert(0, mark);
  return migration;
}

}  // namespace lockstep
